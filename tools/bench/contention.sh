#!/usr/bin/env bash
# What is left of training's speed beside a program that keeps every core busy:
#   tools/bench/contention.sh PROGRAM [OPTION...]
# PROGRAM is the built tools/bench/step, with its options, e.g. --model resnet20 --batch 128
# --threads 2 --precision bf16. Measures it alone and beside the other in turn, $ROUNDS (3) rounds,
# and prints each ratio and the median. Both run in sessions of their own, with a thread a core,
# so that a fair scheduler gives each of them half of each core.
set -euo pipefail
if [ $# -lt 1 ] || [ ! -x "$1" ]; then
    sed -n '3,6s/^# //p' "$0" >&2
    exit 2
fi
images_per_s() {
    setsid -w "$@" | tail -n 1 | sed -n 's/.*"images_per_s":\([0-9.]*\).*/\1/p'
}
busy=
trap '[ -z "$busy" ] || kill -- -"$busy"' EXIT
ratios=()
for ((round = 0; round < ${ROUNDS:-3}; ++round)); do
    alone=$(images_per_s "$@")
    setsid bash -c 'for ((i = 1; i < $(nproc); ++i)); do (while :; do :; done) & done
        while :; do :; done' &
    busy=$!
    beside=$(images_per_s "$@")
    kill -- -"$busy"
    wait "$busy" 2>/dev/null || true
    busy=
    ratios+=("$(awk -v a="$alone" -v b="$beside" 'BEGIN { printf "%.3f", b / a }')")
    echo "alone $alone images/s, beside a busy program $beside: ${ratios[-1]}"
done
printf '%s\n' "${ratios[@]}" | sort -n | awk '{ v[NR] = $1 }
    END { print "median " (NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2) }'
