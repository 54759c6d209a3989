// Decoding of what real archives hold: every kind of JPEG, other formats under any name, damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "data/image.h"
#include "data/jpeg.h"
#include "tests/error_of.h"
#include "tests/photos.h"

#ifdef TRAINER_HAVE_JPEG
#include <jpeglib.h>
#endif

namespace trainer {
namespace {

using Bytes = std::vector<std::byte>;

double mean_difference(const Image& a, const Image& b) {
    EXPECT_EQ(a.height, b.height);
    EXPECT_EQ(a.width, b.width);
    if (a.pixels.size() != b.pixels.size())
        return 1e9;
    double sum = 0;
    for (size_t i = 0; i < a.pixels.size(); ++i)
        sum += std::abs(a.pixels[i] - b.pixels[i]);
    return sum / static_cast<double>(a.pixels.size());
}

Image cut(const Image& image, const Box& box) {
    Image result{box.height, box.width, {}};
    for (int64_t y = 0; y < box.height; ++y) {
        const auto row = image.pixels.begin() + ((box.top + y) * image.width + box.left) * 3;
        result.pixels.insert(result.pixels.end(), row, row + box.width * 3);
    }
    return result;
}

#ifdef TRAINER_HAVE_JPEG

/// How a test writes a JPEG.
struct Writing {
    J_COLOR_SPACE from = JCS_RGB, stored = JCS_YCbCr;
    int channels = 3;
    int horizontal = 2, vertical = 2;  // luma's sampling
    bool progressive = false;
    int restart_rows = 0;
    bool adobe = true;  // of CMYK: with Adobe's marker, without which inks are not inverted
};

Bytes write_jpeg(const std::vector<uint8_t>& pixels, int64_t height, int64_t width,
                 const Writing& writing) {
    jpeg_compress_struct info{};
    jpeg_error_mgr errors{};
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    unsigned char* memory = nullptr;
    unsigned long size = 0;
    jpeg_mem_dest(&info, &memory, &size);
    info.image_height = static_cast<JDIMENSION>(height);
    info.image_width = static_cast<JDIMENSION>(width);
    info.input_components = writing.channels;
    info.in_color_space = writing.from;
    jpeg_set_defaults(&info);
    jpeg_set_colorspace(&info, writing.stored);
    jpeg_set_quality(&info, 97, TRUE);
    if (writing.stored == JCS_YCbCr || writing.stored == JCS_YCCK) {
        info.comp_info[0].h_samp_factor = writing.horizontal;
        info.comp_info[0].v_samp_factor = writing.vertical;
    }
    if (!writing.adobe)
        info.write_Adobe_marker = FALSE;
    info.restart_in_rows = writing.restart_rows;
    if (writing.progressive)
        jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
        auto* row = const_cast<JSAMPROW>(pixels.data()) + static_cast<size_t>(info.next_scanline) *
                                                              static_cast<size_t>(width) *
                                                              static_cast<size_t>(writing.channels);
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    const auto* first = reinterpret_cast<const std::byte*>(memory);
    Bytes bytes(first, first + size);
    jpeg_destroy_compress(&info);
    std::free(memory);
    return bytes;
}

TEST(Jpeg, APartIsWhatTheWholeHasThere) {
    for (const auto& [horizontal, vertical] : {std::pair(2, 2), {2, 1}, {1, 2}, {1, 1}, {4, 1}})
        for (const bool progressive : {false, true})
            for (const auto& [height, width] : {std::pair(97, 131), {64, 64}, {5, 200}, {33, 9}}) {
                SCOPED_TRACE(testing::Message() << horizontal << "x" << vertical << " progressive "
                                                << progressive << " " << height << "x" << width);
                const Image image = waves(height, width);
                const Bytes bytes = write_jpeg(image.pixels, height, width,
                                               {.horizontal = horizontal,
                                                .vertical = vertical,
                                                .progressive = progressive,
                                                .restart_rows = progressive ? 0 : 1});
                const Image whole = decode_image(bytes, "waves");
                EXPECT_LT(mean_difference(image, whole), 8);
                ImageDecoder decoder(true);
                Image part;
                for (const int64_t top : {0, 1, height / 2, height - 1})
                    for (const int64_t left : {0, 1, width / 3, width / 2, width - 1})
                        for (const int64_t size : {1, 2, 17, 1000}) {
                            const Box box{top, left, std::min<int64_t>(size, height - top),
                                          std::min<int64_t>(size, width - left)};
                            decoder.open(bytes);
                            decoder.decode(box, part);
                            ASSERT_EQ(part.pixels, cut(whole, box).pixels)
                                << top << " " << left << " " << box.height << "x" << box.width;
                        }
            }
}

TEST(Jpeg, PartsOfPhotographs) {
    if (sample_photos().empty())
        GTEST_SKIP() << no_sample_photos;
    int photos = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(sample_photos() / "train")) {
        if (!entry.is_regular_file() || ++photos % 4 != 0)
            continue;
        SCOPED_TRACE(entry.path());
        const Bytes bytes = read_bytes(entry.path());
        ImageDecoder decoder(false);
        decoder.open(bytes);
        const int64_t height = decoder.height(), width = decoder.width();
        Image whole, part;
        decoder.decode({0, 0, height, width}, whole);
        for (const Box& box : {Box{height / 3, width / 3, height / 3, width / 4},
                               Box{1, 1, height - 1, width - 1}, Box{0, width / 2, height, 5}}) {
            decoder.open(bytes);
            decoder.decode(box, part);
            ASSERT_EQ(part.pixels, cut(whole, box).pixels);
        }
    }
    EXPECT_GE(photos, 8);
}

TEST(Jpeg, GrayBecomesThreeEqualChannels) {
    std::vector<uint8_t> gray;
    for (int i = 0; i < 40 * 30; ++i)
        gray.push_back(static_cast<uint8_t>(i % 40 * 6));
    const Bytes bytes =
        write_jpeg(gray, 30, 40, {.from = JCS_GRAYSCALE, .stored = JCS_GRAYSCALE, .channels = 1});
    const Image image = decode_image(bytes, "gray");
    ASSERT_EQ(image.pixels.size(), gray.size() * 3);
    for (size_t i = 0; i < gray.size(); ++i) {
        EXPECT_NEAR(image.pixels[3 * i], gray[i], 6);
        EXPECT_EQ(image.pixels[3 * i], image.pixels[3 * i + 1]);
        EXPECT_EQ(image.pixels[3 * i], image.pixels[3 * i + 2]);
    }
}

TEST(Jpeg, InksBecomeColours) {
    // Of red (255, 64, 0) under a fifth of black: inks as Adobe writes them, 255 is none.
    const Image expected{16, 16, [] {
                             std::vector<uint8_t> pixels;
                             for (int i = 0; i < 256; ++i)
                                 for (const int value : {204, 51, 0})
                                     pixels.push_back(static_cast<uint8_t>(value));
                             return pixels;
                         }()};
    for (const J_COLOR_SPACE stored : {JCS_CMYK, JCS_YCCK})
        for (const bool adobe : {true, false}) {
            if (!adobe && stored == JCS_YCCK)
                continue;  // only Adobe's marker says YCCK
            std::vector<uint8_t> inks;
            for (int i = 0; i < 256; ++i)
                for (const int value : {255, 64, 0, 204})
                    inks.push_back(static_cast<uint8_t>(adobe ? value : 255 - value));
            const Bytes bytes = write_jpeg(
                inks, 16, 16, {.from = JCS_CMYK, .stored = stored, .channels = 4, .adobe = adobe});
            EXPECT_LT(mean_difference(expected, decode_image(bytes, "inks")), 2)
                << stored << " " << adobe;
        }
}

TEST(Jpeg, IsTurnedAsTheCameraNoted) {
    const Image upright = waves(48, 80);
    for (int orientation = 1; orientation <= 8; ++orientation) {
        SCOPED_TRACE(orientation);
        // What the camera stored, from the meaning of the tag: which edges row 0 and column 0 are.
        const bool swap = orientation >= 5;
        Image stored{swap ? 80 : 48, swap ? 48 : 80, {}};
        stored.pixels.resize(upright.pixels.size());
        for (int64_t row = 0; row < stored.height; ++row)
            for (int64_t column = 0; column < stored.width; ++column) {
                int64_t y = 0, x = 0;
                switch (orientation) {
                    case 1:  // row 0 is the top, column 0 the left
                        y = row, x = column;
                        break;
                    case 2:  // top, right
                        y = row, x = 79 - column;
                        break;
                    case 3:  // bottom, right
                        y = 47 - row, x = 79 - column;
                        break;
                    case 4:  // bottom, left
                        y = 47 - row, x = column;
                        break;
                    case 5:  // row 0 is the left edge, column 0 the top
                        x = row, y = column;
                        break;
                    case 6:  // right, top
                        x = 79 - row, y = column;
                        break;
                    case 7:  // right, bottom
                        x = 79 - row, y = 47 - column;
                        break;
                    default:  // left, bottom
                        x = row, y = 47 - column;
                }
                std::memcpy(stored.pixels.data() + (row * stored.width + column) * 3,
                            upright.pixels.data() + (y * 80 + x) * 3, 3);
            }
        const Bytes bytes = encode_jpeg(stored, 97, orientation);
        EXPECT_EQ(read_jpeg_info(bytes).orientation, orientation);
        const Image turned = decode_image(bytes, "turned");
        EXPECT_LT(mean_difference(upright, turned), 8);
        EXPECT_LT(mean_difference(stored, decode_image(bytes, "as stored", false)), 8);
        ImageDecoder decoder(true);
        decoder.open(bytes);
        EXPECT_EQ(decoder.height(), 48);
        EXPECT_EQ(decoder.width(), 80);
        const Box box{3, 50, 20, 11};
        Image part;
        decoder.decode(box, part);
        EXPECT_EQ(part.pixels, cut(turned, box).pixels);
    }
}

TEST(Jpeg, CutShortIsRejectedWhereverItIsCut) {
    const Image image = waves(60, 90);
    for (const bool progressive : {false, true}) {
        const Bytes bytes = write_jpeg(image.pixels, 60, 90, {.progressive = progressive});
        for (size_t size = 1; size + 3 < bytes.size(); size += size < 700 ? 1 : 97) {
            const auto part = std::span(bytes).first(size);
            EXPECT_NE(error_of<CorruptImage>([&] { decode_image(part, "a.JPEG"); }), "no error")
                << size << " of " << bytes.size();
        }
        EXPECT_NE(error_of<CorruptImage>([&] {
                      decode_image(std::span(bytes).first(bytes.size() / 2), "a b.JPEG");
                  }).find("'a b.JPEG': a JPEG that is cut short ("),
                  std::string::npos);
    }
}

TEST(Jpeg, LacksItsEndMarkerAlone) {
    const Image image = waves(60, 90);
    const Bytes bytes = write_jpeg(image.pixels, 60, 90, {});
    const Image whole = decode_image(bytes, "whole");
    const auto without = std::span(bytes).first(bytes.size() - 2);
    EXPECT_EQ(decode_image(without, "without").pixels, whole.pixels);
    EXPECT_EQ(read_jpeg_info(without).end, 0u);
    EXPECT_EQ(read_jpeg_info(bytes).end, bytes.size());
    Bytes longer = bytes;
    longer.resize(bytes.size() + 1000, std::byte{7});
    EXPECT_EQ(decode_image(longer, "longer").pixels, whole.pixels);
    EXPECT_EQ(read_jpeg_info(longer).end, bytes.size());
}

TEST(Jpeg, DamageInsideIsRejected) {
    const Image image = waves(200, 200);
    Bytes bytes = write_jpeg(image.pixels, 200, 200, {});
    // A marker that has no place there.
    bytes[bytes.size() / 2] = std::byte{0xff};
    bytes[bytes.size() / 2 + 1] = std::byte{0xd9};
    EXPECT_NE(error_of<CorruptImage>([&] {
                  decode_image(bytes, "a.JPEG");
              }).find("'a.JPEG': a damaged JPEG ("),
              std::string::npos);
    // A size that is not credible.
    Bytes huge = write_jpeg(image.pixels, 200, 200, {});
    const Bytes marker{std::byte{0xff}, std::byte{0xc0}};
    const auto frame = std::search(huge.begin(), huge.end(), marker.begin(), marker.end());
    std::fill_n(frame + 5, 4, std::byte{0xff});
    EXPECT_EQ(error_of<CorruptImage>([&] { decode_image(huge, "huge"); }),
              "'huge': a JPEG of 65535x65535 pixels, more than is credible");
}

#endif

Bytes text(const std::string& letters) {
    const auto* first = reinterpret_cast<const std::byte*>(letters.data());
    return {first, first + letters.size()};
}

TEST(Image, WhatIsNoImageIsRejected) {
    EXPECT_EQ(error_of<CorruptImage>([] { decode_image({}, "zero.JPEG"); }),
              "'zero.JPEG': an empty file");
    try {
        EXPECT_EQ(error_of<CorruptImage>([] { decode_image(text("<html>404</html>"), "a.JPEG"); }),
                  "'a.JPEG': not an image that can be decoded");
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("without OpenCV"), std::string::npos);
    }
    EXPECT_NE(error_of<CorruptImage>([] { decode_image(text("\xff\xd8\xff"), "a.JPEG"); }),
              "no error");
    EXPECT_NE(error_of<CorruptImage>([] { decode_image(text("\xff\xd8\xff\xd9"), "a.JPEG"); }),
              "no error");
}

TEST(Image, PngUnderAnyName) {
    const Image image = waves(31, 45);
    Bytes bytes;
    try {
        bytes = encode_png(image);
    } catch (const UsageError& error) {
        GTEST_SKIP() << error.what();
    }
    EXPECT_EQ(decode_image(bytes, "n02105855_2933.JPEG").pixels, image.pixels);
    const Image gray = decode_image(encode_png(image, true), "gray");
    for (size_t i = 0; i < gray.pixels.size(); ++i)
        EXPECT_EQ(gray.pixels[i], image.pixels[i / 3 * 3]);
    for (size_t size = 0; size < bytes.size(); size += 13)
        EXPECT_NE(
            error_of<CorruptImage>([&] { decode_image(std::span(bytes).first(size), "cut"); }),
            "no error")
            << size;
    EXPECT_EQ(error_of<CorruptImage>([&] { decode_image(std::span(bytes).first(100), "a.png"); }),
              "'a.png': a PNG that is cut short, at 100 bytes");
    bytes[bytes.size() / 2] ^= std::byte{0x40};  // a chunk's checksum does not hold
    EXPECT_NE(error_of<CorruptImage>([&] { decode_image(bytes, "a.png"); }), "no error");
}

/// A PNG of 16 bits a channel, uncompressed, written here: `colour_type` 2 is RGB, 6 has alpha.
Bytes png16(int width, int height, int colour_type, const std::vector<uint16_t>& values) {
    const auto number = [](std::string& to, uint32_t value) {
        for (int shift = 24; shift >= 0; shift -= 8)
            to += static_cast<char>(value >> shift);
    };
    const auto crc = [](const std::string& of) {
        uint32_t value = 0xffffffff;
        for (const char c : of) {
            value ^= static_cast<uint8_t>(c);
            for (int bit = 0; bit < 8; ++bit)
                value = value >> 1 ^ (value & 1 ? 0xedb88320 : 0);
        }
        return ~value;
    };
    std::string file = "\x89PNG\r\n\x1a\n";
    const auto chunk = [&](const std::string& type, const std::string& data) {
        number(file, static_cast<uint32_t>(data.size()));
        file += type + data;
        number(file, crc(type + data));
    };
    std::string head;
    number(head, static_cast<uint32_t>(width));
    number(head, static_cast<uint32_t>(height));
    head += std::string{16, static_cast<char>(colour_type), 0, 0, 0};
    chunk("IHDR", head);
    std::string raw;
    const size_t row = values.size() / static_cast<size_t>(height);
    for (size_t i = 0; i < values.size(); ++i) {
        if (i % row == 0)
            raw += '\0';  // no filter
        raw += static_cast<char>(values[i] >> 8);
        raw += static_cast<char>(values[i] & 255);
    }
    uint32_t a = 1, b = 0;  // zlib's checksum
    for (const char c : raw) {
        a = (a + static_cast<uint8_t>(c)) % 65521;
        b = (b + a) % 65521;
    }
    std::string packed = "\x78\x01\x01";  // one stored block
    const auto size = static_cast<uint16_t>(raw.size());
    for (const uint16_t value : {size, static_cast<uint16_t>(~size)}) {
        packed += static_cast<char>(value & 255);
        packed += static_cast<char>(value >> 8);
    }
    packed += raw;
    number(packed, b << 16 | a);
    chunk("IDAT", packed);
    chunk("IEND", "");
    return text(file);
}

TEST(Image, SixteenBitsAndTransparency) {
    std::vector<uint16_t> values;
    for (int i = 0; i < 8 * 4 * 3; ++i)
        values.push_back(static_cast<uint16_t>(i * 683));
    try {
        const Image image = decode_image(png16(8, 4, 2, values), "deep.png");
        ASSERT_EQ(image.pixels.size(), values.size());
        for (size_t i = 0; i < values.size(); ++i)
            EXPECT_NEAR(image.pixels[i], values[i] / 257.0, 1.0);
        const Image clear = decode_image(png16(6, 4, 6, values), "clear.png");
        ASSERT_EQ(clear.pixels.size(), 6u * 4 * 3);
        for (size_t i = 0; i < clear.pixels.size(); ++i)
            EXPECT_NEAR(clear.pixels[i], values[i / 3 * 4 + i % 3] / 257.0, 1.0);
    } catch (const UsageError& error) {
        GTEST_SKIP() << error.what();
    }
}

}  // namespace
}  // namespace trainer
