#!/usr/bin/env bash
# What the papers claim of speed, measured on this machine: four workers and a server in one process,
# on emulated links, each worker's computing stretched to the time of an emulated device, so that
# they do not fight for this machine's processors.
#
#   tools/reproduce.sh [MODEL...]      resnet20 and vgg16 if none is named
#
# Per model a link on which S-SGD's exposed communication is 1.3 to 1.5 times its computing, and one
# five times slower. Prints tables in Markdown, and what they say of the papers' claims. Runs and
# their logs stay in runs/reproduce; the same command goes on where it was stopped. A quarter of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${RUNS:-runs/reproduce}
steps=${STEPS:-20}
tools/setup.sh >&2
tools/build.sh >&2

# Speed does not depend on what is in the images.
data=()
got=0
tools/get_data.sh cifar10 >&2 || got=$?
if [ $got -ne 0 ]; then
    echo "reproduce: without CIFAR-10, on synthetic images" >&2
    data=(--set data.dataset=synthetic)
fi

# compare FOLDER BANDWIDTH STEP_TIME BATCH FORMAT ENTRY...
compare() {
    local folder=$1 bandwidth=$2 step_time=$3 batch=$4 format=$5
    shift 5
    tools/compare "$format" --runs "$folder" --set precision=bf16 \
        --set "comm.emulate={bandwidth: $bandwidth, latency: 100us, step_time: $step_time}" \
        --set "train.max_steps=$steps" --set "data.batch_size=$batch" --set optim.lr=0.01 \
        --set distributed.warmup_steps=0 --set train.eval_every_epochs=0 \
        --set checkpoint.every_epochs=0 "${data[@]}" "$@" 2>>"$runs/log" || {
        tail -n 20 "$runs/log" >&2
        return 1
    }
}

# images_per_s of a run in a table as CSV
speed() {
    awk -F, -v run="$1" 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "images_per_s") column = i }
        $1 == run { print $column }' <<<"$2"
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }

# reproduce MODEL BANDWIDTH A_FIFTH_OF_IT STEP_TIME BATCH
reproduce() {
    local model=$1 bandwidth=$2 slow=$3 step_time=$4 batch=$5 table
    local fast=("ssgd: ${model}_ssgd.yaml" "ssdsgd: ${model}_ssd.yaml"
        "cdsgd: ${model}_cdsgd.yaml" "bitsgd: ${model}_cdsgd.yaml distributed.variant=bitsgd")
    local slower=("ssdsgd: ${model}_ssd.yaml" "ssdsgd and 2bit: ${model}_ssd.yaml \
distributed.codec.name=2bit distributed.codec.exact_every=5")
    echo
    echo "$model, links of $bandwidth/s, a step computes $step_time, $steps steps"
    echo
    compare "$runs/$model" "$bandwidth" "$step_time" "$batch" --markdown "${fast[@]}"
    table=$(compare "$runs/$model" "$bandwidth" "$step_time" "$batch" --csv "${fast[@]}" | tr -d '\r')
    echo
    echo "ssdsgd is $(ratio "$(speed ssdsgd "$table")" "$(speed ssgd "$table")") times as fast as" \
        "ssgd (the paper: up to 2.1); cdsgd takes" \
        "$(ratio "$(speed bitsgd "$table")" "$(speed cdsgd "$table")") of bitsgd's time (the" \
        "paper: 0.7)."
    echo
    echo "$model, links of $slow/s"
    echo
    compare "$runs/$model-slow" "$slow" "$step_time" "$batch" --markdown "${slower[@]}"
    table=$(compare "$runs/$model-slow" "$slow" "$step_time" "$batch" --csv "${slower[@]}" | tr -d '\r')
    echo
    echo "With the 2bit codec ssdsgd is" \
        "$(ratio "$(speed "ssdsgd and 2bit" "$table")" "$(speed ssdsgd "$table")") times as fast."
}

mkdir -p "$runs"
: >"$runs/log"
models=("$@")
[ $# -gt 0 ] || models=(resnet20 vgg16)
echo "On $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors:" \
    "$(date +%F), $(git rev-parse --short HEAD 2>/dev/null || echo no git)"
for model in "${models[@]}"; do
    case $model in
        resnet20) reproduce resnet20 22Mbit 4.4Mbit 400ms 16 ;;
        vgg16) reproduce vgg16 310Mbit 62Mbit 1500ms 8 ;;
        *)
            echo "reproduce: '$model' is neither resnet20 nor vgg16" >&2
            exit 2
            ;;
    esac
done
