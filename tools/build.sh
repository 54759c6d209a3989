#!/usr/bin/env bash
# Builds the program and links it as ./trainer, and parse_log, compare and convert in tools:
# tools/build.sh [PRESET [TARGET...]]
# PRESET is one of CMakePresets.json (default: $TRAINER_PRESET, else release); without a TARGET it
# is these four alone. Says nothing but what fails; up to date, it is a matter of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-${TRAINER_PRESET:-release}}
shift $(($# > 0 ? 1 : 0))
targets=("${@:-trainer}")
[ $# -gt 0 ] || targets+=(parse_log compare convert)
mkdir -p build
log=build/$preset.log

# On a terminal the progress of a long build is shown, elsewhere only what went wrong.
build() {
    if [ -t 1 ]; then
        cmake --build --preset "$preset" --target "${targets[@]}"
    else
        cmake --build --preset "$preset" --target "${targets[@]}" >"$log" 2>&1
    fi
}

if [ ! -f "build/$preset/build.ninja" ]; then
    echo "build: configuring and building ($preset), a few minutes the first time" >&2
    if ! cmake --preset "$preset" >"$log" 2>&1; then
        cat "$log" >&2
        echo "build: cmake could not configure (above: why)" >&2
        exit 1
    fi
fi
if ninja -C "build/$preset" -n "${targets[@]}" 2>/dev/null | grep -q 'no work to do'; then
    : # up to date
elif ! build; then
    [ -t 1 ] || grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" >&2 || true
    echo "build: failed (above: why)" >&2
    exit 1
fi

# link NAME TARGET FILE: NAME is a link to TARGET, where FILE has been built.
link() {
    if [ -x "$3" ] && [ "$(readlink "$1" || true)" != "$2" ]; then
        ln -sfn "$2" "$1"
    fi
}
link trainer "build/$preset/tools/trainer/trainer" "build/$preset/tools/trainer/trainer"
for tool in parse_log compare; do
    link "tools/$tool" "../build/$preset/tools/log/$tool" "build/$preset/tools/log/$tool"
done
link tools/convert "../build/$preset/tools/conversion/convert" "build/$preset/tools/conversion/convert"
