#include "data/shards.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "data/image.h"
#include "engine/crc32c.h"
#include "engine/error.h"

namespace trainer {

namespace {

namespace fs = std::filesystem;

constexpr char head_magic[] = "TRSHARD\n", end_magic[] = "TRSHEND\n";
constexpr size_t magic_bytes = 8, header_bytes = 32, entry_bytes = 24, footer_bytes = 40;
constexpr uint32_t version = 1;

/// Puts and gets numbers, little endian.
template <typename T>
void put(std::vector<std::byte>& bytes, T value) {
    for (size_t i = 0; i < sizeof value; ++i)
        bytes.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
}

void put_text(std::vector<std::byte>& bytes, std::string_view text) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    bytes.insert(bytes.end(), first, first + text.size());
}

template <typename T>
T get(const std::byte* at) {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
        value |= std::to_integer<uint64_t>(at[i]) << (8 * i);
    return static_cast<T>(value);
}

/// The parts of a shard, one after another.
class Parser {
  public:
    Parser(int64_t size, const std::function<void(int64_t, void*, size_t)>& read,
           const std::string& name)
        : size_(static_cast<uint64_t>(size)), read_(read), name_(name) {}

    ShardContents parse() {
        if (size_ < header_bytes + footer_bytes)
            fail("a shard that is cut short, at " + std::to_string(size_) + " bytes");
        const uint32_t classes = read_header();
        read_footer();
        std::vector<std::byte> tables(size_ - footer_bytes - classes_at_);
        read_(static_cast<int64_t>(classes_at_), tables.data(), tables.size());
        if (crc32c(tables.data(), tables.size()) != tables_crc_)
            fail("the checksum of its index does not hold");
        const size_t classes_bytes = index_at_ - classes_at_;
        read_classes(std::span(tables).first(classes_bytes), classes);
        read_index(std::span(tables).subspan(classes_bytes));
        return std::move(contents_);
    }

  private:
    [[noreturn]] void fail(const std::string& what) const {
        throw Error("'" + name_ + "': " + what + "; make it again with tools/convert");
    }

    uint32_t read_header() {
        std::byte head[header_bytes];
        read_(0, head, sizeof head);
        if (std::memcmp(head, head_magic, magic_bytes) != 0)
            fail("not a shard");
        if (get<uint32_t>(head + 8) != version)
            fail("a shard of version " + std::to_string(get<uint32_t>(head + 8)) +
                 ", this program reads version 1");
        if (get<uint32_t>(head + 28) != crc32c(head, 28) || get<uint32_t>(head + 24) != 0)
            fail("the checksum of its first 28 bytes does not hold");
        contents_.number = get<uint32_t>(head + 12);
        contents_.count = get<uint32_t>(head + 16);
        if (contents_.number >= contents_.count)
            fail("shard " + std::to_string(contents_.number) + " of " +
                 std::to_string(contents_.count));
        return get<uint32_t>(head + 20);
    }

    void read_footer() {
        std::byte foot[footer_bytes];
        read_(static_cast<int64_t>(size_ - footer_bytes), foot, sizeof foot);
        if (std::memcmp(foot + 32, end_magic, magic_bytes) != 0)
            fail("its end is missing: cut short, or something is behind it");
        if (get<uint32_t>(foot + 28) != crc32c(foot, 28))
            fail("the checksum of its footer does not hold");
        classes_at_ = get<uint64_t>(foot);
        index_at_ = get<uint64_t>(foot + 8);
        records_ = get<uint64_t>(foot + 16);
        tables_crc_ = get<uint32_t>(foot + 24);
        const uint64_t end = size_ - footer_bytes;
        if (classes_at_ < header_bytes || index_at_ < classes_at_ || index_at_ > end ||
            records_ != (end - index_at_) / entry_bytes || (end - index_at_) % entry_bytes != 0)
            fail("the places in its footer do not fit its " + std::to_string(size_) + " bytes");
    }

    void read_classes(std::span<const std::byte> bytes, uint32_t count) {
        for (uint32_t label = 0; label < count; ++label) {
            const uint32_t length = bytes.size() < 4 ? 0 : get<uint32_t>(bytes.data());
            if (bytes.size() < 4 || length > bytes.size() - 4)
                fail("the name of class " + std::to_string(label) + " is cut short");
            contents_.classes.emplace_back(reinterpret_cast<const char*>(bytes.data() + 4), length);
            bytes = bytes.subspan(4 + length);
        }
        if (!bytes.empty())
            fail(std::to_string(bytes.size()) + " bytes behind its last class");
    }

    void read_index(std::span<const std::byte> bytes) {
        contents_.records.reserve(records_);
        uint64_t offset = header_bytes;
        for (uint64_t i = 0; i < records_; ++i) {
            const std::byte* at = bytes.data() + i * entry_bytes;
            const ShardRecord record{get<uint64_t>(at),      get<uint32_t>(at + 8),
                                     get<uint32_t>(at + 12), get<uint32_t>(at + 16),
                                     get<uint16_t>(at + 20), get<uint16_t>(at + 22)};
            const uint64_t length = uint64_t{record.length} + record.name_length;
            if (record.offset != offset || record.length == 0 || length > classes_at_ - offset ||
                record.label >= contents_.classes.size() || record.flags > shard_flag_repaired)
                fail("record " + std::to_string(i) + " of its index is none");
            contents_.records.push_back(record);
            offset += length;
        }
        if (offset != classes_at_)
            fail(std::to_string(classes_at_ - offset) + " bytes behind its last record");
    }

    uint64_t size_;
    const std::function<void(int64_t, void*, size_t)>& read_;
    const std::string& name_;
    ShardContents contents_;
    uint64_t classes_at_ = 0, index_at_ = 0, records_ = 0;
    uint32_t tables_crc_ = 0;
};

fs::path partial(const fs::path& path) {
    return path.string() + ".part";
}

}  // namespace

ShardContents parse_shard(int64_t size, const std::function<void(int64_t, void*, size_t)>& read,
                          const std::string& name) {
    return Parser(size, read, name).parse();
}

ShardWriter::ShardWriter(const fs::path& path, uint32_t number, uint32_t count,
                         std::vector<std::string> classes)
    : path_(path), file_(File::create(partial(path))), classes_(std::move(classes)) {
    if (classes_.size() > std::numeric_limits<int32_t>::max())
        throw UsageError("more classes than a label can tell");
    std::vector<std::byte> head;
    put_text(head, std::string_view(head_magic, magic_bytes));
    put<uint32_t>(head, version);
    put<uint32_t>(head, number);
    put<uint32_t>(head, count);
    put<uint32_t>(head, static_cast<uint32_t>(classes_.size()));
    put<uint32_t>(head, 0);
    put<uint32_t>(head, crc32c(head.data(), head.size()));
    file_.write(head.data(), head.size());
    offset_ = head.size();
}

void ShardWriter::add(std::string_view name, std::span<const std::byte> image, uint32_t label,
                      uint16_t flags) {
    if (name.size() > std::numeric_limits<uint16_t>::max())
        throw Error("'" + std::string(name) + "': its name is too long for a shard");
    if (image.size() > std::numeric_limits<uint32_t>::max())
        throw Error("'" + std::string(name) + "' is too large for a shard");
    check(!image.empty() && label < classes_.size(), "a record that a shard can hold");
    records_.push_back({offset_, static_cast<uint32_t>(image.size()), label,
                        crc32c(image.data(), image.size(), crc32c(name.data(), name.size())),
                        static_cast<uint16_t>(name.size()), flags});
    file_.write(name.data(), name.size());
    file_.write(image.data(), image.size());
    offset_ += name.size() + image.size();
}

void ShardWriter::finish() {
    std::vector<std::byte> tables;
    for (const std::string& name : classes_) {
        put<uint32_t>(tables, static_cast<uint32_t>(name.size()));
        put_text(tables, name);
    }
    const uint64_t index_at = offset_ + tables.size();
    for (const ShardRecord& record : records_) {
        put(tables, record.offset);
        put(tables, record.length);
        put(tables, record.label);
        put(tables, record.crc);
        put(tables, record.name_length);
        put(tables, record.flags);
    }
    std::vector<std::byte> foot;
    put<uint64_t>(foot, offset_);
    put<uint64_t>(foot, index_at);
    put<uint64_t>(foot, records_.size());
    put<uint32_t>(foot, crc32c(tables.data(), tables.size()));
    put<uint32_t>(foot, crc32c(foot.data(), foot.size()));
    put_text(foot, std::string_view(end_magic, magic_bytes));
    file_.write(tables.data(), tables.size());
    file_.write(foot.data(), foot.size());
    file_.sync();
    fs::rename(partial(path_), path_);
}

ShardFile::ShardFile(const fs::path& path)
    : file_(File::open_to_read(path)),
      contents_(parse_shard(
          file_.size(),
          [this](int64_t offset, void* target, size_t bytes) {
              file_.read_at(offset, target, bytes);
          },
          path.string())) {}

std::string ShardFile::record_name(int64_t record) const {
    const ShardRecord& entry = contents_.records[static_cast<size_t>(record)];
    std::string name(entry.name_length, ' ');
    file_.read_at(static_cast<int64_t>(entry.offset), name.data(), name.size());
    return name;
}

void ShardFile::read(int64_t record, std::vector<std::byte>& image) const {
    const ShardRecord& entry = contents_.records[static_cast<size_t>(record)];
    image.resize(size_t{entry.name_length} + entry.length);
    file_.read_at(static_cast<int64_t>(entry.offset), image.data(), image.size());
    if (crc32c(image.data(), image.size()) != entry.crc)
        throw CorruptImage("'" + path().string() + "': the checksum of record " +
                           std::to_string(record) + " does not hold");
    image.erase(image.begin(), image.begin() + entry.name_length);
}

void ShardFile::read_ahead(int64_t record) const {
    const ShardRecord& entry = contents_.records[static_cast<size_t>(record)];
    posix_fadvise(file_.descriptor(), static_cast<off_t>(entry.offset),
                  static_cast<off_t>(entry.name_length) + entry.length, POSIX_FADV_WILLNEED);
}

std::string shard_file_name(const std::string& split, uint32_t number, uint32_t count) {
    char text[48];
    std::snprintf(text, sizeof text, "-%05u-of-%05u.shard", number, count);
    return split + text;
}

namespace {

/// Files of the directory that are named as shards of the split.
std::vector<std::string> shard_names(const fs::path& directory, const std::string& split) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory, error)) {
        const std::string name = entry.path().filename().string();
        unsigned number = 0, count = 0;
        if (name.starts_with(split + "-") &&
            std::sscanf(name.c_str() + split.size(), "-%u-of-%u", &number, &count) == 2 &&
            name == shard_file_name(split, number, count))
            names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

class ShardStore : public ImageStore {
  public:
    explicit ShardStore(std::vector<std::unique_ptr<ShardFile>> shards)
        : shards_(std::move(shards)) {
        for (const auto& shard : shards_)
            starts_.push_back(starts_.back() + std::ssize(shard->contents().records));
    }

    int64_t count() const override { return starts_.back(); }

    std::string name(int64_t index) const override {
        const Place place = find(index);
        return place.shard.path().string() + ", record " + std::to_string(place.record) + " (" +
               place.shard.record_name(place.record) + ")";
    }

    void read(int64_t index, std::vector<std::byte>& bytes) const override {
        const Place place = find(index);
        place.shard.read(place.record, bytes);
    }

    // Indices rise as places on the disk do.
    void read_ahead(std::span<const int32_t> indices) const override {
        std::vector<int32_t> sorted(indices.begin(), indices.end());
        std::sort(sorted.begin(), sorted.end());
        for (const int32_t index : sorted) {
            const Place place = find(index);
            place.shard.read_ahead(place.record);
        }
    }

  private:
    struct Place {
        const ShardFile& shard;
        int64_t record;
    };

    Place find(int64_t index) const {
        const auto after = std::upper_bound(starts_.begin(), starts_.end(), index);
        const auto shard = static_cast<size_t>(after - starts_.begin()) - 1;
        return {*shards_[shard], index - starts_[shard]};
    }

    std::vector<std::unique_ptr<ShardFile>> shards_;
    std::vector<int64_t> starts_{0};  // index of the first record of each shard, and the end
};

}  // namespace

bool has_shards(const fs::path& directory, const std::string& split) {
    return !shard_names(directory, split).empty();
}

std::vector<fs::path> list_shards(const fs::path& directory, const std::string& split) {
    const std::vector<std::string> names = shard_names(directory, split);
    if (names.empty())
        throw Error(
            "'" + directory.string() + "' holds no shards " + split + "-*.shard" +
            (split == "val" ? "; pack it again with a val/ or convert folder --split 0.1" : ""));
    unsigned number = 0, count = 0;
    std::sscanf(names[0].c_str() + split.size(), "-%u-of-%u", &number, &count);
    std::vector<fs::path> paths;
    for (unsigned i = 0; i < count; ++i) {
        const std::string expected = shard_file_name(split, i, count);
        if (i >= names.size() || names[i] != expected)
            throw Error("'" + (directory / expected).string() + "' is missing; tools/convert, " +
                        "where it was interrupted, goes on with the same command");
        paths.push_back(directory / expected);
    }
    if (names.size() > count)
        throw Error("'" + (directory / names[count]).string() + "' is of another set than '" +
                    names[0] + "'; remove one of them");
    return paths;
}

ShardSet open_shards(const fs::path& directory, const std::string& split) {
    ShardSet set;
    std::vector<std::unique_ptr<ShardFile>> shards;
    for (const fs::path& path : list_shards(directory, split)) {
        const auto number = static_cast<uint32_t>(shards.size());
        shards.push_back(std::make_unique<ShardFile>(path));
        const ShardContents& contents = shards.back()->contents();
        if (shard_file_name(split, contents.number, contents.count) != path.filename())
            throw Error("'" + path.string() + "' says that it is shard " +
                        std::to_string(contents.number) + " of " + std::to_string(contents.count) +
                        "; files were renamed");
        if (number == 0)
            set.classes = contents.classes;
        else if (contents.classes != set.classes)
            throw Error("'" + path.string() + "' has other classes than the shards before it");
        for (const ShardRecord& record : contents.records)
            set.labels.push_back(static_cast<int32_t>(record.label));
    }
    set.store = std::make_shared<ShardStore>(std::move(shards));
    return set;
}

}  // namespace trainer
