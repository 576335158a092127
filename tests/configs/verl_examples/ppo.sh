#!/usr/bin/env bash
set -xeuo pipefail
MODEL_PATH=${MODEL_PATH:-owner/model}
backend=${BACKEND:-vllm}
response=$((1024 * 2))
EXTRA=()
if [ "$backend" = hf ]; then
    EXTRA+=(actor_rollout_ref.rollout.name=hf)
else
    EXTRA+=("actor_rollout_ref.rollout.name=${backend}" actor_rollout_ref.rollout.tensor_model_parallel_size=1)
fi
DATA=(
    data.train_files="${TRAIN_FILE:-data/train.parquet}"
    data.max_response_length=${response}
)
CRITIC=(critic.optim.lr=2e-5 critic.model.path="$MODEL_PATH" critic.strategy=fsdp2)

python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${CRITIC[@]}" \
    actor_rollout_ref.model.path="$MODEL_PATH" \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    "${EXTRA[@]}" \
    trainer.logger=console \
    "$@"
