#!/usr/bin/env bash
# Runs the commands of README.md (its ```sh blocks), each cut short: training stops after a few
# steps and writes to a scratch folder. A line a command; then "README: N passed, N failed, N
# skipped". Exits with 1 where one failed.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0 skipped=0

# Commands, one a line, continued lines joined, without comments.
commands() {
    awk '/^```/ { inside = $0 == "```sh"; next } inside' README.md |
        sed -e ':join' -e '/\\$/ { N; s/\\\n */ /; b join; }' -e 's/[ \t]\+#.*//' -e '/^#/d' -e '/^ *$/d'
}

# A handful of photographs in ImageNet's layout, for the commands on it; empty without a sample.
imagenet() {
    local sample=${TRAINER_DATA:-}/imagenet-sample/train
    [ -d "$sample" ] || return 0
    if [ ! -d "$scratch/ILSVRC2012" ]; then
        mkdir "$scratch/ILSVRC2012"
        cp -r "$sample" "$scratch/ILSVRC2012/train"
        cp -r "$sample" "$scratch/ILSVRC2012/val"
    fi
    echo "$scratch/ILSVRC2012"
}

# The command, short: what it writes goes to the scratch folder, and training stops early.
cut_short() {
    local command=${1//runs\//$scratch/runs/}
    command=${command//\/data\/ILSVRC2012/$scratch/ILSVRC2012}
    command=${command//data\/imagenet/$scratch/imagenet}
    if [[ $command =~ ^(tools/train\.sh|tools/launch_local\.sh|\./trainer)\ .*--config[\ =]([A-Za-z0-9_/]+)\.yaml ]] &&
        [[ $command != *--print-config* ]]; then
        local run=$scratch/runs/${BASH_REMATCH[2]##*/}
        [[ $command == *checkpoint.dir=* ]] ||
            command+=" --set checkpoint.dir=$run --set log.dir=$run"
        [[ $command == "./trainer eval "* ]] || command+=" --set train.max_steps=3"
        [[ $command != *_imagenet.yaml* ]] ||
            command+=" --set data.dir=$scratch/imagenet --set data.batch_size=8"
    elif [[ $command == tools/compare\ *.yaml* ]]; then
        command+=" --runs $scratch/runs/compare --set train.max_steps=3"
    elif [[ $command == tools/drill.sh* ]]; then
        command+=" --faults 5"
    elif [[ $command == tools/reproduce.sh* ]]; then
        command="STEPS=2 RUNS=$scratch/runs/reproduce $command resnet20"
    fi
    echo "$command"
}

# Why a command is not run here; empty where it is.
reason_to_skip() {
    case $1 in
        *tools/test.sh* | .ci/run*) echo "it is what runs this" ;;
        git\ * | cd\ * | sudo\ *) echo "it changes more than this folder" ;;
        *fashion_mnist*) ;;
        *imagenet*) [ -n "$(imagenet)" ] || echo "no photographs here" ;;
        "./trainer "*resnet20*.yaml* | "tools/launch_local.sh "*resnet20*.yaml* | \
            "tools/compare "*resnet20*.yaml*)
            [[ $1 == *--print-config* ]] || [ -n "$(find data/cifar10 -name test_batch.bin 2>/dev/null)" ] ||
                echo "no CIFAR-10 here" ;;
    esac
}

while IFS= read -r command; do
    why=$(reason_to_skip "$command")
    if [ -n "$why" ]; then
        echo "  skipped: $command ($why)"
        skipped=$((skipped + 1))
        continue
    fi
    short=$(cut_short "$command")
    if bash -euo pipefail -c "$short" >"$scratch/log" 2>&1 </dev/null; then
        echo "  passed:  $command"
        passed=$((passed + 1))
    else
        echo "  FAILED:  $command, run as: $short"
        tail -n 30 "$scratch/log"
        failed=$((failed + 1))
    fi
done < <(commands)

if [ $((passed + failed)) -eq 0 ]; then
    echo "README.md has no command that could be run"
    failed=1
fi
echo "README: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
