#!/usr/bin/env bash
# What the CUDA engine needs: tools/setup.sh --doctor says what of it is here, a line each, and
# what what is missing needs; tools/setup.sh --cuda installs what the distribution or pip has of
# toolkit, cuDNN and NCCL, and prints the steps for the rest.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

missing=0
have() { printf 'doctor: %-11s %s\n' "$1" "$2"; }
lack() {
    printf 'doctor: %-11s MISSING: %s\n' "$1" "$2"
    missing=$((missing + 1))
}

nvcc_path() {
    local path
    for path in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_HOME:-}/bin/nvcc" \
        "${CUDA_PATH:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
        [ -n "$path" ] && [ -x "$path" ] && echo "$path" && return
    done
}
toolkit_version() { "$1" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p'; }

# Where find_cuda.cmake looks too; those that --cuda has installed by pip last.
env_dir=build/cudaenv
places() {
    local nvcc root name=$1
    for root in "$2" "${CONDA_PREFIX:-}" ${VIRTUAL_ENV:+"$VIRTUAL_ENV"/lib/python3*/site-packages/nvidia/"$name"}; do
        [ -n "$root" ] && echo "$root"
    done
    nvcc=$(nvcc_path)
    [ -n "$nvcc" ] && dirname "$(dirname "$nvcc")"
    printf '%s\n' /usr /usr/local "$PWD"/$env_dir/lib/python3*/site-packages/nvidia/"$name"
}
first_of() {
    local path
    for path in "$@"; do
        [ -e "$path" ] && echo "$path" && return
    done
}
# find_library NAME HEADER LIBRARY ROOT: prints "HEADER LIBRARY" of the first place that has both.
find_library() {
    local place header library
    while read -r place; do
        header=$(first_of "$place"/include/"$2" "$place"/include/*-linux-gnu/"$2")
        library=$(first_of "$place"/lib64/"$3" "$place"/lib/"$3" "$place"/lib/*-linux-gnu/"$3")
        if [ -n "$header" ] && [ -n "$library" ]; then
            echo "$header $library"
            return
        fi
    done < <(places "$1" "$4")
}
cudnn() { find_library cudnn cudnn_version.h libcudnn.so.9 "${CUDNN_ROOT:-}"; }
nccl() { find_library nccl nccl.h libnccl.so.2 "${NCCL_ROOT:-}"; }
# Whether a program that asks for libnccl.so.2 gets one: the system's, or the one that the engine
# was built beside.
nccl_is_opened() {
    [ -n "${TRAINER_NCCL:-}" ] || ldconfig -p 2>/dev/null | grep -q 'libnccl\.so\.2' ||
        grep -q "^NCCL_LIBRARY:FILEPATH=$1$" build/*/CMakeCache.txt 2>/dev/null ||
        [[ :${LD_LIBRARY_PATH:-}: == *:$(dirname "$1"):* ]]
}
numbers_of() { sed -n "s/^#define $2_\(MAJOR\|MINOR\|PATCHLEVEL\|PATCH\) \([0-9]*\).*/\2/p" "$1" | head -n 3 | paste -sd.; }

doctor() {
    local nvcc found version plugin gpus
    if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' ||
        find ${LD_LIBRARY_PATH:+$(tr : ' ' <<<"$LD_LIBRARY_PATH")} /dev/null -maxdepth 1 -name libcuda.so.1 2>/dev/null | grep -q .; then
        have driver "$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null | head -n 1 | grep . || echo 'libcuda.so.1 is here')"
    else
        lack driver "no libcuda.so.1; install NVIDIA's driver (Debian: nvidia-driver, Ubuntu: ubuntu-drivers install), then restart"
    fi
    if gpus=$(nvidia-smi --query-gpu=index,name,compute_cap,memory.total --format=csv,noheader 2>/dev/null) && [ -n "$gpus" ]; then
        while IFS=, read -r index name capability memory; do
            if awk "BEGIN {exit !($capability >= 7.5)}"; then
                have "GPU $index" "${name# }, compute capability${capability},${memory}"
            else
                lack "GPU $index" "${name# } has compute capability${capability}; CUDA 13 knows 7.5 and later"
            fi
        done <<<"$gpus"
    else
        lack GPU "nvidia-smi names none"
    fi
    nvcc=$(nvcc_path)
    if [ -z "$nvcc" ]; then
        lack toolkit "no nvcc; tools/setup.sh --cuda installs it, or says how to"
    else
        version=$(toolkit_version "$nvcc")
        if [ "${version%%.*}" -ge 12 ]; then
            have toolkit "CUDA $version ($nvcc)"
        else
            lack toolkit "CUDA $version is too old; 12 or newer is needed"
        fi
    fi
    found=$(cudnn)
    if [ -n "$found" ]; then
        have cuDNN "$(numbers_of "${found% *}" CUDNN) (${found#* })"
    else
        lack cuDNN "no cudnn_version.h with libcudnn.so.9; tools/setup.sh --cuda installs it, or set CUDNN_ROOT"
    fi
    found=$(nccl)
    if [ -n "$found" ]; then
        have NCCL "$(numbers_of "${found% *}" NCCL) (${found#* })"
        if ! nccl_is_opened "${found#* }"; then
            have NCCL "not where programs look: export TRAINER_NCCL=${found#* }"
        fi
    else
        have NCCL "not here; only several GPUs together need it (worker.gpus, topology allreduce): tools/setup.sh --cuda installs it, or set NCCL_ROOT"
    fi
    plugin=$(first_of build/*/tools/trainer/libengine_cuda.so)
    if [ -z "$plugin" ]; then
        have engine "not built yet; tools/build.sh builds it where toolkit and cuDNN are here"
    elif ldd "$plugin" | grep -q 'not found'; then
        lack engine "$plugin does not find $(ldd "$plugin" | awk '/not found/ {print $1}' | paste -sd' '); set LD_LIBRARY_PATH"
    else
        have engine "$plugin"
    fi
    [ $missing -eq 0 ]
}

note() { echo "setup: $*" >&2; }
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }
# The first of the packages that apt knows.
known_package() {
    local package
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            echo "$package"
            return
        fi
    done
}
install_package() {
    note "installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >&2
}

# A library of NVIDIA's by apt, else by pip: install_library NAME PIP_NAME APT_PACKAGE...
install_library() {
    local name=$1 wheel=$2 package
    shift 2
    package=$(known_package "$@")
    if [ -n "$package" ] && install_package "$package"; then
        return
    fi
    note "installing $wheel with pip in $env_dir"
    if { [ -x $env_dir/bin/pip ] || python3 -m venv $env_dir; } && $env_dir/bin/pip install --quiet "$wheel"; then
        return
    fi
    note "could not install $name; NVIDIA's page for it says how, and ${name^^}_ROOT where it is"
    return 1
}

install() {
    local nvcc major package failed=0
    command -v apt-get >/dev/null && apt_there=1 || apt_there=0
    if [ -z "$(nvcc_path)" ]; then
        package=$([ "$apt_there" -eq 1 ] && known_package cuda-toolkit-13-0 cuda-toolkit-12-9 cuda-toolkit)
        if [ -z "$package" ] || ! install_package "$package"; then
            note "no CUDA Toolkit 12 or newer among this distribution's packages. Its steps:"
            note "  1. add NVIDIA's repository for this distribution, as the CUDA Installation Guide for Linux says"
            note "  2. apt-get update && apt-get install cuda-toolkit-13-0"
            note "  3. tools/setup.sh --cuda again, for cuDNN and NCCL"
            return 1
        fi
    fi
    nvcc=$(nvcc_path)
    major=$(toolkit_version "$nvcc")
    major=${major%%.*}
    [ -n "$(cudnn)" ] || install_library cudnn "nvidia-cudnn-cu$major" "libcudnn9-dev-cuda-$major" "cudnn9-cuda-$major" || failed=1
    # Its header to build with, and the library to open; nothing else is left out without it.
    [ -n "$(nccl)" ] || install_library nccl "nvidia-nccl-cu$major" libnccl-dev ||
        note "without NCCL a worker has one GPU, and GPUs no topology allreduce"
    if [ -d $env_dir ]; then
        note "what pip installed is found with: export VIRTUAL_ENV=$PWD/$env_dir"
    fi
    [ $failed -eq 0 ] && doctor
}

case ${1:-} in
--doctor) doctor ;;
--cuda) install ;;
*)
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
    ;;
esac
