// The markers of JPEG files: size, orientation, whether the end is there.
#include <algorithm>

#include "data/jpeg.h"

namespace trainer {

namespace {

using Bytes = std::span<const std::byte>;

/// Numbers out of bytes, in either order, 0 behind the end.
class Numbers {
  public:
    Numbers(Bytes bytes, bool big_endian) : bytes_(bytes), big_endian_(big_endian) {}

    uint32_t read(size_t offset, size_t count) const {
        if (offset > bytes_.size() || bytes_.size() - offset < count)
            return 0;
        uint32_t value = 0;
        for (size_t i = 0; i < count; ++i)
            value = value << 8 |
                    std::to_integer<uint32_t>(bytes_[offset + (big_endian_ ? i : count - 1 - i)]);
        return value;
    }
    uint32_t u16(size_t offset) const { return read(offset, 2); }
    uint32_t u32(size_t offset) const { return read(offset, 4); }

  private:
    Bytes bytes_;
    bool big_endian_;
};

/// The orientation in an APP1 segment of EXIF: a TIFF header, then a directory of entries of 12
/// bytes {tag, type, count, value}; 0 where it has none.
int exif_orientation(Bytes segment) {
    constexpr char start[] = {'E', 'x', 'i', 'f', 0, 0};
    const auto same = [](char a, std::byte b) { return static_cast<std::byte>(a) == b; };
    if (segment.size() < 14 ||
        !std::equal(std::begin(start), std::end(start), segment.begin(), same))
        return 0;
    const Bytes tiff = segment.subspan(6);
    const bool big_endian = tiff[0] == std::byte{'M'};
    const Numbers numbers(tiff, big_endian);
    const size_t directory = numbers.u32(4);
    constexpr uint32_t orientation_tag = 0x0112;
    const uint32_t entries = numbers.u16(directory);
    for (size_t i = 0; i < entries; ++i) {
        const size_t entry = directory + 2 + 12 * i;
        if (entry + 12 > tiff.size())
            break;
        if (numbers.u16(entry) == orientation_tag) {
            const uint32_t value = numbers.u16(entry + 8);
            return value >= 1 && value <= 8 ? static_cast<int>(value) : 0;
        }
    }
    return 0;
}

bool is_frame(int marker) {  // SOF0 to SOF15, less DHT, JPG and DAC
    return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

/// Offset behind the last end marker from `from` on; 0: there is none. In entropy-coded data 0xff
/// is followed by 0 or by a marker, so that this is one.
size_t find_end(Bytes bytes, size_t from) {
    for (size_t at = bytes.size(); at >= from + 2; --at)
        if (bytes[at - 1] == std::byte{0xd9} && bytes[at - 2] == std::byte{0xff})
            return at;
    return 0;
}

}  // namespace

bool is_jpeg(Bytes bytes) {
    return bytes.size() >= 3 && bytes[0] == std::byte{0xff} && bytes[1] == std::byte{0xd8} &&
           bytes[2] == std::byte{0xff};
}

JpegInfo read_jpeg_info(Bytes bytes) {
    const auto fail = [](const std::string& what) { throw CorruptImage(what); };
    if (!is_jpeg(bytes))
        fail("not a JPEG file");
    JpegInfo info;
    const Numbers numbers(bytes, true);
    const auto cut_short = [&] {
        fail("a JPEG that is cut short: its " + std::to_string(bytes.size()) +
             " bytes end before the image begins");
    };
    for (size_t at = 2;;) {
        // Stray bytes before a marker, and fill bytes of 0xff, are passed over as libjpeg does.
        while (at < bytes.size() && bytes[at] != std::byte{0xff})
            ++at;
        while (at < bytes.size() && bytes[at] == std::byte{0xff})
            ++at;
        if (at >= bytes.size())
            cut_short();
        const int marker = std::to_integer<int>(bytes[at++]);
        if (marker == 0 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8))
            continue;  // those that stand alone
        if (marker == 0xd9)
            fail("a JPEG without an image");
        const size_t length = numbers.u16(at);
        if (length < 2 || length > bytes.size() - at)
            cut_short();
        const Bytes segment = bytes.subspan(at + 2, length - 2);
        if (is_frame(marker) && segment.size() >= 6) {
            info.height = numbers.u16(at + 3);
            info.width = numbers.u16(at + 5);
            info.components = std::to_integer<int>(bytes[at + 7]);
            info.sequential = marker == 0xc0 || marker == 0xc1;
        } else if (marker == 0xe1 && info.orientation == 1) {
            info.orientation = std::max(1, exif_orientation(segment));
        }
        at += length;
        if (marker == 0xda) {
            info.end = find_end(bytes, at);
            break;
        }
    }
    if (info.height == 0 || info.width == 0)
        fail("a JPEG of " + std::to_string(info.height) + "x" + std::to_string(info.width) +
             " pixels");
    if (info.height * info.width > max_image_pixels)
        fail("a JPEG of " + std::to_string(info.height) + "x" + std::to_string(info.width) +
             " pixels, more than is credible");
    return info;
}

}  // namespace trainer
