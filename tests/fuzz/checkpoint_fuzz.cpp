// Files in the safetensors format and checkpoints of two: any bytes.
//
// The last byte says what the rest is: a file as it stands; a header's text, to which the length
// is put and as many zeros as it asks for; or a checkpoint's metadata, in lines of key and value.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/checkpoint.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace trainer;
using namespace trainer::fuzz;

using Bytes = std::vector<uint8_t>;

constexpr int64_t most_elements = 1 << 20;

void read_all(const SafetensorsFile& file, int64_t file_bytes) {
    for (const SafetensorsEntry& tensor : file.tensors()) {
        expect(tensor.offset >= 8 && tensor.bytes >= 0);
        expect(tensor.offset + tensor.bytes <= file_bytes);
        expect(file.find(tensor.name) != nullptr);
        int64_t elements = 1;
        for (const int64_t extent : tensor.shape)
            elements *= extent;
        if (elements > most_elements)
            continue;
        try_parse([&] {
            std::vector<float> values(static_cast<size_t>(elements));
            file.read(tensor.name, tensor.shape, std::span(values));
        });
        try_parse([&] {
            std::vector<double> values(static_cast<size_t>(elements));
            file.read(tensor.name, tensor.shape, std::span(values));
        });
    }
    try_parse([&] { file.verify(); });
}

void parse_file(const Bytes& bytes) {
    static const MemoryFile memory("safetensors");
    memory.fill(bytes);
    try_parse([&] { read_all(SafetensorsFile(memory.path()), std::ssize(bytes)); });
}

/// What lies behind a header, by the largest end of a tensor that it names.
size_t data_bytes_of(const std::string& header) {
    constexpr std::string_view key = "\"data_offsets\":[";
    size_t most = 0;
    for (size_t at = header.find(key); at != std::string::npos; at = header.find(key, at + 1)) {
        const size_t comma = header.find(',', at);
        if (comma != std::string::npos)
            most = std::max<size_t>(most, std::strtoull(header.c_str() + comma + 1, nullptr, 10));
    }
    return std::min<size_t>(most, size_t{1} << 16);
}

void parse_header(const std::string& header) {
    Bytes bytes(8);
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, sizeof length);
    bytes.insert(bytes.end(), header.begin(), header.end());
    bytes.resize(bytes.size() + data_bytes_of(header));
    parse_file(bytes);
}

bool is_ascii(const std::string& text) {
    return std::ranges::all_of(text, [](char c) { return c >= 0; });
}

/// A checkpoint whose metadata is the input's and whose checksums hold.
void parse_metadata(FuzzedDataProvider& input) {
    static const MemoryFolder folder;
    static const MemoryFile model("model"), state("state");
    static const bool linked = [] {
        folder.link("model.safetensors", model);
        folder.link("state.safetensors", state);
        return true;
    }();
    expect(linked);
    Metadata metadata{{"crc32c", ""}};
    while (input.remaining_bytes() > 0 && metadata.size() < 64) {
        std::string key = input.ConsumeRandomLengthString(64);
        std::string value = input.ConsumeRandomLengthString(256);
        if (key != checksum_key)
            metadata.insert_or_assign(std::move(key), std::move(value));
    }
    const std::vector<float> values{1, 2, 3};
    const std::vector<SafetensorsItem> items{{"w", "F32", {3}, std::as_bytes(std::span(values))}};
    try_parse([&] {
        const uint32_t crc = write_safetensors(model.path(), items, {{"format", "pt"}});
        char digits[9];
        std::snprintf(digits, sizeof digits, "%08x", crc);
        metadata["model_crc32c"] = digits;
        write_safetensors(state.path(), items, metadata);
        const Checkpoint checkpoint = Checkpoint::open(folder.path());
        expect(checkpoint.number("step") == checkpoint.step);
        for (const auto& [key, value] : metadata) {
            if (key != checksum_key && is_ascii(key + value))
                expect(checkpoint.value(key) == value);
            try_parse([&, name = key] { checkpoint.number(name); });
        }
    });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FuzzedDataProvider input(data, size);
    switch (input.ConsumeIntegral<uint8_t>() % 3) {
        case 0:
            parse_file(input.ConsumeRemainingBytes<uint8_t>());
            break;
        case 1:
            parse_header(input.ConsumeRemainingBytesAsString());
            break;
        default:
            parse_metadata(input);
    }
    return 0;
}
