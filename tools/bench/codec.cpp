// Measures every codec on one core: encode with error feedback and decode-and-add, in GB of floats
// a second, next to memcpy of the same floats in the same run (rounds interleaved, medians).
// Prints a table, then one JSON line a codec. Usage: codec [MiB of floats] [rounds]
#include "optim/codec.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/memory.h"
#include "engine/random.h"
#include "tools/bench/stopwatch.h"

namespace {

using namespace trainer;

struct Measured {
    std::string name;
    std::vector<double> encode, decode;  // seconds
    size_t bytes = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const int64_t mebibytes = argc > 1 ? std::atoll(argv[1]) : 100;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
    if (mebibytes < 1 || rounds < 1) {
        std::fprintf(stderr, "usage: codec [MiB of floats] [rounds]\n");
        return 2;
    }
    const int64_t count = mebibytes << 18;
    const size_t bytes = static_cast<size_t>(count) * 4;
    TensorTable table;  // eight tensors, as a network's larger layers
    for (int i = 0; i < 8; ++i)
        table.add("layer" + std::to_string(i), {count / 8}, true, {});

    const Memory memory = allocate_host(4 * bytes);
    const auto floats = [&](size_t index) {
        return std::span(reinterpret_cast<float*>(memory.data.get() + index * bytes),
                         static_cast<size_t>(count));
    };
    const auto gradients = floats(0), residual = floats(1), sum = floats(2), copy = floats(3);
    const Memory codes = allocate_host(bytes + 1024);
    Random random{1, 2};
    for (size_t i = 0; i < gradients.size(); ++i) {
        gradients[i] = static_cast<float>(random.uniform() * 2 - 1) * 0.02F;
        residual[i] = static_cast<float>(random.uniform() * 2 - 1) * 0.01F;
    }

    std::vector<std::unique_ptr<Codec>> codecs;
    codecs.push_back(make_raw_codec());
    codecs.push_back(make_fp16_codec());
    codecs.push_back(make_bf16_codec());
    codecs.push_back(make_two_bit_codec(0.01F));
    codecs.push_back(make_two_bit_codec(std::nullopt));
    std::vector<Measured> measured(codecs.size());
    std::vector<double> copies;
    for (int round = 0; round <= rounds; ++round) {  // the first warms up
        const double copying = seconds([&] { std::memcpy(copy.data(), gradients.data(), bytes); });
        if (round > 0)
            copies.push_back(copying);
        for (size_t i = 0; i < codecs.size(); ++i) {
            const Codec& codec = *codecs[i];
            ErrorFeedback feedback(codec, table, residual);
            const auto segments = segments_of(codec, table, {0, count});
            measured[i].name = codec.name() + (codec.measures() ? " auto" : "");
            measured[i].bytes = encoded_bytes(codec, segments);
            const std::span<const std::byte> sent(codes.data.get(), measured[i].bytes);
            const double encoding = seconds([&] {
                if (codec.lossless()) {
                    encode_range(codec, segments, gradients, codes.data.get());
                } else {
                    feedback.begin(gradients, {0, count});
                    feedback.encode(segments, gradients, codes.data.get());
                }
            });
            const double decoding =
                seconds([&] { add_decoded_range(codec, segments, sent, sum, 0); });
            if (round > 0) {
                measured[i].encode.push_back(encoding);
                measured[i].decode.push_back(decoding);
            }
        }
    }

    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    const double memcpy_speed = gigabytes / median(copies);
    std::printf("%ld MiB of floats, %d rounds, one core, medians; memcpy %.1f GB/s\n",
                static_cast<long>(mebibytes), rounds, memcpy_speed);
    std::printf("%-10s %12s %14s %9s %14s %9s\n", "codec", "bytes", "encode GB/s", "/memcpy",
                "decode+add", "/memcpy");
    for (const Measured& m : measured) {
        const double encode = gigabytes / median(m.encode), decode = gigabytes / median(m.decode);
        std::printf("%-10s %11.4fx %14.1f %9.2f %14.1f %9.2f\n", m.name.c_str(),
                    static_cast<double>(m.bytes) / static_cast<double>(bytes), encode,
                    encode / memcpy_speed, decode, decode / memcpy_speed);
    }
    for (const Measured& m : measured)
        std::printf(
            "{\"bench\": \"codec\", \"codec\": \"%s\", \"mib\": %ld, \"n\": %d, \"encode_gb_s\": "
            "%.2f, "
            "\"decode_add_gb_s\": %.2f, \"memcpy_gb_s\": %.2f}\n",
            m.name.c_str(), static_cast<long>(mebibytes), rounds, gigabytes / median(m.encode),
            gigabytes / median(m.decode), memcpy_speed);
}
