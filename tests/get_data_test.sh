#!/usr/bin/env bash
# tools/get_data.sh: every place it looks in, every exit code, and that nothing half stays behind.
# The network is a stub: a `curl` (and, for one test, an `md5sum`) ahead of the real one in PATH.
# shellcheck disable=SC2016 # stubs are scripts in single quotes
set -euo pipefail

script=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/tools/get_data.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
unset TRAINER_DATA
failures=0

# check WHAT COMMAND...: counts a failure where the command fails.
check() {
    local what=$1
    shift
    "$@" || {
        echo "FAILED: $what: $*"
        sed 's/^/    /' out err 2>/dev/null || true
        failures=$((failures + 1))
    }
}

# run CODE ARGUMENTS...: runs the script, expects its exit code; leaves its output in out and err.
run() {
    local expected=$1 code=0
    shift
    "$script" "$@" >out 2>err || code=$?
    check "exit code of '$*' is $code" test "$code" == "$expected"
}

says() { check "message" grep -qF -- "$1" out err; }

# Nothing but the lock and what is named.
holds() {
    local to=$1
    shift
    check "content of $to" diff <(ls -A "$to") <(printf '%s\n' .get_data.lock "$@" | LC_ALL=C sort)
}

# stub NAME: makes a command of standard input.
stub() {
    mkdir -p bin
    { echo '#!/usr/bin/env bash' && cat; } >"bin/$1"
    chmod +x "bin/$1"
}
export PATH="$scratch/bin:$PATH"
stub curl <<<'echo "curl: (6) Could not resolve host" >&2; exit 6'

# Sparse files of the right sizes, told apart by their first bytes.
make_cifar10() { # DIRECTORY MARK
    local name
    mkdir -p "$1"
    for name in data_batch_{1..5} test_batch; do
        echo "$2 $name" >"$1/$name.bin"
        truncate -s 30730000 "$1/$name.bin"
    done
    echo airplane >"$1/batches.meta.txt"
}
is_marked() { check "which files" grep -qaF "$2 data_batch_4" "$1/cifar-10-batches-bin/data_batch_4.bin"; }

make_cifar10 plain/cifar-10-batches-bin plain
make_cifar10 packed/cifar-10-batches-bin packed
tar -C packed -cSzf packed/cifar-10-binary.tar.gz cifar-10-batches-bin
tar -C packed -cSJf packed/cifar-10-binary.tar.xz cifar-10-batches-bin
rm -r packed/cifar-10-batches-bin

# ---- CIFAR: places.
run 3 cifar10 --to a
says "cifar10 cannot be reached: https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
says "Could not resolve host; if you have it, name it with --from or TRAINER_DATA"
check "one line" test "$(wc -l <err)" == 1
holds a

run 0 cifar10 --to a --from plain
is_marked a plain
check "class names" test -f a/cifar-10-batches-bin/batches.meta.txt
run 0 cifar10 --to a
says "cifar10 is in a already"
TRAINER_DATA=packed run 0 cifar10 --to a # not even looked at
is_marked a plain
for from in packed packed/cifar-10-binary.tar.gz packed/cifar-10-binary.tar.xz; do
    run 0 cifar10 --to a --from plain/cifar-10-batches-bin
    is_marked a plain
    run 0 cifar10 --to a --from "$from"
    is_marked a packed
    holds a cifar-10-batches-bin
done
TRAINER_DATA=packed run 0 cifar10 --to b
is_marked b packed
mkdir -p all
ln -s ../plain/cifar-10-batches-bin all/cifar10
TRAINER_DATA=all run 0 cifar10 --to c
is_marked c plain
mkdir empty d
TRAINER_DATA=empty run 3 cifar10 --to d
says "TRAINER_DATA=empty holds no cifar10"
cp packed/cifar-10-binary.tar.gz d
run 0 cifar10 --to d
is_marked d packed

# ---- CIFAR: damage. What was there stays.
cp -r plain damaged
truncate -s 30729999 damaged/cifar-10-batches-bin/data_batch_5.bin
run 1 cifar10 --to a --from damaged
says "damaged/cifar-10-batches-bin/data_batch_5.bin: 30729999 bytes, not 30730000"
tar -C damaged -cSzf short.tar.gz cifar-10-batches-bin
run 1 cifar10 --to a --from short.tar.gz
says "short.tar.gz: corrupt: cifar-10-batches-bin/data_batch_5.bin: 30729999 bytes, not 30730000"
rm damaged/cifar-10-batches-bin/data_batch_5.bin
run 1 cifar10 --to a --from damaged
says "damaged/cifar-10-batches-bin/data_batch_5.bin: no such file"
head -c 300 packed/cifar-10-binary.tar.gz >cut.tar.gz
run 1 cifar10 --to a --from cut.tar.gz
says "cut.tar.gz: cannot be unpacked: "
tar -czf other.tar.gz out
run 1 cifar10 --to a --from other.tar.gz
says "other.tar.gz: corrupt, or not cifar10: it holds no data_batch_1.bin"
holds a cifar-10-batches-bin
is_marked a packed

# An incomplete target is not taken for the data.
rm a/cifar-10-batches-bin/test_batch.bin
run 3 cifar10 --to a
TRAINER_DATA=plain run 0 cifar10 --to a
is_marked a plain

# ---- CIFAR: the network.
stub curl <<<'while [[ $1 != --output ]]; do shift; done; cp packed/cifar-10-binary.tar.gz "$2"'
run 1 cifar10 --to e
says "not c32a1d4ab5d03f1284b67883e8d87530; try again"
holds e
stub md5sum <<<'echo "c32a1d4ab5d03f1284b67883e8d87530  $1"'
run 0 cifar10 --to e
is_marked e packed
holds e cifar-10-batches-bin
rm bin/md5sum

# Killed in the middle of a download: the next run clears up.
stub curl <<<'echo $$ >starting; mv starting started; exec sleep 60'
("$script" cifar10 --to f >/dev/null 2>&1 & echo $! >script.pid)
for ((i = 0; i < 1000; ++i)); do
    [[ ! -f started ]] || break
    sleep 0.01
done
kill -9 "$(cat script.pid)" "$(cat started)"
check "leftover of the kill" test -n "$(find f -name '.get_data.work.*')"
run 0 cifar10 --to f --from packed
holds f cifar-10-batches-bin

# ---- CIFAR-100.
mkdir -p hundred/cifar-100-binary
truncate -s 153700000 hundred/cifar-100-binary/train.bin
truncate -s 30740000 hundred/cifar-100-binary/test.bin
run 0 cifar100 --to g --from hundred
holds g cifar-100-binary
run 2 cifar100 --to g --from plain
says "--from plain: holds no cifar100"

# ---- MNIST and Fashion-MNIST.
mkdir idx
for name in {train,t10k}-{images-idx3,labels-idx1}-ubyte; do
    echo "$name" | gzip >"idx/$name.gz"
done
run 0 mnist --to h --from idx
holds h {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz
run 0 mnist --to h
says "mnist is in h already"
gunzip idx/train-images-idx3-ubyte.gz
TRAINER_DATA=idx run 0 fashion_mnist --to i
holds i train-images-idx3-ubyte {train-labels-idx1,t10k-images-idx3,t10k-labels-idx1}-ubyte.gz
run 0 mnist --to h --from i # the packed one must go
holds h train-images-idx3-ubyte {train-labels-idx1,t10k-images-idx3,t10k-labels-idx1}-ubyte.gz
truncate -s 10 idx/t10k-labels-idx1-ubyte.gz
run 1 mnist --to h --from idx
says "idx/t10k-labels-idx1-ubyte.gz: corrupt: gzip cannot unpack it"
rm idx/t10k-labels-idx1-ubyte.gz
run 1 mnist --to h --from idx
says "idx/t10k-labels-idx1-ubyte[.gz]: no such file; idx is not the whole of mnist"
holds h train-images-idx3-ubyte {train-labels-idx1,t10k-images-idx3,t10k-labels-idx1}-ubyte.gz
stub curl <<<'echo "curl: (22) 404" >&2; exit 22'
run 3 mnist --to j
says "mnist cannot be reached: "

# ---- Usage.
run 0 --help
says "usage: tools/get_data.sh"
run 2
run 2 imagenet
says "unknown data set imagenet; cifar10, cifar100, fashion_mnist or mnist"
run 2 cifar10 --frm x
says "unknown option --frm"
run 2 cifar10 --from
says "--from needs a path"
run 2 cifar10 mnist
run 2 cifar10 --from nowhere
says "--from nowhere: no such file or directory"
touch file
run 1 cifar10 --to file/below --from packed
says "cannot write to file/below; choose another place with --to"

if [[ $failures -gt 0 ]]; then
    echo "$failures checks failed"
    exit 1
fi
echo "all passed"
