// IDX files, plain and packed: any bytes as labels and as images of Fashion-MNIST.
//
// The input is the labels' file, the images' file, two bytes for the length of the first and a byte
// that says which of them are to be packed, and whether their headers are to fit.
#include <fuzzer/FuzzedDataProvider.h>
#include <zlib.h>

#include <cstring>
#include <vector>

#include "data/formats.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace trainer;
using namespace trainer::fuzz;

using Bytes = std::vector<uint8_t>;

Bytes pack(const Bytes& plain) {
    z_stream zlib{};
    expect(deflateInit2(&zlib, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    Bytes packed(deflateBound(&zlib, plain.size()));
    zlib.next_in = const_cast<uint8_t*>(plain.data());
    zlib.avail_in = static_cast<uInt>(plain.size());
    zlib.next_out = packed.data();
    zlib.avail_out = static_cast<uInt>(packed.size());
    expect(deflate(&zlib, Z_FINISH) == Z_STREAM_END);
    packed.resize(zlib.total_out);
    deflateEnd(&zlib);
    return packed;
}

/// Makes the header fit what follows, which chance would not.
void mend(Bytes& file, uint8_t dimensions, size_t item_bytes) {
    const size_t header = 4 + 4 * size_t{dimensions};
    if (file.size() < header + item_bytes)
        return;
    const size_t count = (file.size() - header) / item_bytes;
    file.resize(header + count * item_bytes);
    const auto put = [&](size_t at, uint32_t value) {
        for (size_t i = 0; i < 4; ++i)
            file[at + i] = static_cast<uint8_t>(value >> (24 - 8 * i));
    };
    put(0, 0x800U + dimensions);
    put(4, static_cast<uint32_t>(count));
    for (size_t i = 1; i < dimensions; ++i)
        put(4 + 4 * i, 28);
}

/// Both files in a folder, plain or packed.
struct Files {
    Files() {
        folder.link("train-labels-idx1-ubyte", labels);
        folder.link("train-images-idx3-ubyte", images);
    }

    void read() const {
        try_parse([&] {
            const Dataset read = read_idx({.dataset = "fashion_mnist", .dir = folder.path()}, {});
            expect(read.count > 0 && std::ssize(read.labels) == read.count);
            expect(static_cast<int64_t>(read.pixels.bytes) >= read.count * read.image_bytes());
            for (const int32_t label : read.labels)
                expect(label >= 0 && label < read.classes);
        });
    }

    MemoryFolder folder;
    MemoryFile labels{"labels"}, images{"images"};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Files files;
    FuzzedDataProvider input(data, size);
    const auto how = input.ConsumeIntegral<uint8_t>();
    const auto labels_bytes = input.ConsumeIntegral<uint16_t>();
    Bytes labels = input.ConsumeBytes<uint8_t>(labels_bytes);
    Bytes images = input.ConsumeRemainingBytes<uint8_t>();
    if ((how & 4) != 0) {
        mend(labels, 1, 1);
        mend(images, 3, 28 * 28);
    }
    // Packed by us, or as the input has it, magic number and all.
    files.labels.fill((how & 1) != 0 ? pack(labels) : labels);
    files.images.fill((how & 2) != 0 ? pack(images) : images);
    files.read();
    return 0;
}
