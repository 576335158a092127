#!/usr/bin/env bash
# Run from anywhere; arguments are overrides: run.sh actor_train.pg_variant=tis
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python "$here/../start_rlvr_pipeline.py" --config_path "$here" --config_name rlvr_config "$@"
