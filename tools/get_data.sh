#!/usr/bin/env bash
# Puts a data set where the trainer looks for it: from a local place, Debian's package or the
# official archive. Nothing half is ever left under the final name, whenever it is interrupted.
set -euo pipefail

usage() {
    cat <<'END'
usage: tools/get_data.sh cifar10|cifar100|fashion_mnist|mnist [--from PATH] [--to DIR]

  --from PATH  an archive, or a directory that holds one or what it unpacks to
  --to DIR     where to put it; default: data/<data set> of this project

Without --from: what is there already; else $TRAINER_DATA, a PATH like --from's; else
fashion_mnist from Debian's package dataset-fashion-mnist, the others from the network
(CIFAR: unless the archive lies in DIR).

Exit codes: 0 the data is there, 1 it is corrupt or cannot be written, 2 wrong usage,
3 it cannot be reached.
END
}

say() { echo "get_data.sh: $*"; }

# fail CODE MESSAGE...
fail() {
    local code=$1
    shift
    echo "get_data.sh: $*" >&2
    exit "$code"
}

# ---- What each data set is: files it needs, their sizes, where it comes from.

# Sets subdirectory, archive, url and md5, and the arrays files and sizes.
describe_cifar() {
    case $1 in
        cifar10)
            subdirectory=cifar-10-batches-bin
            archive=cifar-10-binary
            md5=c32a1d4ab5d03f1284b67883e8d87530
            files=(data_batch_{1..5}.bin test_batch.bin)
            sizes=(30730000 30730000 30730000 30730000 30730000 30730000)
            ;;
        cifar100)
            subdirectory=cifar-100-binary
            archive=cifar-100-binary
            md5=03b5dce01913d631647c71ecec9e9cb8
            files=(train.bin test.bin)
            sizes=(153700000 30740000)
            ;;
    esac
    url=https://www.cs.toronto.edu/~kriz/$archive.tar.gz
}

idx_files=({train,t10k}-{images-idx3,labels-idx1}-ubyte)
mnist_url=https://ossci-datasets.s3.amazonaws.com/mnist
mnist_md5=(f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432
    9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c)
debian_fashion_mnist=/usr/share/datasets/fashion-mnist

# ---- Files.

# Takes the lock of directory $to, clears what killed runs left, makes the work directory $work.
open_work_directory() {
    { mkdir -p "$to" && : >>"$to/.get_data.lock"; } 2>/dev/null ||
        fail 1 "cannot write to $to; choose another place with --to"
    exec {lock}>>"$to/.get_data.lock"
    flock "$lock"
    rm -rf "$to"/.get_data.work.*
    work=$(mktemp -d "$to/.get_data.work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP
}

# md5_of FILE
md5_of() { md5sum "$1" | cut -d ' ' -f 1; }

# download URL FILE MD5: fetches to FILE and checks it.
download() {
    local message code=0
    if command -v curl >/dev/null; then
        message=$(curl --fail --location --silent --show-error --retry 3 --retry-delay 2 \
            --connect-timeout 15 --speed-limit 1000 --speed-time 30 --output "$2" "$1" 2>&1) ||
            code=$?
        [[ $code != 23 ]] || fail 1 "cannot write $1 to $to (disk full?)"
    elif command -v wget >/dev/null; then
        message=$(wget --no-verbose --tries=3 --timeout=15 --output-document="$2" "$1" 2>&1) ||
            code=$?
        [[ $code != 3 ]] || fail 1 "cannot write $1 to $to (disk full?)"
    else
        fail 3 "$dataset cannot be reached: neither curl nor wget is installed"
    fi
    [[ $code == 0 ]] || fail 3 "$dataset cannot be reached: $1: $(tail -n 1 <<<"$message");" \
        "if you have it, name it with --from or TRAINER_DATA"
    [[ $(md5_of "$2") == "$3" ]] || fail 1 "$1: corrupt: its $(wc -c <"$2") bytes have md5" \
        "$(md5_of "$2"), not $3; try again"
}

# ---- CIFAR.

# wrong_file DIRECTORY: names the first needed file that is missing or has a wrong size.
wrong_file() {
    local i size
    for i in "${!files[@]}"; do
        [[ -f $1/${files[i]} ]] || {
            echo "$1/${files[i]}: no such file"
            return
        }
        size=$(stat -L -c %s "$1/${files[i]}")
        [[ $size == "${sizes[i]}" ]] || {
            echo "$1/${files[i]}: $size bytes, not ${sizes[i]}"
            return
        }
    done
}

# find_cifar PLACE: the directory of the files or the archive there, if any.
find_cifar() {
    local directory extension
    [[ ! -f $1 ]] || {
        echo "$1"
        return
    }
    for directory in "$1/$subdirectory" "$1/$dataset/$subdirectory" "$1/$dataset" "$1"; do
        [[ ! -f $directory/${files[0]} ]] || {
            echo "$directory"
            return
        }
    done
    for directory in "$1" "$1/$dataset"; do
        for extension in tar.gz tar.xz; do
            [[ ! -f $directory/$archive.$extension ]] || {
                echo "$directory/$archive.$extension"
                return
            }
        done
    done
}

# unpack ARCHIVE: to the work directory.
unpack() {
    local message
    [[ $1 != *.xz ]] || command -v xz >/dev/null ||
        fail 1 "$1 needs xz to unpack; install it (Debian: xz-utils)"
    say "unpacking $1"
    message=$(tar -xf "$1" -C "$work" --no-same-owner 2>&1) ||
        fail 1 "$1: cannot be unpacked: $(head -n 1 <<<"$message")"
}

# install_cifar SOURCE: checks a directory or archive and moves its files to $to/$subdirectory.
install_cifar() {
    local source=$1 wrong file first
    if [[ -d $source ]]; then
        wrong=$(wrong_file "$source")
        [[ -z $wrong ]] || fail 1 "$wrong; $source is not the whole of $dataset"
        say "copying $source"
        mkdir "$work/$subdirectory"
        for file in "${files[@]}"; do
            cp "$source/$file" "$work/$subdirectory" || fail 1 "cannot copy $source to $to"
        done
        cp "$source"/*.txt "$work/$subdirectory" 2>/dev/null || true # class names
    else
        unpack "$source"
    fi
    first=$(find "$work" -name "${files[0]}" -print -quit)
    [[ -n $first ]] || fail 1 "$source: corrupt, or not $dataset: it holds no ${files[0]}"
    local directory=${first%/*}
    wrong=$(wrong_file "$directory")
    [[ -z $wrong ]] || fail 1 "$source: corrupt: ${wrong#"$work/"}"
    chmod -R u+rwX "$directory"
    sync -f "$work"
    [[ ! -e $to/$subdirectory ]] || mv "$to/$subdirectory" "$work/replaced"
    mv "$directory" "$to/$subdirectory"
    say "$dataset is in $to"
}

# in_place_cifar: whether the target has it already.
in_place_cifar() {
    [[ -z $(wrong_file "$to/$subdirectory") || -z $(wrong_file "$to") ]]
}

fetch_cifar() {
    local file
    for file in "$to/$archive".tar.{gz,xz}; do
        [[ ! -f $file ]] || {
            install_cifar "$file"
            return
        }
    done
    file=$work/$archive.tar.gz
    say "downloading $url"
    download "$url" "$file" "$md5"
    install_cifar "$file"
}

# ---- MNIST and Fashion-MNIST.

# idx_file DIRECTORY NAME: its path there, plain or packed, if any.
idx_file() {
    if [[ -f $1/$2 ]]; then
        echo "$1/$2"
    elif [[ -f $1/$2.gz ]]; then
        echo "$1/$2.gz"
    fi
}

# missing_idx DIRECTORY: names the first needed file that is not there.
missing_idx() {
    local name
    for name in "${idx_files[@]}"; do
        [[ -n $(idx_file "$1" "$name") ]] || {
            echo "$1/${name}[.gz]: no such file"
            return
        }
    done
}

# find_idx PLACE: the directory of the files there, if any. Another set's files have the same
# names, so directories named after this one come first.
find_idx() {
    local directory
    for directory in "$1/$dataset" "$1/${dataset/_/-}" "$1"; do
        [[ -z $(idx_file "$directory" "${idx_files[0]}") ]] || {
            echo "$directory"
            return
        }
    done
}

# install_idx DIRECTORY: checks its files and moves copies to $to.
install_idx() {
    local wrong name file
    wrong=$(missing_idx "$1")
    [[ -z $wrong ]] || fail 1 "$wrong; $1 is not the whole of $dataset"
    say "copying $1"
    mkdir "$work/files"
    for name in "${idx_files[@]}"; do
        file=$(idx_file "$1" "$name")
        if [[ $file == *.gz ]]; then
            gzip --test "$file" 2>/dev/null || fail 1 "$file: corrupt: gzip cannot unpack it"
        fi
        cp "$file" "$work/files" || fail 1 "cannot copy $file to $to"
    done
    place_idx "$work/files"
}

# place_idx DIRECTORY: moves its files to $to, in place of those that are there.
place_idx() {
    sync -f "$1"
    local name
    for name in "${idx_files[@]}"; do
        rm -f "$to/$name" "$to/$name.gz"
    done
    mv "$1"/* "$to"
    say "$dataset is in $to"
}

in_place_idx() { [[ -z $(missing_idx "$to") ]]; }

fetch_mnist() {
    local i
    mkdir "$work/files"
    for i in "${!idx_files[@]}"; do
        say "downloading $mnist_url/${idx_files[i]}.gz"
        download "$mnist_url/${idx_files[i]}.gz" "$work/files/${idx_files[i]}.gz" "${mnist_md5[i]}"
    done
    place_idx "$work/files"
}

fetch_fashion_mnist() {
    [[ -n $(find_idx "$debian_fashion_mnist") ]] || install_debian_package
    install_idx "$debian_fashion_mnist"
}

install_debian_package() {
    local package=dataset-fashion-mnist as_root=()
    local hint="install Debian's package $package, or name the files with --from or TRAINER_DATA"
    command -v apt-get >/dev/null || fail 3 "fashion_mnist cannot be reached: no apt-get; $hint"
    if [[ $EUID != 0 ]]; then
        # sudo may ask for a password only where somebody is there to type it.
        if ! command -v sudo >/dev/null || { [[ ! -t 0 ]] && ! sudo -n true 2>/dev/null; }; then
            fail 3 "fashion_mnist cannot be reached: not root, and no sudo; $hint"
        fi
        as_root=(sudo)
    fi
    say "installing Debian's package $package"
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get -qq install --yes --no-install-recommends "$package")
    "${install[@]}" >/dev/null 2>&1 ||
        { "${as_root[@]}" apt-get -qq update >/dev/null 2>&1 && "${install[@]}" >/dev/null 2>&1; } ||
        fail 3 "fashion_mnist cannot be reached: apt-get cannot install it; $hint"
}

# ---- The command line.

dataset=''
from=''
to=''
while [[ $# -gt 0 ]]; do
    case $1 in
        --from | --to)
            [[ $# -ge 2 && -n $2 ]] || fail 2 "$1 needs a path; see --help"
            [[ $1 == --from ]] && from=$2 || to=$2
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        -*) fail 2 "unknown option $1; see --help" ;;
        *)
            [[ -z $dataset ]] || fail 2 "one data set at a time, not $dataset and $1; see --help"
            dataset=$1
            ;;
    esac
    shift
done

case $dataset in
    cifar10 | cifar100)
        describe_cifar "$dataset"
        kind=cifar fetch=fetch_cifar
        ;;
    mnist) kind=idx fetch=fetch_mnist ;;
    fashion_mnist) kind=idx fetch=fetch_fashion_mnist ;;
    '') fail 2 "which data set? cifar10, cifar100, fashion_mnist or mnist; see --help" ;;
    *) fail 2 "unknown data set $dataset; cifar10, cifar100, fashion_mnist or mnist" ;;
esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
to=${to:-$root/data/$dataset}

if [[ -n $from ]]; then
    [[ -e $from ]] || fail 2 "--from $from: no such file or directory"
    source=$("find_$kind" "$from")
    [[ -n $source ]] || fail 2 "--from $from: holds no $dataset"
    open_work_directory
    "install_$kind" "$source"
    exit 0
fi

if "in_place_$kind"; then
    say "$dataset is in $to already"
    exit 0
fi
open_work_directory
if "in_place_$kind"; then # another run has just put it there
    say "$dataset is in $to already"
    exit 0
fi
if [[ -n ${TRAINER_DATA:-} ]]; then
    source=$("find_$kind" "$TRAINER_DATA")
    if [[ -n $source ]]; then
        "install_$kind" "$source"
        exit 0
    fi
    say "TRAINER_DATA=$TRAINER_DATA holds no $dataset"
fi
"$fetch"
