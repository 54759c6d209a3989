#!/usr/bin/env bash
# Everything that this project says of GPUs, checked on one: builds the CUDA engine, runs its tests,
# measures training steps beside PyTorch's, and prints one table. Under 8 minutes.
#   tools/gpu_check.sh
# A bare machine with nvcc, CMake 3.25 and cuDNN is enough: other libraries are taken from deps/,
# which tools/make_gpu_bundle.sh packs, where they are not installed. PyTorch is $TRAINER_PYTHON's
# (python3's); without it the table has no peer. What cannot be done here has a row that says why;
# exits with 1 where a row says FAILED, or there is no GPU. Results stay in build/gpu/check/.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

started=$SECONDS
budget=480   # seconds
measuring=130 # of them kept for the measurements
build=build/gpu
results=$build/check
rm -rf "$results"
mkdir -p "$results"
note() { printf 'gpu_check: %3d s: %s\n' $((SECONDS - started)) "$*" >&2; }
left() { echo $((budget - (SECONDS - started))); }
# within LIMIT COMMAND...: for so many seconds at most, and never past what is left; 124 where that
# was not enough.
within() {
    local limit=$1
    shift
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    [ "$limit" -gt 0 ] || return 124
    timeout -k 5 "$limit" "$@"
}

# The table: printed at the end, whatever that is.
rows=()
failed=0
row() { rows+=("$(printf '%-44s %s' "$1" "$2")"); }
fail() {
    row "$1" "FAILED $2"
    failed=1
}
print_table() {
    printf '\n%s\n' "$(grep -m 1 '^doctor: GPU' "$results/doctor.txt")"
    printf '%s\n' "${rows[@]}"
    note "done"
    exit $failed
}
trap print_table EXIT
trap 'row "the rest" "not run: interrupted"; failed=1; exit' INT TERM

# step NAME SECONDS COMMAND...: a row, its output in a file.
step() {
    local name=$1 limit=$2 log status=0 begun=$SECONDS
    shift 2
    log=$results/${name//[^a-zA-Z0-9]/_}.log
    within "$limit" "$@" >"$log" 2>&1 || status=$?
    if [ $status -eq 0 ]; then
        if ! grep -q '^\[  PASSED  \] 0 tests' "$log"; then
            row "$name" "passed in $((SECONDS - begun)) s$(counts "$log")"
        elif [ "$gpus" -eq 0 ]; then
            row "$name" "skipped$(counts "$log")"
        else
            fail "$name" "(nothing was tested$(counts "$log"))"
        fi
        return
    fi
    [ $status -ne 124 ] || log="stopped after $((SECONDS - begun)) s, $log"
    fail "$name" "($log)"
    tail -n 25 "${log##*, }" >&2
    return 1
}
# Of what GoogleTest has written: how many tests, and why others were left out.
counts() {
    local passed skipped
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$1")
    skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$1")
    [ -n "$passed" ] && printf ': %s tests' "$passed"
    [ -n "$skipped" ] && printf ', %s skipped (%s)' "$skipped" \
        "$(grep -m 1 -E '^(needs|this) ' "$1" | cut -c -100)"
}
# Tests, which leave time to measure.
check() {
    local name=$1 limit=$(($(left) - measuring))
    shift
    [ $limit -lt 240 ] || limit=240
    if [ $limit -gt 0 ]; then step "$name" $limit "$@"; else row "$name" "not run: no time left"; fi
}

tools/setup.sh --doctor 2>&1 | tee "$results/doctor.txt" >&2 ||
    note "something is missing (above): goes as far as it can"
gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU')
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
if [ "$gpus" -eq 0 ]; then
    row "a GPU" "not here: what needs one is left out"
    failed=1
fi

deps=()
if [ -d deps/usr ]; then
    deps=(-DCMAKE_PREFIX_PATH="$PWD/deps/usr" -DBOOST_ROOT="$PWD/deps/usr")
    libraries=$PWD/deps/usr/lib/$(uname -m)-linux-gnu:$PWD/deps/lib/$(uname -m)-linux-gnu
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
note "configuring and building for ${capability:+compute capability }${capability:-the usual GPUs}"
step "configured" 60 cmake -S . -B $build "${generator[@]}" "${deps[@]}" -DCMAKE_BUILD_TYPE=Release \
    -DTRAINER_CUDA=on -DTRAINER_CUDA_ARCHITECTURES="${capability:-default}" -DTRAINER_WITH_OPENCV=OFF \
    -DTRAINER_CPU_BACKEND="${TRAINER_CPU_BACKEND:-auto}" || exit
targets=(trainer engine_cuda bench_step engine_cuda_test engine_cuda_network_test engine_cuda_team_test
    engine_elementwise_test models_gradients_test optim_cuda_test tool_cuda_test)
step "built" 300 cmake --build $build -j "$(nproc)" --target "${targets[@]}" || exit

note "testing"
export TRAINER_CUDA_ENGINE=$PWD/$build/tools/trainer/libengine_cuda.so
check "every layer against the reference" $build/tests/engine_cuda_test
check "whole steps, graphs, ranges, errors" $build/tests/engine_cuda_network_test
check "golden gradients of five models" $build/tests/models_gradients_test --gtest_filter='*OnGpu*'
check "arithmetic as on the processor" $build/tests/engine_elementwise_test
check "codecs, local rules, images kept" $build/tests/optim_cuda_test
check "variants, refusals" $build/tests/tool_cuda_test
if ! grep -q '^doctor: NCCL  *[0-9]' "$results/doctor.txt"; then
    row "several GPUs" "skipped: no NCCL here"
elif [ "$gpus" -lt 2 ]; then
    # What one GPU can show: a communicator of one rank.
    check "NCCL with one rank (several need 2 GPUs)" $build/tests/engine_cuda_team_test --gtest_filter='Gpus/CudaGroup*/1'
else
    check "NCCL: teams and groups of up to $gpus GPUs" $build/tests/engine_cuda_team_test
fi
nvcc=$(sed -n 's/^doctor: toolkit .*(\(.*\))$/\1/p' "$results/doctor.txt")
sanitizer=$(command -v compute-sanitizer "${nvcc%nvcc}compute-sanitizer" | head -n 1)
if [ "$gpus" -eq 0 ]; then
    row "compute-sanitizer on steps" "skipped: no GPU"
elif [ -n "$sanitizer" ]; then
    # What libraries ask the driver for, and it has not, is no error of ours.
    check "compute-sanitizer on steps" "$sanitizer" --error-exitcode 9 --report-api-errors no \
        $build/tests/engine_cuda_network_test --gtest_filter='*a_recorded_step*linear:*two_runs*lenet5'
else
    row "compute-sanitizer on steps" "skipped: no compute-sanitizer here"
fi

python=${TRAINER_PYTHON:-python3}
peer=0
value() { sed -n "s/.*\"$1\":[ ]*\([0-9.]*\).*/\1/p"; }
# measure MODEL BATCH LEAST: images a second of ours, of PyTorch's best way, and their ratio, which
# is to be no less than LEAST.
measure() {
    local model=$1 batch=$2 least=$3 ours theirs=0 ratio=-
    local name="$model b$batch bf16"
    if [ "$gpus" -eq 0 ]; then
        row "$name" "skipped: no GPU"
        return
    fi
    ours=$(within 60 $build/tools/bench/step --device cuda --model "$model" --batch "$batch" \
        --precision bf16 --seconds 4 --warm-up 20 2>>"$results/step.err" | tail -n 1 |
        tee -a "$results/step.jsonl" | value images_per_s)
    if [ -z "$ours" ]; then
        fail "$name" "($results/step.err, $(left) s were left)"
        return
    fi
    if [ $peer -eq 1 ]; then
        theirs=$(within 60 "$python" tools/bench/peer_pytorch_gpu.py --model "$model" --batch "$batch" \
            --precision bf16 --seconds 4 --ways graph,eager 2>>"$results/peer.err" |
            tee -a "$results/peer.jsonl" | value images_per_s | sort -n | tail -n 1)
    fi
    if [ -n "$theirs" ] && [ "$theirs" != 0 ]; then
        ratio=$(awk "BEGIN {printf \"%.2f\", $ours / $theirs}")
        awk "BEGIN {exit !($ratio < $least)}" && ratio="$ratio, less than $least"
    fi
    row "$name" "$(printf '%10.0f images/s, PyTorch %10.0f, ratio %s' "$ours" "${theirs:-0}" "$ratio")"
    [ "$name" != "$whole" ] || synthetic=$ours
}
# A whole training with its data, beside the steps alone; it is to be as fast but for a twentieth.
whole="resnet20 b128 bf16"
synthetic=
measure_whole() {
    local log=$results/whole.log ours
    [ -n "$synthetic" ] || return
    within 60 $build/tools/trainer/trainer --config configs/resnet20.yaml --set device=cuda --set precision=bf16 \
        --set data.dataset=synthetic --set data.batch_size=128 --set train.epochs=1000 \
        --set train.max_steps=6400 --set train.eval_every_epochs=0 --set checkpoint.every_epochs=0 \
        --set checkpoint.resume=never --set checkpoint.dir="$results/whole" --set log.dir="$results/whole" >"$log" 2>&1
    ours=$(sed -n 's/.*, \([0-9]*\) images\/s in training.*/\1/p' "$log")
    if [ -z "$ours" ]; then
        fail "a whole training, $whole" "($log, $(left) s were left)"
        return
    fi
    row "a whole training, $whole" "$(printf '%10.0f images/s, %.2f of its steps alone, to be 0.95' "$ours" \
        "$(awk "BEGIN {print $ours / $synthetic}")")"
}
if [ "$gpus" -gt 0 ]; then
    note "measuring"
    within 60 "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && peer=1
    [ $peer -eq 1 ] || row "PyTorch" "not here with a GPU ($python): no peer"
fi
measure resnet20 128 1.5
measure_whole
measure resnet20 512 1.5
measure vgg16 128 1.0
measure resnet50 256 1.0
