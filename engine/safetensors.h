// Files in the safetensors format: named tensors and a map of strings, readable everywhere.
//
//   file     := length header data
//   length   := bytes of the header, unsigned 64 bits, little endian
//   header   := a JSON object, padded with spaces to a multiple of 8 bytes
//                 {"__metadata__": {"key": "value", ...},
//                  "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//   data     := the tensors' bytes, little endian, rows outermost first, end to end
//
// https://github.com/huggingface/safetensors
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dtype.h"
#include "engine/file.h"

namespace trainer {

/// A tensor to be written; `data` outlives the write.
struct SafetensorsItem {
    std::string name;
    std::string dtype;  ///< the format's name: F64, F32, BF16, I64
    Shape shape;
    std::span<const std::byte> data;
};

using Metadata = std::map<std::string, std::string>;

/// The format's name of an element type.
std::string safetensors_dtype(DType type);

/// Bytes of the file that write_safetensors would write.
int64_t safetensors_bytes(const std::vector<SafetensorsItem>& items, const Metadata& metadata);

/// The metadata key under which a file's own checksum stands: 8 hexadecimal digits, the CRC32C of
/// the whole file with those digits as zeros.
inline constexpr std::string_view checksum_key = "crc32c";

/// Writes and syncs the file; returns the CRC32C of its bytes. Metadata that has `checksum_key`
/// gets the file's own checksum as its value. Throws FileError.
uint32_t write_safetensors(const std::filesystem::path& path,
                           const std::vector<SafetensorsItem>& items, const Metadata& metadata);

/// A tensor of a file.
struct SafetensorsEntry {
    std::string name, dtype;
    Shape shape;
    int64_t offset = 0;  ///< first byte in the file
    int64_t bytes = 0;
};

/// An opened file whose header has been read and checked against its size.
class SafetensorsFile {
  public:
    /// Throws Error that names whatever is wrong: a header that is too long, not JSON, or says the
    /// impossible; tensors that overlap, leave holes or pass the end.
    explicit SafetensorsFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return file_.path(); }
    const Metadata& metadata() const { return metadata_; }
    const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }

    /// The tensor of that name, or nullptr.
    const SafetensorsEntry* find(std::string_view name) const;

    /// Reads a tensor's elements, converted from F64, F32 or BF16. Throws Error where it is not
    /// there, is of another shape, or holds elements of another kind.
    void read(std::string_view name, const Shape& shape, std::span<float> target) const;
    void read(std::string_view name, const Shape& shape, std::span<double> target) const;

    /// CRC32C of the whole file; reads all of it.
    uint32_t checksum() const;

    /// Throws Error where the metadata has a checksum that is not the file's.
    void verify() const;

  private:
    template <typename T>
    void read_as(std::string_view name, const Shape& shape, std::span<T> target) const;
    void parse(const std::string& header, int64_t data_bytes);
    void check_places(int64_t data_bytes) const;
    uint32_t checksum_after(int64_t offset, uint32_t crc) const;
    [[noreturn]] void fail(const std::string& what) const;

    File file_;
    int64_t data_start_ = 0;
    int64_t checksum_offset_ = -1;  // of the checksum's digits in the file; -1: none
    Metadata metadata_;
    std::vector<SafetensorsEntry> tensors_;
};

}  // namespace trainer
