#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each of them, under the address and the undefined
# behaviour sanitizers, for so many seconds (default 60):
#
#   tools/fuzz.sh [SECONDS [TARGET...]]      e.g. tools/fuzz.sh 600 message_fuzz
#
# What is found worth keeping stays in build/fuzz/corpus and is where the next run starts; an input
# that breaks a target stays in build/fuzz, and its name is said. Exit code 77: no clang here.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift $(($# > 0 ? 1 : 0))
compiler=
for name in clang++ clang++-19 clang++-18 clang++-16 clang++-14; do
    if command -v $name >/dev/null &&
        echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
        $name -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; then
        compiler=$name
        break
    fi
done
if [ -z "$compiler" ]; then
    echo "fuzz: no clang with libFuzzer here (Debian: apt install clang libclang-rt-dev)" >&2
    exit 77
fi

targets=("$@")
if [ $# -eq 0 ]; then
    for source in tests/fuzz/*_fuzz.cpp; do
        targets+=("$(basename "$source" .cpp)")
    done
fi
mkdir -p build/fuzz/corpus
log=build/fuzz/build.log
if ! { cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DTRAINER_FUZZ=ON \
    -DTRAINER_CUDA=off -DCMAKE_CXX_COMPILER="$compiler" &&
    cmake --build build/fuzz --target "${targets[@]}"; } >$log 2>&1; then
    tail -n 30 $log >&2
    echo "fuzz: the targets could not be built (above: why)" >&2
    exit 1
fi

failed=0
for target in "${targets[@]}"; do
    mkdir -p "build/fuzz/corpus/$target"
    seeds=()
    [ ! -d "tests/fuzz/corpus/$target" ] || seeds=("tests/fuzz/corpus/$target")
    words=()
    [ ! -f "tests/fuzz/$target.dict" ] || words=("-dict=tests/fuzz/$target.dict")
    if build/fuzz/tests/fuzz/"$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 \
        -artifact_prefix="build/fuzz/$target-" -print_final_stats=1 \
        "${words[@]}" "build/fuzz/corpus/$target" "${seeds[@]}" >"build/fuzz/$target.log" 2>&1; then
        echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' \
            "build/fuzz/$target.log") inputs in $seconds s, clean"
    else
        failed=1
        grep -E 'ERROR|SUMMARY|Test unit written|runtime error' "build/fuzz/$target.log" >&2 || true
        echo "fuzz: $target: FAILED (build/fuzz/$target.log)" >&2
    fi
done
exit $failed
