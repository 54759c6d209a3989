// CIFAR's binary files: any size, any labels, any file of class names.
//
// A file that is read to its end has 30 MB, so the input does not hold one but says how it differs
// from one of zeros: the file of names, then, from its end on: which data set (a byte), what the
// size is off by (two bytes), labels in places (a count, then pairs).
#include <fuzzer/FuzzedDataProvider.h>

#include <map>

#include "data/formats.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace trainer;
using namespace trainer::fuzz;

constexpr int64_t records = 10000, image_bytes = 3 * 32 * 32;

/// One data set's test split.
struct Files {
    Files(int64_t label_bytes, const std::string& data_name, const std::string& names_name)
        : record_bytes(label_bytes + image_bytes) {
        folder.link(data_name, data);
        folder.link(names_name, names);
    }

    const int64_t record_bytes;
    MemoryFolder folder;
    MemoryFile data{"data"}, names{"names"};
};

/// Labels by the record that they are put in.
using Labels = std::map<uint16_t, uint8_t>;

void put(const Files& files, const Labels& labels, bool zeros) {
    for (const auto& [record, label] : labels) {
        const uint8_t value = zeros ? 0 : label;
        const int64_t last_label_byte = files.record_bytes - image_bytes - 1;
        files.data.put(record * files.record_bytes + last_label_byte, {&value, 1});
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Files ten(1, "test_batch.bin", "batches.meta.txt");
    static const Files hundred(2, "test.bin", "fine_label_names.txt");
    FuzzedDataProvider input(data, size);
    const bool fine = input.ConsumeBool();
    const Files& files = fine ? hundred : ten;
    const auto off_by = input.ConsumeIntegral<int16_t>();
    Labels labels;
    for (auto count = input.ConsumeIntegral<uint8_t>(); count > 0; --count) {
        const auto record = input.ConsumeIntegralInRange<uint16_t>(0, records - 1);
        labels[record] = input.ConsumeIntegral<uint8_t>();
    }
    files.names.fill(input.ConsumeRemainingBytes<uint8_t>());
    files.data.resize(records * files.record_bytes);
    put(files, labels, false);
    files.data.resize(records * files.record_bytes + off_by);
    try_parse([&] {
        const DatasetOptions options{.dataset = fine ? "cifar100" : "cifar10",
                                     .dir = files.folder.path(),
                                     .split = Split::test};
        const Dataset read = fine ? read_cifar100(options) : read_cifar10(options);
        expect(off_by == 0 && read.count == records);
        expect(read.class_names.empty() || std::ssize(read.class_names) == read.classes);
        for (int64_t i = 0; i < records; ++i) {
            const auto put_there = labels.find(static_cast<uint16_t>(i));
            expect(read.labels[static_cast<size_t>(i)] ==
                   (put_there == labels.end() ? 0 : put_there->second));
        }
    });
    files.data.resize(records * files.record_bytes);
    put(files, labels, true);
    return 0;
}
