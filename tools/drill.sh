#!/usr/bin/env bash
# A fault drill: trains tiny clusters of real processes on this machine, and kills, stops, cuts and
# starves them at random, on one variant after the other. After each run it checks that nobody hung,
# that exit codes are right, that no checkpoint is lost and, of synchronous variants whose members
# all came back, that the result is the undisturbed run's, bit for bit.
#
#   tools/drill.sh --minutes 10 --seed 1 [--faults 500] [--variants "ssgd asgd"]
#                  [--scenarios "servers workers cuts blips disk"] [--lease 2] [--keep]
#
# Ends after so many minutes, or faults where that is sooner, and says how many of each kind there
# were; so it does when it is interrupted. The same seed draws the same faults; when they hit is up
# to the machine. On one so busy that a process may have to wait for seconds, take a lease (in
# seconds) that is longer. With --keep the runs stay in the directory that it names. The program is
# $TRAINER, else the newest build beside this script.
#
# Networks are cut by losing packets without a word: for that each worker has a network namespace
# of its own, for which root is needed, or a kernel that lets users have namespaces. Where it does
# not, the scenarios that need them are left out, which is said.
set -u

all=("$@")
minutes=1 seed=1 most=0 lease=2 keep=
scenarios="servers servers workers workers cuts cuts blips disk"
variants="ssgd bitsgd ssdsgd odsgd cdsgd localsgd asgd ssp dcasgd dcasgd_a"
while (($# > 0)); do
    case $1 in
        --minutes) minutes=$2 && shift ;;
        --seed) seed=$2 && shift ;;
        --faults) most=$2 && shift ;;
        --variants) variants=$2 && shift ;;
        --scenarios) scenarios=$2 && shift ;;
        --lease) lease=$2 && shift ;;
        --keep) keep=1 ;;
        *) echo "drill: error: $1: see the head of this script" >&2; exit 2 ;;
    esac
    shift
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trainer=${TRAINER:-$(ls -t "$root"/build/tools/trainer/trainer \
    "$root"/build/*/tools/trainer/trainer 2>/dev/null | head -n 1)}
[[ -x $trainer ]] ||
    { echo "drill: error: no trainer found; build it, or set TRAINER to its path" >&2; exit 2; }

# Everything happens in a network of its own, where this may make more of them.
if [[ -z ${DRILL_NETWORK:-} ]]; then
    export DRILL_NETWORK=none
    for as in -n -rn; do
        unshare $as ip link set lo up 2>/dev/null &&
            DRILL_NETWORK=own exec unshare $as "${BASH_SOURCE[0]}" "${all[@]}"
    done
fi

RANDOM=$seed
work=$(mktemp -d "${TMPDIR:-/tmp}/drill.XXXXXX") || exit 1
cd "$work" || exit 1
deadline=$((SECONDS + minutes * 60))
servers=2 workers=3 steps=960
declare -A pid=() address=() counts=() holder=()
runs=0 faults=0 failures=0

cat >drill.yaml <<EOF
model: {name: linear}
data: {dataset: synthetic, batch_size: 128, workers: 1, augment: {pad_crop: 0}}
train: {epochs: 50, max_steps: $steps, eval_every_epochs: 0}
threads: 1
optim: {lr: 0.01, schedule: {type: cosine}}
distributed: {workers: $workers, servers: $servers, delay_steps: 3, local_steps: 4}
comm: {timeout: 60s, lease: ${lease}s, emulate: {step_time: 12ms}}
checkpoint: {every_steps: 7, every_epochs: 0, keep: 2}
log: {every_steps: 20}
EOF
printf 'a secret that is long enough' >secret
chmod 600 secret

stop_all() {
    local name
    for name in "${!pid[@]}"; do
        kill -s CONT "${pid[$name]}" 2>/dev/null
        kill -s KILL "${pid[$name]}" 2>/dev/null
        wait "${pid[$name]}" 2>/dev/null
    done
    pid=()
}
report() {
    local kind
    for kind in "${!counts[@]}"; do
        echo "drill: ${counts[$kind]} x $kind"
    done | sort
    echo "drill: $faults faults in $runs runs, $failures runs failed, seed $seed"
    [[ -z $keep ]] || echo "drill: kept in $work"
}
leave() {
    stop_all
    ((${#holder[@]} == 0)) || kill "${holder[@]}" 2>/dev/null
    [[ -n $keep ]] || rm -rf "$work"
}
trap leave EXIT
trap 'report; exit 130' INT TERM

# --- networks ---

host=10.77.0.1 # of the servers; worker R is 10.77.R+1.2, and 10.77.R+1.1 its way to them
nowhere=02:00:00:00:00:01
within() { # rank, command...: in the worker's network
    local rank=$1
    shift
    nsenter -t "${holder[$rank]}" -n "$@"
}
make_networks() {
    local rank net
    [[ $DRILL_NETWORK == own ]] && ip link set lo up && ip addr add $host/32 dev lo || return
    for ((rank = 0; rank < workers; ++rank)); do
        unshare -n sleep infinity &
        holder[$rank]=$!
        until [[ $(readlink "/proc/${holder[$rank]}/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do
            kill -0 "${holder[$rank]}" 2>/dev/null || return
            sleep 0.01
        done
        net=10.77.$((rank + 1))
        ip link add "w$rank" type veth peer name eth netns "${holder[$rank]}" &&
            ip addr add $net.1/24 dev "w$rank" && ip link set "w$rank" up &&
            within "$rank" ip addr add $net.2/24 dev eth && within "$rank" ip link set eth up &&
            within "$rank" ip route add default via $net.1 || return
    done
}
# What leaves for the other end is addressed to nobody, and lost.
cut() { # rank, to | from: packets to the worker, or from it
    local net=10.77.$(($1 + 1))
    if [[ $2 == to ]]; then
        ip neigh replace $net.2 lladdr $nowhere dev "w$1" nud permanent
    else
        within "$1" ip neigh replace $net.1 lladdr $nowhere dev eth nud permanent
    fi
}
mend() { # rank
    local net=10.77.$(($1 + 1))
    ip neigh del $net.2 dev "w$1" 2>/dev/null
    within "$1" ip neigh del $net.1 dev eth 2>/dev/null
    return 0
}
if ! make_networks >/dev/null 2>&1; then
    echo "drill: no network namespaces here: networks are not cut"
    scenarios=$(tr ' ' '\n' <<<"$scenarios" | grep -vx -e cuts -e blips | tr '\n' ' ')
    [[ -n ${scenarios// /} ]] || exit 77
fi

pick() { # of the arguments
    local choices=("$@")
    echo "${choices[RANDOM % $#]}"
}
nap() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; } # milliseconds

options() {
    printf -- '--config drill.yaml --set distributed.variant=%s --set checkpoint.dir=%s ' \
        "$variant" "$run"
    printf -- '--set log.dir=%s --set distributed.on_worker_loss=%s ' "$run" "$policy"
    printf -- '--set comm.secret_file=secret'
}
start_server() { # index
    # shellcheck disable=SC2046
    $limit setsid "$trainer" $(options) --role=server --rank="$1" \
        --listen="${address[$1]:-$listen:0}" >>"$run/server$1.out" 2>&1 </dev/null &
    pid[server$1]=$!
}
await_address() { # index
    local tries
    for ((tries = 0; tries < 1000; ++tries)); do
        address[$1]=$(sed -n 's/^server  *listens at .*, others call it //p' \
            "$run/server$1.out" 2>/dev/null | tail -n 1)
        [[ -z ${address[$1]} ]] || return 0
        sleep 0.02
    done
    return 1
}
start_worker() { # rank
    local in=()
    [[ $listen != "$host" ]] || in=(nsenter -t "${holder[$1]}" -n)
    # shellcheck disable=SC2046
    "${in[@]}" setsid "$trainer" $(options) --role=worker --rank="$1" \
        --servers="${address[0]},${address[1]}" >>"$run/worker$1.out" 2>&1 </dev/null &
    pid[worker$1]=$!
}
start_all() {
    local i
    for ((i = 0; i < servers; ++i)); do start_server "$i"; done
    for ((i = 0; i < servers; ++i)); do await_address "$i" || return 1; done
    for ((i = 0; i < workers; ++i)); do start_worker "$i"; done
}

complain() {
    echo "drill: FAILED: $run ($variant, $scenario, seed $seed): $1" >&2
    for name in server0 server1 worker0 worker1 worker2; do
        [[ -f $run/$name.out ]] && { echo "--- $name"; tail -n 4 "$run/$name.out"; } >&2
    done
    keep=1
    failed=1
}
# Whether a process still runs; where not, its exit code is in `code`.
alive() { # name
    code=
    [[ -n ${pid[$1]:-} ]] || return 1
    kill -0 "${pid[$1]}" 2>/dev/null && return 0
    wait "${pid[$1]}"
    code=$?
    unset "pid[$1]"
    return 1
}
# The last checkpoint as it stands must be whole.
check_checkpoint() {
    [[ ! -e $run/latest ]] && return 0
    [[ -s $run/latest/model.safetensors && -s $run/latest/state.safetensors ]] ||
        complain "the checkpoint that 'latest' points at is not whole"
}
last_saved() { ls -d "$run"/step-* 2>/dev/null | sed 's/.*step-//' | sort -n | tail -n 1; }
hit() { # kind
    counts[$1]=$((${counts[$1]:-0} + 1))
    ((++run_faults))
}
end_of() { # name, signal: a process that the drill ends
    kill -s "$2" "${pid[$1]}" 2>/dev/null
    kill -s CONT "${pid[$1]}" 2>/dev/null
    wait "${pid[$1]}" 2>/dev/null
    unset "pid[$1]"
}

# --- faults: each does one to the run under way ---

kill_server() {
    local index=$((RANDOM % servers))
    alive "server$index" || return
    end_of "server$index" KILL
    hit "server killed"
    check_checkpoint
    nap $((RANDOM % 500))
    start_server "$index"
}
stop_server() { # long enough to be given up
    local index=$((RANDOM % servers))
    alive "server$index" || return
    kill -s STOP "${pid[server$index]}"
    hit "server stopped"
    nap $((1000 * lease + 700))
    end_of "server$index" KILL
    start_server "$index"
}
kill_worker() {
    local rank=$((RANDOM % workers))
    alive "worker$rank" || return
    end_of "worker$rank" KILL
    hit "worker killed"
    nap $((RANDOM % 500))
    start_worker "$rank"
}
stop_worker() { # it wakes up, finds itself given up, and comes back
    local rank=$((RANDOM % workers))
    alive "worker$rank" || return
    kill -s STOP "${pid[worker$rank]}"
    hit "worker stopped"
    nap $((1000 * lease + 700))
    kill -s CONT "${pid[worker$rank]}" 2>/dev/null
}
pause_anyone() { # not long enough to be given up
    local name
    name=$(pick "${!pid[@]}")
    alive "$name" || return
    kill -s STOP "${pid[$name]}"
    hit "paused"
    nap $((100 + RANDOM % 300))
    kill -s CONT "${pid[$name]}" 2>/dev/null
}
preempt_worker() {
    local rank=$((RANDOM % workers))
    alive "worker$rank" || return
    kill -s TERM "${pid[worker$rank]}"
    hit "worker preempted"
    nap $((RANDOM % 600))
}
cut_network() { # kind, milliseconds, directions...
    local rank=$((RANDOM % workers)) kind=$1 time=$2 direction
    shift 2
    alive "worker$rank" || return
    for direction in "$@"; do cut "$rank" "$direction"; done
    hit "network cut, $kind"
    nap "$time"
    mend "$rank"
}
cut_long() { cut_network "longer than the lease" $((1000 * lease + 600 + RANDOM % 2000)) to from; }
cut_to_worker() { cut_network "one way, to a worker" $((1000 * lease + 600 + RANDOM % 2000)) to; }
cut_from_worker() { cut_network "one way, from a worker" $((1000 * lease + 600 + RANDOM % 2000)) from; }
# Within the lease come the lost packets, the pause until TCP sends them again, which doubles each
# time, and a beat.
cut_short() { cut_network "shorter than the lease" $((100 + RANDOM % 300)) to from; }
reset_connections() { # of a worker, to all servers or to one
    local rank=$((RANDOM % workers)) index=$((RANDOM % (servers + 1))) to=()
    alive "worker$rank" || return
    ((index == servers)) || to=(dport "=" ":${address[$index]##*:}")
    within "$rank" ss -tKH "${to[@]}" >/dev/null 2>&1 || return
    hit "connections reset"
}

# Lets the run go on to its end, hitting it with `faults_left` of the given faults on the way.
survive() { # faults...
    local limit_s=$((SECONDS + 300)) name next_fault=$((RANDOM % 700 + 300)) waited=0
    while ((${#pid[@]} > 0)); do
        if ((SECONDS > limit_s)); then
            complain "it hangs"
            return
        fi
        for name in "${!pid[@]}"; do
            alive "$name" && continue
            case $code:$name in
                0:*) ;;
                75:worker* | 143:worker*) # preempted, perhaps before it took signals: come back
                    ((over)) || start_worker "${name#worker}" ;;
                1:worker*)
                    if [[ $policy == continue ]]; then
                        # Too late to take part, or given up: a supervisor would start it again.
                        grep -q "^done " "$run/trainer.log" 2>/dev/null ||
                            [[ $(last_saved) == "$steps" ]] || start_worker "${name#worker}"
                    else
                        complain "$name ended with exit code 1"
                        return
                    fi ;;
                *)
                    complain "$name ended with exit code $code"
                    return ;;
            esac
        done
        [[ $(last_saved) == "$steps" ]] && over=1
        if ((faults_left > 0 && !over && waited >= next_fault)) && ((${#pid[@]} == servers + workers)); then
            "$(pick "$@")"
            ((--faults_left))
            waited=0 next_fault=$((RANDOM % 700 + 100))
        fi
        nap 50
        ((waited += 50))
    done
}

judge() { # whether the result must be the reference's: 1 or 0
    [[ -n $failed ]] && return
    if [[ ! -s $run/step-$steps/model.safetensors ]]; then
        complain "the run has not come to its end"
    elif (($1)) && ! cmp -s "$run/step-$steps/model.safetensors" \
        "reference-$variant/step-$steps/model.safetensors"; then
        complain "the result is not the undisturbed run's"
    elif (($1)) && ! cmp -s "$run/step-$steps/state.safetensors" \
        "reference-$variant/step-$steps/state.safetensors"; then
        complain "the state is not the undisturbed run's"
    elif ls -d "$run"/.[a-z]*tmp* "$run"/*.tmp* >/dev/null 2>&1; then
        complain "temporary files are left"
    elif ! "$trainer" eval --config drill.yaml \
        --checkpoint "$run/latest" >"$run/eval.out" 2>&1; then
        complain "the last checkpoint cannot be evaluated"
    fi
}

while ((SECONDS < deadline)) && ((most == 0 || faults < most)); do
    for variant in $variants; do
        ((SECONDS < deadline)) && ((most == 0 || faults < most)) || break
        synchronous=1
        [[ $variant == asgd || $variant == ssp || $variant == dcasgd* ]] && synchronous=0
        failed='' run_faults=0 over=0 limit='' policy=abort
        faults_left=$((10 + RANDOM % 30))
        ((most == 0 || faults_left <= most - faults)) || faults_left=$((most - faults))
        if [[ ! -d reference-$variant ]]; then
            run=reference-$variant scenario=reference
            mkdir -p "$run"
            # shellcheck disable=SC2046
            "$trainer" $(options) --set comm.emulate={} >"$run/server0.out" 2>&1 ||
                complain "the undisturbed run failed"
        fi
        ((++runs))
        run=run$runs
        mkdir -p "$run"
        address=() listen=127.0.0.1
        # shellcheck disable=SC2086
        scenario=$(pick $scenarios)
        case $scenario in
            servers) # killed, and back from the last checkpoint: the same result
                start_all && survive kill_server kill_server stop_server pause_anyone
                judge $synchronous ;;
            workers) # killed, stopped, preempted; others go on, and they come back
                policy='continue'
                start_all && survive kill_worker kill_worker stop_worker preempt_worker \
                    kill_server pause_anyone
                judge 0 ;;
            cuts) # others go on, and the worker comes back
                policy='continue' listen=$host
                start_all && survive cut_long cut_to_worker cut_from_worker cut_short \
                    reset_connections kill_worker
                judge 0 ;;
            blips) # nobody is lost: the same result
                listen=$host
                start_all && survive cut_short cut_short pause_anyone
                judge $synchronous ;;
            disk) # server 0 may write no file as large as a checkpoint's; then again with room
                limit="prlimit --fsize=$((60000 + RANDOM % 40000))"
                start_all
                while ((${#pid[@]} > 0)); do
                    for name in "${!pid[@]}"; do
                        alive "$name" || [[ $code == 1 ]] ||
                            { complain "$name ended with exit code $code"; stop_all; }
                    done
                    nap 50
                done
                grep -q "File too large" "$run/server0.out" ||
                    [[ -n $failed ]] || complain "no file was too large"
                hit "disk full"
                limit='' faults_left=1 address=()
                rm -f "$run"/*.out
                [[ -n $failed ]] || { start_all && survive kill_server; }
                judge $synchronous ;;
        esac
        stop_all
        ((faults += run_faults))
        for ((i = 0; i < ${#holder[@]}; ++i)); do mend "$i"; done
        if [[ -n $failed ]]; then
            ((++failures))
        elif [[ -z $keep ]]; then
            rm -rf "$run"
        fi
    done
done

report
((failures == 0))
