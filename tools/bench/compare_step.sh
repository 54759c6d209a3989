#!/usr/bin/env bash
# Compares training steps with PyTorch's on the same machine, interleaved, since clocks drift:
#   tools/bench/compare_step.sh PROGRAM [CASE...]
# PROGRAM is the built tools/bench/step; a CASE is MODEL:BATCH:THREADS:PRECISION, e.g.
# resnet20:128:2:fp32. $TRAINER_PYTHON (else python3) has PyTorch; $ROUNDS rounds (2) of $SECONDS_EACH
# seconds (6) a form. Prints every measurement as a JSON line, then a table of medians and ratios.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -lt 1 ] || [ ! -x "$1" ]; then
    sed -n '2,6s/^# //p' "$0" >&2
    exit 2
fi
program=$1
shift
threads=$(nproc)
cases=("$@")
if [ ${#cases[@]} -eq 0 ]; then
    cases=("resnet20:128:$threads:fp32" "resnet20:128:$threads:bf16"
        "resnet20:32:$threads:fp32" "resnet20:128:1:fp32" "resnet20:128:1:bf16"
        "resnet50:16:$threads:fp32" "resnet50:16:$threads:bf16"
        "vgg16:128:$threads:fp32" "vgg16:128:$threads:bf16")
fi
python=${TRAINER_PYTHON:-python3}
"$python" -c 'import torch, torchvision' || {
    echo "compare_step: $python has no PyTorch with torchvision; set TRAINER_PYTHON" >&2
    exit 1
}
seconds=${SECONDS_EACH:-6}
results=$(mktemp)
trap 'rm -f "$results"' EXIT

for case in "${cases[@]}"; do
    IFS=: read -r model batch lanes precision <<<"$case"
    common=(--model "$model" --batch "$batch" --threads "$lanes" --precision "$precision"
        --seconds "$seconds" --warm-up 2)
    for ((round = 0; round < ${ROUNDS:-2}; ++round)); do
        for malloc in tuned default; do
            "$program" "${common[@]}" --conv-only | tail -n 1
            for format in nchw channels_last; do
                "$python" "$here/peer_pytorch.py" "${common[@]}" --malloc $malloc \
                    --memory-format $format
            done
        done
    done
done | tee "$results"

"$python" - "$results" <<'END'
import json, statistics, sys

groups = {}
for line in map(json.loads, open(sys.argv[1], encoding="utf-8")):
    case = "{model} b{batch}, {threads} thr., {precision}".format(**line)
    form = "ours" if line["program"] == "trainer" else "{malloc} {memory_format}".format(**line)
    groups.setdefault(case, {}).setdefault(form, []).append(line)
median = lambda lines, key: statistics.median(line[key] for line in lines)
print("\n%-30s %8s %7s  %s" % ("images/s", "ours", "of conv", "PyTorch: form, images/s, ours / it"))
for case, forms in groups.items():
    ours = forms.pop("ours")
    speed = median(ours, "images_per_s")
    peers = {form: median(lines, "images_per_s") for form, lines in forms.items()}
    text = "; ".join("%s %.1f, %.2f" % (f, s, speed / s) for f, s in peers.items())
    print("%-30s %8.1f %6.0f%%  %s" % (case, speed, 100 * median(ours, "share_of_conv_only"), text))
    best = max(peers, key=peers.get)
    print("%-30s %8.0f          %.0f in its fastest form" % (
        "  peak memory, MiB", median(ours, "peak_rss_mib"), median(forms[best], "peak_rss_mib")))
END
