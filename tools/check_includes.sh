#!/usr/bin/env bash
# Checks who includes whom: a folder includes only those it may, and each third-party library is
# included behind its one door. Prints each breach as file:line, and
# exits with 1 where there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck disable=SC2016  # the dollars are awk's
find engine models data comm optim tools \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \
    -o -name '*.cuh' \) -print0 | sort -z | xargs -0 awk '
    BEGIN {
        # Folder: the folders of this project that it may include.
        may["engine"] = "engine"
        may["models"] = "engine models"
        may["data"] = "engine data"
        may["comm"] = "engine comm"
        may["optim"] = "engine comm optim"
        may["tools"] = "engine models data comm optim tools"

        # Header, as a regular expression: where it may be included, likewise.
        door["^(oneapi/)?dnnl"] = "^engine/cpu/"
        door["^(cuda|cudnn|cublas|cuda_runtime|nv[^/]*/)"] = "^engine/cuda/"
        door["^nccl"] = "^engine/cuda/"
        door["^boost/asio|^openssl/|^gloo/"] = "^(comm|tools/bench)/"
        door["^yaml-cpp/"] = "^tools/trainer/"
        door["^CLI/"] = "^tools/"
        door["^opencv2/"] = "^(data|tools/bench)/"
        door["^(jpeglib|jerror)"] = "^data/jpeg[.]cpp$"
        door["^librsvg/|^cairo"] = "^tools/log/"
        door["^google/protobuf/|[.]pb[.]h$"] = "^tools/trainer/(event_file|onnx_export)[.]cpp$"
    }
    function breach(why) { print FILENAME ":" FNR ": " why; breaches++ }

    /^[ \t]*#[ \t]*include[ \t]*["<]/ {
        split($0, parts, /["<>]/)
        header = parts[2]
        split(FILENAME, path, "/")
        split(header, target, "/")
        allowed = " " may[path[1]] " "
        if (FILENAME ~ /^optim\/worker/)  # the worker loop alone reads data
            allowed = allowed "data "
        if (target[1] in may) {
            if (index(allowed, " " target[1] " ") == 0)
                breach(path[1] " may not include " target[1] " (" header ")")
        } else if (target[1] == "tests") {
            breach("the program may not include its tests (" header ")")
        } else if ($0 ~ /"/ && header !~ /\//) {
            breach("write the path from the root: \"" path[1] "/.../" header "\"")
        }
        for (pattern in door)
            if (header ~ pattern && FILENAME !~ door[pattern])
                breach(header " is included behind one door alone: " door[pattern])
    }
    END { exit (breaches > 0) }
' || exit 1
