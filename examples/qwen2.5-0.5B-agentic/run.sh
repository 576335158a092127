#!/usr/bin/env bash
# Run from anywhere; arguments are overrides: run.sh max_steps=10
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python "$here/../start_agentic_pipeline.py" --config_path "$here" --config_name agent_val_frozen_lake_async "$@"
