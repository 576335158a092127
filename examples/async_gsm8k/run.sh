#!/usr/bin/env bash
# The trainer and an explorer of one run. Run from anywhere; arguments are overrides of both: run.sh max_steps=10.
# It ends when both have ended, with the exit code of the first that failed, which ends the other, too. Needs bash 5.1.
set -um # -m: a process group each, so that Ctrl-C reaches them through this script alone, once
here=$(cd "$(dirname "$0")" && pwd)
declare -A running=()
interrupted=
starting=1
pending= # a signal that has come, and has not been passed on

start() {
    python "$here/../start_rlvr_pipeline.py" --config_path "$here" --config_name "$@" &
    running[$!]=$1
}

tell() { # a signal to whoever still runs
    for process in "${!running[@]}"; do kill -s "$1" "$process" 2>/dev/null; done
}

pass_on() {
    local signal=$pending
    pending=
    [[ -z $signal ]] || tell "$signal"
}

# Not before it is known who has been started.
trap 'interrupted=1 pending=INT; [[ -n $starting ]] || pass_on' INT
trap 'interrupted=1 pending=TERM; [[ -n $starting ]] || pass_on' TERM

start trainer "$@"
[[ -n $interrupted ]] || start explorer "$@"
starting=
pass_on

status=0
while ((${#running[@]})); do
    ended=
    wait -n -p ended "${!running[@]}"
    code=$?
    [[ -n ${ended:-} ]] || continue # a signal came, and was passed on
    name=${running[$ended]}
    unset "running[$ended]"
    if ((code && !status)); then
        status=$code
        echo "$name ended with exit code $code" >&2
        [[ -n $interrupted ]] || tell TERM
    fi
done
exit "$status"
