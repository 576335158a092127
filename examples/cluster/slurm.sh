#!/usr/bin/env bash
# One run on several machines of a Slurm cluster, from the checkout:   sbatch examples/cluster/slurm.sh [key=value ...]
# Not run on a cluster yet. The checkout with .venv, ~/.ray, models and output lie on file systems that all nodes see.
#SBATCH --job-name=roll
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
source .venv/bin/activate

nodes=$SLURM_JOB_NUM_NODES
gpus=${SLURM_GPUS_ON_NODE:-8}
read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$head:6379

# Who can talk to Ray can run code: all nodes read one token.
(umask 077 && ray get-auth-token --generate > /dev/null)
export RAY_AUTH_MODE=token
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600

# Ray starts on every node, the run on the first; when the run ends, Ray does. Without RAY_ADDRESS the run would start a Ray of its own.
exec srun --kill-on-bad-exit=1 \
    ray symmetric-run --address "$address" --min-nodes "$nodes" --num-gpus="$gpus" --disable-usage-stats -- \
    env RAY_ADDRESS="$address" \
    roll train rlvr --config_path pkg://qwen2.5-7B-rlvr_megatron --config_name rlvr_config_async \
    num_nodes="$nodes" num_gpus_per_node="$gpus" resume_from_checkpoint=auto "$@"
