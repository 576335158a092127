#!/usr/bin/env bash
# One run on several machines of a Slurm cluster, from the checkout:   sbatch examples/cluster/slurm.sh [key=value ...]
# Run on 2026-11-28 in Slurm 22.05, on a controller and two nodes that were namespaces of one machine, with a tiny model on CPUs
# (tests/slurm); not on GPUs. The checkout with .venv, ~/.ray, models and output lie on file systems that all nodes see.
#
# Options before the script's name win: `sbatch --nodes=2 --gpus-per-node=0 ...` runs on CPUs, in num_gpus_per_node=1 slot a node or as many
# as are given. Variables: ROLL_PIPELINE, ROLL_CONFIG_PATH, ROLL_CONFIG_NAME. Seeds: `sbatch --array=0-3 ... exp_name=run-%a seed=%a`.
#SBATCH --job-name=roll
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
source .venv/bin/activate

nodes=$SLURM_JOB_NUM_NODES
slots=${SLURM_GPUS_ON_NODE:-1}
# This script runs on the first node. Its own name may stand for 127.0.1.1 there, so the address is that by which Ray knows the node.
head=$SLURMD_NODENAME
address=$(python -c 'import ray; print(ray.util.get_node_ip_address())'):6379
export head address gpus=${SLURM_GPUS_ON_NODE:-0}

# Who can talk to Ray can run code: all nodes read one token.
(umask 077 && ray get-auth-token --generate > /dev/null)
export RAY_AUTH_MODE=token

# A step with a task on every node is Ray, until this script closes its input. Its tasks are deaf to SIGTERM, which Slurm sends to all
# steps before the time limit and at a preemption: the run is still to write its checkpoint. `ray symmetric-run` would end with it.
on_each_node='
    trap "" TERM
    [[ -z ${SLURM_RESTART_COUNT:-} ]] || ray stop --force > /dev/null 2>&1  # what an earlier start has left, where Slurm uses no cgroups
    if [[ $SLURMD_NODENAME == "$head" ]]; then
        where=(--head --port="${address#*:}" --include-dashboard=false)
    else
        where=(--address="$address")
        until (: < "/dev/tcp/${address/://}") 2> /dev/null; do sleep 1; done
    fi
    ray start "${where[@]}" --num-gpus="$gpus" --disable-usage-stats >&2
    echo started
    read -r _ || true
    ray stop > /dev/null 2>&1'
coproc RAY { exec srun --overlap --cpu-bind=none --kill-on-bad-exit=1 bash -ec "$on_each_node"; }
ray=$RAY_PID started=${RAY[0]} input=${RAY[1]}
for ((there = 0; there < nodes; there++)); do
    read -r -t 600 -u "$started" _ || { echo "Ray has started on $there of $nodes nodes only" >&2; exit 1; }
done

# The run is a step of its own, on the first node, so that SIGTERM reaches it. %a is the number in an array of jobs (--array=0-3).
code=0
srun --overlap --cpu-bind=none --nodes=1 --ntasks=1 --nodelist="$head" \
    env RAY_ADDRESS="$address" \
    roll train "${ROLL_PIPELINE:-rlvr}" --config_path "${ROLL_CONFIG_PATH:-pkg://qwen2.5-7B-rlvr_megatron}" \
    --config_name "${ROLL_CONFIG_NAME:-rlvr_config_async}" \
    num_nodes="$nodes" num_gpus_per_node="$slots" resume_from_checkpoint=auto "${@//%a/${SLURM_ARRAY_TASK_ID:-0}}" < /dev/null || code=$?

# What SIGTERM has interrupted (130; 143 before the run could hear it), and what has failed while a node does not answer, is begun
# again, from its checkpoint. A job that was cancelled is not.
again="" patience=60
if ((code == 130 || code == 143)); then
    again=interrupted
elif ((code != 0)) && ! timeout --kill-after=5 60 srun --overlap --cpu-bind=none true < /dev/null; then
    again="a node is lost" patience=20
fi
exec {input}>&-
timeout "$patience" tail --pid="$ray" -f /dev/null || kill -KILL "$ray"
if [[ -n $again && $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) == RUNNING ]]; then
    echo "$(date +%T) back to the queue: $again"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
