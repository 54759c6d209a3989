#!/usr/bin/env bash
# Runs a cluster of real processes on this machine, each server and worker one of them.
#
#   tools/launch_local.sh -s 2 -n 4 --config resnet20.yaml [more arguments of trainer]
#
# Of distributed.topology allreduce there are no servers: worker 0 leads, and is the one that is shown.
# -s and -n set distributed.servers and distributed.workers (1 each by themselves). Shows what
# server 0 says; every process has its own log in log.dir. SIGTERM and SIGINT stop the run with a
# checkpoint. When one process fails the others are stopped, and its exit code is this script's; but
# a worker that fails is only named where distributed.on_worker_loss is continue.
# The program is $TRAINER, else the trainer here, in the newest build beside this script, or in PATH.
set -u

servers=1 workers=1
arguments=()
while (($# > 0)); do
    case $1 in
        -s) servers=${2:-} && shift ;;
        -n) workers=${2:-} && shift ;;
        -s*) servers=${1#-s} ;;
        -n*) workers=${1#-n} ;;
        -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
[[ $servers =~ ^[1-9][0-9]*$ && $workers =~ ^[1-9][0-9]*$ ]] ||
    { echo "launch_local: error: -s $servers -n $workers: give whole numbers from 1 on" >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trainer=${TRAINER:-}
if [[ -z $trainer && -x ./trainer ]]; then
    trainer=./trainer
fi
if [[ -z $trainer ]]; then
    trainer=$(ls -t "$root"/build/tools/trainer/trainer "$root"/build/*/tools/trainer/trainer \
        2>/dev/null | head -n 1)
fi
trainer=${trainer:-$(command -v trainer)}
[[ -x $trainer ]] ||
    { echo "launch_local: error: no trainer found; build it, or set TRAINER to its path" >&2; exit 2; }

arguments+=(--set "distributed.servers=$servers" --set "distributed.workers=$workers")
config=$("$trainer" "${arguments[@]}" --print-config) || exit $?
if grep -q '^threads: auto' <<<"$config"; then
    threads=$(($(nproc) / workers))
    arguments+=(--set "threads=$((threads > 0 ? threads : 1))")
fi

output=$(mktemp -d) || exit 1
pids=()
declare -A names=() running=()

# Where this script is killed outright, what it has started is asked to stop.
with_us=()
! command -v setpriv >/dev/null || with_us=(setpriv --pdeathsig TERM)

start() { # name, arguments...
    local name=$1
    shift
    : >"$output/$name"  # which may be read before the process opens it
    # In a session of its own: a terminal's Ctrl-C reaches it once, through this script.
    "${with_us[@]}" setsid "$trainer" "${arguments[@]}" "$@" >"$output/$name" 2>&1 </dev/null &
    pids+=($!)
    names[$!]=$name
    running[$!]=1
}

stop_all() { # signal
    ((${#running[@]} == 0)) || kill -s "$1" "${!running[@]}" 2>/dev/null
}
trap 'stop_all TERM' TERM INT
trap 'stop_all KILL; rm -rf "$output"' EXIT

survives=
grep -q '^  on_worker_loss: continue' <<<"$config" && survives=1
failure=0 interrupted=0 killer=
ended() { # pid, exit code
    unset "running[$1]"
    if [[ -n $survives && ${names[$1]} == worker* && $2 != 0 ]]; then
        echo "launch_local: ${names[$1]} (process $1) has ended with exit code $2" >&2
    elif (($2 == 75)); then
        interrupted=1
    elif (($2 != 0 && failure == 0)); then
        failure=$2
        echo "launch_local: ${names[$1]} (process $1) has ended with exit code $2:" >&2
        [[ ${names[$1]} == server0 ]] || tail -n 3 "$output/${names[$1]}" >&2  # that is shown
        stop_all TERM
        if ((${#running[@]} > 0)); then
            (trap - TERM INT EXIT; sleep 10; kill -s KILL "${!running[@]}") 2>/dev/null &
            killer=$!
        fi
    fi
}

leaders=server first=0 gpus=0
if grep -q '^  topology: allreduce' <<<"$config"; then
    leaders=worker first=1 servers=1
    # A GPU belongs to one worker.
    if grep -Eq '^device: (auto|cuda)$' <<<"$config" && nvidia-smi -L 2>/dev/null | grep -q ^GPU; then
        gpus=$(sed -n '/^worker:/,/^[^ ]/s/^  gpus: //p' <<<"$config")
    fi
fi
own_gpus() { # rank
    ((gpus == 0)) || echo "--set=device=cuda:$(($1 * gpus))"
}
addresses=()
for ((s = 0; s < servers; ++s)); do
    # shellcheck disable=SC2046  # no word where there are no GPUs
    start "$leaders$s" --role="$leaders" --rank="$s" --listen=127.0.0.1:0 $(own_gpus "$s")
done
for ((s = 0; s < servers; ++s)); do
    address=
    until [[ -n $address ]]; do
        address=$(sed -n "s/^$leaders  *listens at .*, others call it //p" "$output/$leaders$s")
        if [[ -z $address ]] && ! kill -0 "${pids[s]}" 2>/dev/null; then
            wait "${pids[s]}"
            ended "${pids[s]}" $?
            exit "$failure"
        fi
        [[ -n $address ]] || sleep 0.02
    done
    addresses+=("$address")
done
tail -n +1 -s 0.1 -f --pid="${pids[0]}" "$output/${leaders}0" &
viewer=$!
list=$(IFS=,; echo "${addresses[*]}")
for ((i = first; i < workers; ++i)); do
    # shellcheck disable=SC2046
    start "worker$i" --role=worker --rank="$i" --servers="$list" $(own_gpus "$i")
done

while ((${#running[@]} > 0)); do
    pid=
    wait -n -p pid "${!running[@]}"
    code=$?
    if [[ -n ${pid:-} ]]; then
        ended "$pid" "$code"
        continue
    fi
    # A signal came first, or bash has taken note of an end before it was waited for: ask each.
    for pid in "${!running[@]}"; do
        kill -0 "$pid" 2>/dev/null && continue
        wait "$pid"
        ended "$pid" $?
    done
    sleep 0.05
done
[[ -z $killer ]] || kill "$killer" 2>/dev/null
wait "$viewer"
((failure == 0)) || exit "$failure"
((interrupted)) && exit 75
exit 0
