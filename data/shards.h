// Packed shards: image files with their labels in a few large files. data/SHARDS.md has the format
// byte by byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/image_store.h"
#include "engine/file.h"

namespace trainer {

/// One record of a shard's index.
struct ShardRecord {
    uint64_t offset = 0;       ///< of the name, which the image follows
    uint32_t length = 0;       ///< of the image, bytes
    uint32_t label = 0;        ///< a class
    uint32_t crc = 0;          ///< CRC32C of name and image
    uint16_t name_length = 0;  ///< bytes
    uint16_t flags = 0;        ///< 1: repaired when it was packed

    bool operator==(const ShardRecord&) const = default;
};

inline constexpr uint16_t shard_flag_repaired = 1;

/// What the parts of a shard's file say.
struct ShardContents {
    uint32_t number = 0, count = 0;  ///< this is shard `number` of `count`
    std::vector<std::string> classes;
    std::vector<ShardRecord> records;
};

/// Reads the parts of a shard but for the records, from the bytes that it gets. `read` (offset,
/// target, bytes) reads what lies in [0, size). `name` is what messages call it.
/// Throws Error where any byte is not as the format says.
ShardContents parse_shard(int64_t size, const std::function<void(int64_t, void*, size_t)>& read,
                          const std::string& name);

/// Writes one shard under a temporary name; finish() gives it its own.
class ShardWriter {
  public:
    /// Throws UsageError where there are more than 2^32 - 1 classes.
    ShardWriter(const std::filesystem::path& path, uint32_t number, uint32_t count,
                std::vector<std::string> classes);

    /// Throws Error where name or image are too long for the format (64 KiB, 4 GiB).
    void add(std::string_view name, std::span<const std::byte> image, uint32_t label,
             uint16_t flags);
    int64_t records() const { return std::ssize(records_); }
    void finish();

  private:
    std::filesystem::path path_;
    File file_;
    std::vector<std::string> classes_;
    std::vector<ShardRecord> records_;
    uint64_t offset_ = 0;
};

/// A shard that is open.
class ShardFile {
  public:
    explicit ShardFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return file_.path(); }
    const ShardContents& contents() const { return contents_; }
    std::string record_name(int64_t record) const;
    /// Throws CorruptImage where the checksum does not hold.
    void read(int64_t record, std::vector<std::byte>& image) const;
    void read_ahead(int64_t record) const;

  private:
    File file_;
    ShardContents contents_;
};

/// E.g. "train-00003-of-00128.shard".
std::string shard_file_name(const std::string& split, uint32_t number, uint32_t count);

/// The shards of one split in a directory.
struct ShardSet {
    std::vector<std::string> classes;
    std::vector<int32_t> labels;              ///< of all records
    std::shared_ptr<const ImageStore> store;  ///< of all records
};

/// Whether the directory holds shards of that split ("train", "val").
bool has_shards(const std::filesystem::path& directory, const std::string& split);

/// Paths of the shards of a split, in order. Throws Error where one is missing or of another set.
std::vector<std::filesystem::path> list_shards(const std::filesystem::path& directory,
                                               const std::string& split);

/// Opens them all. Throws Error where one is damaged or of other classes than the first.
ShardSet open_shards(const std::filesystem::path& directory, const std::string& split);

}  // namespace trainer
