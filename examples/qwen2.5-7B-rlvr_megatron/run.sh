#!/usr/bin/env bash
# Run from anywhere; arguments are overrides: run.sh max_steps=10
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python "$here/../start_rlvr_pipeline.py" --config_path "$here" --config_name rlvr_config_async "$@"
