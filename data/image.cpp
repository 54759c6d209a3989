#include "data/image.h"

#include <algorithm>
#include <cstring>
#include <optional>

#ifdef TRAINER_HAVE_OPENCV
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#endif

#include "data/jpeg.h"
#include "engine/error.h"

namespace trainer {

namespace {

#ifndef TRAINER_HAVE_OPENCV
constexpr const char* missing = "(it was built without OpenCV)";
#endif

/// How stored pixels become upright ones (EXIF 2.3, tag 0x0112): the upright image's rows are the
/// stored one's columns where `swap`, its stored rows and columns count from their ends.
struct Turn {
    bool swap = false, from_bottom = false, from_right = false;

    explicit Turn(int orientation)
        : swap(orientation >= 5),
          from_bottom(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7),
          from_right(orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) {
    }
    bool nothing() const { return !swap && !from_bottom && !from_right; }
};

/// Where the upright box lies in the stored image of height x width.
Box stored_box(const Turn& turn, Box box, int64_t height, int64_t width) {
    if (turn.swap)
        box = {box.left, box.top, box.width, box.height};
    if (turn.from_bottom)
        box.top = height - box.top - box.height;
    if (turn.from_right)
        box.left = width - box.left - box.width;
    return box;
}

void turn_image(const Turn& turn, const Image& stored, Image& out) {
    out.height = turn.swap ? stored.width : stored.height;
    out.width = turn.swap ? stored.height : stored.width;
    out.pixels.resize(stored.pixels.size());
    uint8_t* to = out.pixels.data();
    for (int64_t y = 0; y < out.height; ++y)
        for (int64_t x = 0; x < out.width; ++x, to += 3) {
            int64_t row = turn.swap ? x : y, column = turn.swap ? y : x;
            if (turn.from_bottom)
                row = stored.height - 1 - row;
            if (turn.from_right)
                column = stored.width - 1 - column;
            std::memcpy(to, stored.pixels.data() + (row * stored.width + column) * 3, 3);
        }
}

void use_rows(const Image& image, const Box& box, const UseRow& use) {
    for (int64_t y = box.top; y < box.top + box.height; ++y)
        use(image.pixels.data() + (y * image.width + box.left) * 3);
}

/// Writes rows one behind the other to `image`, which becomes height x width.
UseRow into(Image& image, int64_t height, int64_t width) {
    image.height = height;
    image.width = width;
    image.pixels.resize(static_cast<size_t>(height * width * 3));
    return [to = image.pixels.data(), length = width * 3](const uint8_t* row) mutable {
        to = std::copy_n(row, length, to);
    };
}

#ifdef TRAINER_HAVE_OPENCV

/// Of pixels that OpenCV made, in its order of channels.
Image image_of(const cv::Mat& mat, int conversion) {
    Image image{mat.rows, mat.cols, {}};
    image.pixels.resize(static_cast<size_t>(image.height * image.width * 3));
    cv::Mat target(mat.rows, mat.cols, CV_8UC3, image.pixels.data());
    if (conversion >= 0)
        cv::cvtColor(mat, target, conversion);
    else
        mat.copyTo(target);
    return image;
}

/// Decodes what OpenCV reads, not turned.
Image decode_other(std::span<const std::byte> bytes) {
    try {
        const cv::Mat packed(1, static_cast<int>(bytes.size()), CV_8UC1,
                             const_cast<std::byte*>(bytes.data()));
        const int flags = cv::IMREAD_COLOR | cv::IMREAD_IGNORE_ORIENTATION;
        if (const cv::Mat mat = cv::imdecode(packed, flags); !mat.empty())
            return image_of(mat, cv::COLOR_BGR2RGB);
    } catch (const cv::Exception&) {  // some faults are thrown, others give an empty image
    }
    throw CorruptImage("not an image that can be decoded");
}

#else

Image decode_other(std::span<const std::byte>) {
    throw UsageError(std::string("this build decodes no such images ") + missing);
}

#endif

bool is_png(std::span<const std::byte> bytes) {
    constexpr unsigned char start[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    return bytes.size() >= sizeof start && std::memcmp(bytes.data(), start, sizeof start) == 0;
}

/// A PNG ends with an empty chunk IEND; OpenCV makes gray of what a shorter file lacks.
void check_png_end(std::span<const std::byte> bytes) {
    for (size_t at = 8; at + 12 <= bytes.size();) {
        uint64_t length = 0;
        for (size_t i = 0; i < 4; ++i)
            length = length << 8 | std::to_integer<uint64_t>(bytes[at + i]);
        if (length > bytes.size() - at - 12)
            break;
        if (std::memcmp(bytes.data() + at + 4, "IEND", 4) == 0)
            return;
        at += 12 + length;
    }
    throw CorruptImage("a PNG that is cut short, at " + std::to_string(bytes.size()) + " bytes");
}

}  // namespace

struct ImageDecoder::State {
    explicit State(bool is_upright) : upright(is_upright) {}

    bool upright;
    std::span<const std::byte> bytes;
    JpegDecoder jpeg;
    JpegInfo info;                // of a JPEG
    std::optional<Image> stored;  // whole, where only all of it can be decoded
    int64_t stored_height = 0, stored_width = 0;
    Turn turn{1};
    Image part, turned;  // of the box, as stored and upright
};

ImageDecoder::ImageDecoder(bool upright) : state_(std::make_unique<State>(upright)) {}
ImageDecoder::~ImageDecoder() = default;

void ImageDecoder::open(std::span<const std::byte> bytes) {
    State& s = *state_;
    s.bytes = bytes;
    s.stored.reset();
    s.turn = Turn(1);
    if (bytes.empty())
        throw CorruptImage("an empty file");
    if (is_jpeg(bytes)) {
        s.info = read_jpeg_info(bytes);
        if (s.upright)
            s.turn = Turn(s.info.orientation);
        s.stored_height = s.info.height;
        s.stored_width = s.info.width;
        // What is left of a progressive one may decode as if it were whole, only coarser.
        if (s.info.end == 0 && (!has_jpeg_library() || !s.info.sequential))
            throw CorruptImage("a JPEG that is cut short (its end is missing)");
        // One without an end: whether only the marker is missing shows when all is decoded.
        if (has_jpeg_library() && s.info.end == 0)
            s.jpeg.decode(bytes, s.info, {0, 0, s.info.height, s.info.width},
                          into(s.stored.emplace(), s.info.height, s.info.width));
    } else if (is_png(bytes)) {
        check_png_end(bytes);
    }
    if (s.stored || (is_jpeg(bytes) && has_jpeg_library()))
        return;
    s.stored = decode_other(bytes);
    s.stored_height = s.stored->height;
    s.stored_width = s.stored->width;
}

int64_t ImageDecoder::height() const {
    return state_->turn.swap ? state_->stored_width : state_->stored_height;
}

int64_t ImageDecoder::width() const {
    return state_->turn.swap ? state_->stored_height : state_->stored_width;
}

void ImageDecoder::decode(const Box& box, Image& out) {
    decode(box, into(out, box.height, box.width));
}

void ImageDecoder::decode(const Box& box, const UseRow& use) {
    State& s = *state_;
    check(box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0 &&
              box.top + box.height <= height() && box.left + box.width <= width(),
          "a box inside the image");
    const Box stored = stored_box(s.turn, box, s.stored_height, s.stored_width);
    const auto decode_stored = [&](const UseRow& use_stored) {
        if (s.stored)
            use_rows(*s.stored, stored, use_stored);
        else
            s.jpeg.decode(s.bytes, s.info, stored, use_stored);
    };
    if (s.turn.nothing())
        return decode_stored(use);
    decode_stored(into(s.part, stored.height, stored.width));
    turn_image(s.turn, s.part, s.turned);
    use_rows(s.turned, {0, 0, box.height, box.width}, use);
}

Image decode_image(std::span<const std::byte> bytes, const std::string& name, bool upright) {
    try {
        ImageDecoder decoder(upright);
        decoder.open(bytes);
        Image image;
        decoder.decode({0, 0, decoder.height(), decoder.width()}, image);
        return image;
    } catch (const CorruptImage& error) {
        throw CorruptImage("'" + name + "': " + error.what());
    } catch (const UsageError& error) {
        throw UsageError("'" + name + "': " + error.what());
    }
}

#ifdef TRAINER_HAVE_OPENCV

std::vector<std::byte> encode_png(const Image& image, bool gray) {
    const cv::Mat from(static_cast<int>(image.height), static_cast<int>(image.width), CV_8UC3,
                       const_cast<uint8_t*>(image.pixels.data()));
    cv::Mat to;
    if (gray)
        cv::extractChannel(from, to, 0);
    else
        cv::cvtColor(from, to, cv::COLOR_RGB2BGR);
    std::vector<uint8_t> bytes;
    if (!cv::imencode(".png", to, bytes))
        throw Error("OpenCV cannot write a PNG");
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    return {first, first + bytes.size()};
}

#else

std::vector<std::byte> encode_png(const Image&, bool) {
    throw UsageError(std::string("this build writes no PNG ") + missing);
}

#endif

}  // namespace trainer
