#!/usr/bin/env bash
# Packs what a GPU machine without a package manager needs besides nvcc, CMake and cuDNN:
#   tools/make_gpu_bundle.sh [FILE]
# FILE (build/gpu_bundle.tar.xz) holds this repository's sources at HEAD and deps/, a prefix of the
# Debian packages of Boost's headers, yaml-cpp, CLI11, JSON, zlib and GoogleTest for this machine's
# processor. NCCL, which several GPUs need, is five times as large as all that may be, and is taken
# from there, as cuDNN is. There: tar xf FILE && cd trainer && tools/gpu_check.sh
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(realpath -m "${1:-build/gpu_bundle.tar.xz}")
packages=(libboost-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev zlib1g-dev libgtest-dev)
largest_mib=40
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The packages themselves and those of the development files that they stand for: no C library.
mapfile -t wanted < <(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
    --no-breaks --no-replaces --no-enhances "${packages[@]}" | grep -E '^[a-z]' |
    grep -E '^(libboost|libyaml-cpp|libcli11|nlohmann-json3|zlib1g|libgtest|googletest)' | sort -u)
mkdir -p "$work/debs" "$work/trainer/deps"
echo "bundle: fetching ${wanted[*]}" >&2
(cd "$work/debs" && apt-get -qq download "${wanted[@]}")
for package in "$work"/debs/*.deb; do
    dpkg -x "$package" "$work/trainer/deps"
done
# Of Boost only what Asio includes is wanted, and no documentation of anything.
rm -rf "$work/trainer/deps/usr/share/doc" "$work/trainer/deps/usr/share/man"
# Links to places of this machine lead to those of the prefix.
while read -r link; do
    ln -sfr "$work/trainer/deps$(readlink "$link")" "$link"
done < <(find "$work/trainer/deps" -type l -lname '/*')
find "$work/trainer/deps" -xtype l -delete

git archive HEAD | tar -x -C "$work/trainer"
mkdir -p "$(dirname "$out")"
tar -C "$work" -cJf "$out" trainer
size=$(($(stat -c %s "$out") / 1048576))
echo "bundle: $out, $size MiB" >&2
if [ "$size" -gt $largest_mib ]; then
    echo "bundle: larger than $largest_mib MiB" >&2
    exit 1
fi
