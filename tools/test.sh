#!/usr/bin/env bash
# Sets up, builds everything with warnings as errors, gets the data, and runs every check: the
# tests, the README's commands, who includes whom, the formatting. Its last line counts them.
set -euo pipefail
cd "$(dirname "$0")/.."

passed=0 failed=0 skipped=0
# A check that is a command: its name, then the command.
check() {
    local name=$1
    shift
    if "$@"; then
        echo "test: $name: passed"
        passed=$((passed + 1))
    else
        echo "test: $name: FAILED"
        failed=$((failed + 1))
    fi
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

run_tests() {
    local results=build/ci/results.xml failures=0 all
    rm -f $results
    ctest --test-dir build/ci -j 2 --output-on-failure --no-tests=error \
        --output-junit "$PWD/$results" >build/ci/tests.log 2>&1 || failures=1
    # Only what went wrong, or was not run, and why.
    grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed |^ +Start |^Internal ctest|^Test project' \
        build/ci/tests.log || true
    if [ ! -f $results ]; then
        echo "test: ctest failed: build/ci/tests.log says why"
        failed=$((failed + 1))
        return
    fi
    # ctest writes the counts as attributes of <testsuite>, a line each.
    all=$(tr '\n' ' ' <$results | sed 's/<testsuite/\n&/' | grep '<testsuite' | head -n 1)
    count() { sed -n "s/^<testsuite[^>]*[ \t]$1=\"\([0-9]*\)\".*/\1/p" <<<"$all"; }
    local total bad left_out
    total=$(count tests) bad=$(count failures)
    left_out=$(($(count skipped) + $(count disabled)))
    if [ "$failures" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    passed=$((passed + total - bad - left_out)) failed=$((failed + bad)) skipped=$((skipped + left_out))
}

# shellcheck disable=SC2317  # called through check
check_format() {
    find engine models data comm optim tools tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) \
        -print0 | xargs -0 clang-format --dry-run -Werror
}

# Some tests check our files with Python's own packages: those of $TRAINER_PYTHON, else of an
# environment in build/, which this makes. Without them these tests are skipped.
python_packages() {
    local env=build/pyenv log=build/pyenv.log
    [ -z "${TRAINER_PYTHON:-}" ] || return 0
    mkdir -p build
    if [ ! -x $env/bin/pip ] && ! python3 -m venv --system-site-packages $env >$log 2>&1; then
        echo "test: no Python environment, tests with Python packages are skipped: $(tail -n 1 $log)"
        return 0
    fi
    if ! $env/bin/python -c 'import numpy, onnx, onnxruntime, tensorboard' 2>/dev/null &&
        ! timeout 600 $env/bin/pip install --quiet --retries 1 --timeout 20 \
            numpy onnx onnxruntime tensorboard >$log 2>&1; then
        echo "test: no Python packages, tests with them are skipped: $(tail -n 1 $log)"
    fi
    export TRAINER_PYTHON=$PWD/$env/bin/python
}

check "set-up" tools/setup.sh
check "build without warnings" tools/build.sh ci all
if [ $failed -ne 0 ]; then
    finish
fi

got=0
tools/get_data.sh cifar10 || got=$?
if [ $got -eq 3 ]; then
    echo "test: CIFAR-10 is absent: tests on it are skipped, training is tested on Fashion-MNIST"
elif [ $got -ne 0 ]; then
    check "data" false
fi

python_packages
run_tests
TRAINER_PRESET=ci check "README's commands" tools/check_readme.sh
fuzzed=0
tools/fuzz.sh "${FUZZ_SECONDS:-60}" message_fuzz || fuzzed=$?
mapfile -t others < <(basename -s .cpp tests/fuzz/*_fuzz.cpp | grep -vx message_fuzz)
[ $fuzzed -ne 0 ] || tools/fuzz.sh "${FUZZ_SECONDS:-5}" "${others[@]}" || fuzzed=$?
if [ $fuzzed -eq 77 ]; then
    skipped=$((skipped + 1))
else
    check "fuzzing" test $fuzzed -eq 0
fi
check "who includes whom" tools/check_includes.sh
# Versions of clang-format differ in details: Debian 12's counts.
if command -v clang-format >/dev/null && clang-format --version | grep -q 'version 14\.'; then
    check "formatting" check_format
else
    echo "test: formatting: skipped, clang-format 14 is not installed"
    skipped=$((skipped + 1))
fi
finish
