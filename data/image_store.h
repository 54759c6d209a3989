// ImageStore: image files, wherever they lie: in class folders (folder.h) or shards (shards.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

/// Texts, one behind the other in one block: a million paths in few bytes more than their letters.
class TextTable {
  public:
    void add(std::string_view text) {
        texts_ += text;
        ends_.push_back(texts_.size());
    }
    int64_t count() const { return static_cast<int64_t>(ends_.size()); }
    std::string_view operator[](int64_t index) const {
        const auto i = static_cast<size_t>(index);
        const size_t begin = i == 0 ? 0 : ends_[i - 1];
        return std::string_view(texts_).substr(begin, ends_[i] - begin);
    }

  private:
    std::string texts_;
    std::vector<size_t> ends_;
};

/// Image files by index. Called by several threads at once.
class ImageStore {
  public:
    virtual ~ImageStore() = default;

    virtual int64_t count() const = 0;

    /// What messages call image `index`: where it lies, or came from.
    virtual std::string name(int64_t index) const = 0;

    /// Reads the file of image `index` to `bytes` (resized). Throws FileError where the system
    /// cannot, CorruptImage where it is there but not what was written (a checksum).
    virtual void read(int64_t index, std::vector<std::byte>& bytes) const = 0;

    /// Tells the system that these images will be read soon, in an order that suits the disk.
    virtual void read_ahead(std::span<const int32_t> indices) const = 0;
};

/// How images of a store become samples.
struct Photos {
    std::shared_ptr<const ImageStore> store;  ///< nullptr: the data set's images are in memory
    int64_t resize = 256;                     ///< shorter side in evaluation
    bool upright = true;                      ///< turned as EXIF says
    bool skip_corrupt = false;                ///< else a damaged image is an Error
};

}  // namespace trainer
