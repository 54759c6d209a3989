// Photographs for tests: where the sample of real ones lies, and made ones.
#pragma once

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "data/image.h"

namespace trainer {

/// The directory of photographs in ILSVRC's layout, train/<synset>/*.JPEG, in $TRAINER_DATA or its
/// imagenet-sample; empty where there is none.
inline std::filesystem::path sample_photos() {
    const char* place = std::getenv("TRAINER_DATA");
    if (place == nullptr || *place == '\0')
        return {};
    for (const std::filesystem::path& folder :
         {std::filesystem::path(place), std::filesystem::path(place) / "imagenet-sample"})
        if (std::filesystem::is_directory(folder / "train"))
            return folder;
    return {};
}

inline constexpr const char* no_sample_photos =
    "no photographs in $TRAINER_DATA/imagenet-sample/train";

/// Smooth waves in all three channels, which JPEG keeps well.
inline Image waves(int64_t height, int64_t width, double phase = 0) {
    Image image{height, width, {}};
    for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x)
            for (int c = 0; c < 3; ++c) {
                const double angle = 0.11 * static_cast<double>(x) * (c + 1) / 2 +
                                     0.07 * static_cast<double>(y) * (3 - c) + phase + c;
                image.pixels.push_back(static_cast<uint8_t>(128 + 100 * std::sin(angle)));
            }
    return image;
}

inline void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
}

inline std::vector<std::byte> read_bytes(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return {first, first + text.size()};
}

/// A directory that goes with the test.
class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "photos_XXXXXX").string();
        path_ = mkdtemp(pattern.data());
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

}  // namespace trainer
