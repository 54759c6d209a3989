#!/usr/bin/env bash
# Sets up, builds, gets the data and trains: tools/train.sh --config NAME.yaml [more of ./trainer]
# Where CIFAR-10 cannot be had, it says so and trains the same config on Fashion-MNIST, which
# Debian packages.
set -euo pipefail

# A config given by its path keeps its meaning when we go to the root.
arguments=("$@")
for ((i = 0; i < $#; ++i)); do
    case ${arguments[i]} in
        --config) [ -f "${arguments[i + 1]:-}" ] && arguments[i + 1]=$(realpath "${arguments[i + 1]}") ;;
        --config=*) file=${arguments[i]#--config=}
            [ -f "$file" ] && arguments[i]=--config=$(realpath "$file") ;;
    esac
done
cd "$(dirname "$0")/.."

tools/setup.sh
tools/build.sh

# The value of a key two deep in the config in force, e.g. value_of data dir.
value_of() {
    awk -v group="$1:" -v key="  $2:" '
        /^[^ ]/ { inside = $1 == group }
        inside && index($0, key " ") == 1 { print substr($0, length(key) + 2) }
    ' <<<"$in_force" | sed 's/^"\(.*\)"$/\1/'
}

in_force=$(./trainer "${arguments[@]}" --print-config)
dataset=$(value_of data dataset)
dir=$(value_of data dir)

case $dataset in
    cifar10 | cifar100 | mnist | fashion_mnist)
        got=0
        tools/get_data.sh "$dataset" --to "$dir" || got=$?
        ;;
    *) got=0 ;;
esac
if [ $got -eq 3 ] && [ "$dataset" = cifar10 ]; then
    other=data/fashion_mnist
    echo "train: CIFAR-10 is not in $dir and cannot be reached from here: TRAINING ON" \
        "FASHION-MNIST INSTEAD (--set data.dataset=fashion_mnist --set data.dir=$other)" >&2
    got=0
    tools/get_data.sh fashion_mnist --to "$other" || got=$?
    # Folders of their own, so that the runs of two data sets never mix.
    arguments+=(--set data.dataset=fashion_mnist --set "data.dir=$other"
        --set "checkpoint.dir='$(value_of checkpoint dir)_fashion_mnist'"
        --set "log.dir='$(value_of log dir)_fashion_mnist'")
fi
if [ $got -ne 0 ]; then
    echo "train: no $dataset to train on (above: why)" >&2
    exit 1
fi

exec ./trainer "${arguments[@]}"
