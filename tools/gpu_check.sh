#!/usr/bin/env bash
# Everything that this project says of GPUs, checked on one: builds the CUDA engine, runs its tests,
# measures training steps beside PyTorch's, and prints one table. Under 8 minutes.
#   tools/gpu_check.sh
# A bare machine with nvcc, CMake 3.25 and cuDNN is enough: other libraries are taken from deps/,
# which tools/make_gpu_bundle.sh packs, where they are not installed. PyTorch is $TRAINER_PYTHON's
# (python3's); without it the table has no peer. Results stay in build/gpu/check/.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

started=$SECONDS
budget=480 # seconds
build=build/gpu
results=$build/check
mkdir -p "$results"
failed=0
note() { printf 'gpu_check: %3d s: %s\n' $((SECONDS - started)) "$*" >&2; }
left() { echo $((budget - (SECONDS - started))); }
# Runs a command for at most so many seconds, and never past the budget.
within() {
    local limit=$1
    shift
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    [ "$limit" -gt 0 ] || return 124
    timeout -k 5 "$limit" "$@"
}
# check NAME COMMAND...: a row of the table, its output in a file.
rows=()
check() {
    local name=$1 log status=0
    shift
    log=$results/${name// /_}.log
    within 240 "$@" >"$log" 2>&1 || status=$?
    if [ $status -eq 0 ]; then
        rows+=("$(printf '%-44s passed' "$name")")
    else
        rows+=("$(printf '%-44s FAILED (%s)' "$name" "$log")")
        failed=1
        tail -n 25 "$log" >&2
    fi
}

if ! tools/setup.sh --doctor | tee "$results/doctor.txt" >&2; then
    note "something that is needed is missing (above)"
    exit 1
fi

deps=()
if [ -d deps/usr ]; then
    deps=(-DCMAKE_PREFIX_PATH="$PWD/deps/usr" -DBOOST_ROOT="$PWD/deps/usr")
    libraries=$PWD/deps/usr/lib/$(uname -m)-linux-gnu
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
note "configuring and building for compute capability $capability"
if ! cmake -S . -B $build "${generator[@]}" "${deps[@]}" -DCMAKE_BUILD_TYPE=Release \
    -DTRAINER_CUDA=on -DTRAINER_CUDA_ARCHITECTURES="$capability" -DTRAINER_WITH_OPENCV=OFF \
    -DTRAINER_CPU_BACKEND="${TRAINER_CPU_BACKEND:-auto}" >"$results/configure.log" 2>&1; then
    cat "$results/configure.log" >&2
    exit 1
fi
targets=(trainer engine_cuda bench_step engine_cuda_test engine_cuda_network_test engine_cuda_team_test
    engine_elementwise_test models_gradients_test optim_cuda_test tool_cuda_test)
if ! cmake --build $build -j "$(nproc)" --target "${targets[@]}" >"$results/build.log" 2>&1; then
    tail -n 40 "$results/build.log" >&2
    exit 1
fi

note "testing"
export TRAINER_CUDA_ENGINE=$PWD/$build/tools/trainer/libengine_cuda.so
check "every layer against the reference" $build/tests/engine_cuda_test
check "whole steps, graphs, ranges, errors" $build/tests/engine_cuda_network_test
check "golden gradients of five models" $build/tests/models_gradients_test --gtest_filter='*OnGpu*'
check "arithmetic as on the processor" $build/tests/engine_elementwise_test
check "codecs, local rules, images kept" $build/tests/optim_cuda_test
check "variants, refusals" $build/tests/tool_cuda_test
gpus=$(nvidia-smi --list-gpus | wc -l)
if ! grep -q '^doctor: NCCL  *[0-9]' "$results/doctor.txt"; then
    rows+=("$(printf '%-44s skipped: no NCCL here' "several GPUs")")
elif [ "$gpus" -lt 2 ]; then
    # What one GPU can show: a communicator of one rank.
    check "NCCL with one rank (several need 2 GPUs)" $build/tests/engine_cuda_team_test --gtest_filter='Gpus/CudaGroup*/1'
else
    check "NCCL: teams and groups of up to $gpus GPUs" $build/tests/engine_cuda_team_test
fi
if command -v compute-sanitizer >/dev/null; then
    check "compute-sanitizer on steps" compute-sanitizer --error-exitcode 9 \
        $build/tests/engine_cuda_network_test --gtest_filter='*a_recorded_step*linear:*two_runs*lenet5'
fi

note "measuring"
python=${TRAINER_PYTHON:-python3}
peer=0
"$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && peer=1
[ $peer -eq 1 ] || note "no PyTorch with a GPU: no peer"
value() { sed -n "s/.*\"$1\":[ ]*\([0-9.]*\).*/\1/p"; }
# measure MODEL BATCH LEAST: images a second of ours, of PyTorch's best way, and their ratio, which
# is to be no less than LEAST.
measure() {
    local model=$1 batch=$2 least=$3 ours theirs=0 ratio=-
    ours=$(within 60 $build/tools/bench/step --device cuda --model "$model" --batch "$batch" \
        --precision bf16 --seconds 4 --warm-up 20 2>>"$results/step.err" | tail -n 1 |
        tee -a "$results/step.jsonl" | value images_per_s)
    if [ $peer -eq 1 ]; then
        theirs=$(within 60 "$python" tools/bench/peer_pytorch_gpu.py --model "$model" --batch "$batch" \
            --precision bf16 --seconds 4 --ways graph,eager 2>>"$results/peer.err" |
            tee -a "$results/peer.jsonl" | value images_per_s | sort -n | tail -n 1)
    fi
    if [ -z "$ours" ]; then
        rows+=("$(printf '%-44s FAILED (%s)' "$model b$batch bf16" "$results/step.err")")
        failed=1
        return
    fi
    if [ -n "$theirs" ] && [ "$theirs" != 0 ]; then
        ratio=$(awk "BEGIN {printf \"%.2f\", $ours / $theirs}")
        awk "BEGIN {exit !($ratio < $least)}" && ratio="$ratio, less than $least"
    fi
    rows+=("$(printf '%-44s %10.0f images/s, PyTorch %10.0f, ratio %s' "$model b$batch bf16" "$ours" "${theirs:-0}" "$ratio")")
}
measure resnet20 128 1.5
measure resnet20 512 1.5
measure vgg16 128 1.0
measure resnet50 256 1.0

printf '\n%s\n' "$(grep -m 1 '^doctor: GPU' "$results/doctor.txt")"
printf '%s\n' "${rows[@]}"
note "done"
exit $failed
