#!/usr/bin/env bash
# Installs what the build, the tests and the data need and this machine lacks: packages of
# Debian 12 or 13 or Ubuntu 24.04. Says nothing where nothing is missing. With --cuda it does so
# for the CUDA engine, with --doctor it says what of that is here.
set -euo pipefail
case ${1:-} in --cuda | --doctor) exec "$(dirname "$0")/setup_cuda.sh" "$1" ;; esac

required=(
    g++ cmake ninja-build                       # to build
    libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libboost-dev zlib1g-dev
    libgtest-dev                                # to test
    curl ca-certificates xz-utils               # to fetch data
)
# Without these it builds and trains all the same: without oneDNN slowly, without ISA-L with a
# plain checksum, without OpenSSL with neither TLS nor a shared secret, without the data set's package on CIFAR-10 alone, without protobuf not to ONNX.
optional=(
    libdnnl-dev libisal-dev libssl-dev dataset-fashion-mnist ccache
    libprotobuf-dev protobuf-compiler           # ONNX and TensorBoard
    librsvg2-dev fonts-dejavu-core pkgconf      # plots as PNG
    libopencv-imgcodecs-dev libopencv-imgproc-dev libjpeg-dev  # to decode images
    python3-venv                                # tests with Python's packages
    clang libclang-rt-dev                       # to fuzz
)

note() { echo "setup: $*" >&2; }

# Those of the arguments that are not installed.
missing_of() {
    local installed
    installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
        awk '$2 == "installed" {print $1}') || true
    printf '%s\n' "$@" | grep -vxF -e "$installed" || true
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    note "no Debian or Ubuntu: make sure that you have what Debian calls ${required[*]} ${optional[*]}"
    exit 0
fi

mapfile -t missing < <(missing_of "${required[@]}")
mapfile -t wanted < <(missing_of "${optional[@]}")
if [ $((${#missing[@]} + ${#wanted[@]})) -eq 0 ]; then
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        as_root=(sudo)
    elif [ ${#missing[@]} -eq 0 ]; then
        note "going on without ${wanted[*]}: neither root nor sudo to install them"
        exit 0
    else
        note "neither root nor sudo; as root, run: apt-get install ${missing[*]} ${wanted[*]}"
        exit 1
    fi
fi
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
note "installing ${missing[*]} ${wanted[*]}"
apt update || note "apt-get update failed: $(tail -n 1 "$log"); going on with the lists there are"

if [ ${#missing[@]} -gt 0 ] && ! apt install -y --no-install-recommends "${missing[@]}"; then
    cat "$log" >&2
    note "could not install ${missing[*]} (above: why)"
    exit 1
fi
for package in "${wanted[@]}"; do
    apt install -y --no-install-recommends "$package" ||
        note "going on without $package, which could not be installed: $(tail -n 1 "$log")"
done
