// Files from anywhere: any bytes as a shard, and as a JPEG's markers.
//
// Nothing may crash or run away, and what is accepted must lie inside the file.
// Built with -DTRAINER_FUZZ=ON by clang; run as shard_fuzz -max_total_time=60.
#include <cstring>
#include <vector>

#include "data/jpeg.h"
#include "data/shards.h"
#include "engine/crc32c.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace trainer;
using namespace trainer::fuzz;

void parse(const std::vector<uint8_t>& bytes) {
    const auto read = [&](int64_t offset, void* target, size_t count) {
        expect(offset >= 0 && static_cast<size_t>(offset) <= bytes.size() &&
               count <= bytes.size() - static_cast<size_t>(offset));
        if (count > 0)
            std::memcpy(target, bytes.data() + offset, count);
    };
    try_parse([&] {
        const ShardContents contents = parse_shard(static_cast<int64_t>(bytes.size()), read, "x");
        expect(contents.number < contents.count);
        uint64_t end = 32;
        for (const ShardRecord& record : contents.records) {
            expect(record.offset == end && record.length > 0);
            expect(record.label < contents.classes.size());
            end += uint64_t{record.name_length} + record.length;
            expect(end <= bytes.size());
        }
    });
}

template <typename T>
T get(const std::vector<uint8_t>& bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

void put(std::vector<uint8_t>& bytes, size_t at, uint32_t value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// Makes magic numbers and checksums hold, which chance would not.
void mend(std::vector<uint8_t>& bytes) {
    if (bytes.size() < 72)
        return;
    std::memcpy(bytes.data(), "TRSHARD\n\1\0\0", 12);
    put(bytes, 24, 0);
    put(bytes, 28, crc32c(bytes.data(), 28));
    const size_t foot = bytes.size() - 40;
    const auto classes_at = get<uint64_t>(bytes, foot);
    if (classes_at <= foot)
        put(bytes, foot + 24, crc32c(bytes.data() + classes_at, foot - classes_at));
    put(bytes, foot + 28, crc32c(bytes.data() + foot, 28));
    std::memcpy(bytes.data() + foot + 32, "TRSHEND\n", 8);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::vector<uint8_t> bytes(data, data + size);
    parse(bytes);
    mend(bytes);
    parse(bytes);
    try_parse([&] {
        const JpegInfo info = read_jpeg_info(std::as_bytes(std::span(data, size)));
        expect(info.end <= size && info.orientation >= 1 && info.orientation <= 8);
        expect(info.height > 0 && info.width > 0);
    });
    return 0;
}
