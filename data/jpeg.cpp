// libjpeg-turbo: decoding a part of a file, and encoding.
//
// Between setjmp and longjmp no object with a destructor is made.
#include "data/jpeg.h"

#include <algorithm>

#ifdef TRAINER_HAVE_JPEG
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
// After cstdio, which it takes for granted.
#include <jerror.h>
#include <jpeglib.h>
#endif

namespace trainer {

#ifdef TRAINER_HAVE_JPEG

namespace {

/// libjpeg's error handler: errors jump back, warnings of lost data are errors, others are not.
struct Failure {
    jpeg_error_mgr manager;  // first, so that libjpeg's pointer to it is one to this
    std::jmp_buf back;
    char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void jump_back(j_common_ptr info) {
    auto* failure = reinterpret_cast<Failure*>(info->err);
    info->err->format_message(info, failure->message);
    std::longjmp(failure->back, 1);
}

void hear_message(j_common_ptr info, int level) {
    if (level >= 0)
        return;
    switch (info->err->msg_code) {
        case JWRN_ADOBE_XFORM:
        case JWRN_EXTRANEOUS_DATA:
        case JWRN_JFIF_MAJOR:
            break;  // stray bytes between segments, an odd version number: nothing is lost
        default:
            jump_back(info);
    }
}

void set_up(Failure& failure) {
    jpeg_std_error(&failure.manager);
    failure.manager.error_exit = jump_back;
    failure.manager.emit_message = hear_message;
}

/// Where the bytes end, an end marker follows: data that is missing is then told as a marker in
/// the middle of it, and a file that lacks its end marker alone is whole.
boolean give_end(j_decompress_ptr info) {
    static const JOCTET end[] = {0xff, JPEG_EOI};
    info->src->next_input_byte = end;
    info->src->bytes_in_buffer = sizeof end;
    return TRUE;
}

void skip_input(j_decompress_ptr info, long count) {
    jpeg_source_mgr* source = info->src;
    if (count <= 0)
        return;
    if (static_cast<size_t>(count) > source->bytes_in_buffer) {
        give_end(info);
        return;
    }
    source->next_input_byte += count;
    source->bytes_in_buffer -= static_cast<size_t>(count);
}

/// Adobe's programs write inks `inverted`: 255 is none.
void cmyk_to_rgb(const uint8_t* from, bool inverted, int64_t count, uint8_t* to) {
    const int flip = inverted ? 0 : 255;
    for (int64_t i = 0; i < count; ++i, from += 4, to += 3)
        for (int c = 0; c < 3; ++c)
            to[c] = static_cast<uint8_t>(((from[c] ^ flip) * (from[3] ^ flip) + 127) / 255);
}

}  // namespace

struct JpegDecoder::State {
    jpeg_decompress_struct info{};
    jpeg_source_mgr source{};
    Failure failure{};
    std::vector<uint8_t> row;  // of the columns that are decoded
    std::vector<uint8_t> rgb;  // of the box, where it was inks

    // Returns whether it went well; failure.message says why not.
    bool decode(std::span<const std::byte> bytes, const JpegInfo& known, const Box& box,
                const UseRow& use);
    void read_rows(const Box& box, const UseRow& use);
    uint8_t* place_of_row();
};

bool JpegDecoder::State::decode(std::span<const std::byte> bytes, const JpegInfo& known,
                                const Box& box, const UseRow& use) {
    if (setjmp(failure.back) != 0) {
        jpeg_abort_decompress(&info);
        return false;
    }
    source.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
    source.bytes_in_buffer = bytes.size();
    info.src = &source;
    jpeg_read_header(&info, TRUE);
    if (info.image_width != known.width || info.image_height != known.height) {
        std::snprintf(failure.message, sizeof failure.message, "two sizes in one file");
        jpeg_abort_decompress(&info);
        return false;
    }
    const bool inks = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
    info.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info);
    read_rows(box, use);
    jpeg_abort_decompress(&info);
    return true;
}

/// In `row`, 1 behind a multiple of 32: to those libjpeg-turbo writes past the caches, from which
/// the row is read at once.
uint8_t* JpegDecoder::State::place_of_row() {
    const auto address = reinterpret_cast<uintptr_t>(row.data());
    return row.data() + (32 - address % 32) + 1;
}

void JpegDecoder::State::read_rows(const Box& box, const UseRow& use) {
    // Chroma at the edge of a crop is interpolated without its neighbour: where it is stored more
    // coarsely, a few more columns give every pixel of the box what the whole image would.
    const int64_t margin = info.max_h_samp_factor > 1 ? 8 : 0;
    const int64_t whole = info.image_width;
    const int64_t first = std::max<int64_t>(0, box.left - margin);
    const int64_t last = std::min(whole, box.left + box.width + margin);
    auto left = static_cast<JDIMENSION>(first);
    auto width = static_cast<JDIMENSION>(last - first);
    if (first > 0 || last < whole)
        jpeg_crop_scanline(&info, &left, &width);
    if (box.top > 0)
        jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(box.top));
    const int channels = info.output_components;
    JSAMPROW rows[] = {place_of_row()};
    const uint8_t* start = rows[0] + (box.left - left) * channels;
    for (int64_t y = 0; y < box.height; ++y) {
        jpeg_read_scanlines(&info, rows, 1);
        if (channels == 4)
            cmyk_to_rgb(start, info.saw_Adobe_marker != FALSE, box.width, rgb.data());
        use(channels == 4 ? rgb.data() : start);
    }
}

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
    State& s = *state_;
    set_up(s.failure);
    s.info.err = &s.failure.manager;
    if (setjmp(s.failure.back) != 0)
        std::abort();  // the header and the library are of different versions
    jpeg_create_decompress(&s.info);
    s.source.init_source = [](j_decompress_ptr) {};
    s.source.fill_input_buffer = give_end;
    s.source.skip_input_data = skip_input;
    s.source.resync_to_restart = jpeg_resync_to_restart;
    s.source.term_source = [](j_decompress_ptr) {};
}

JpegDecoder::~JpegDecoder() {
    jpeg_destroy_decompress(&state_->info);
}

void JpegDecoder::decode(std::span<const std::byte> bytes, const JpegInfo& info, const Box& box,
                         const UseRow& use) {
    check(box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0 &&
              box.top + box.height <= info.height && box.left + box.width <= info.width,
          "a box inside the image");
    State& s = *state_;
    s.row.resize(static_cast<size_t>(info.width) * 4 + 33);
    s.rgb.resize(static_cast<size_t>(box.width) * 3);
    if (!s.decode(bytes, info, box, use))
        throw CorruptImage(
            std::string(info.end == 0 ? "a JPEG that is cut short" : "a damaged JPEG") + " (" +
            s.failure.message + ")");
}

namespace {

struct Encoder {
    jpeg_compress_struct info{};
    Failure failure{};
    unsigned char* target = nullptr;
    unsigned long bytes = 0;

    bool encode(const Image& image, int quality, std::span<const JOCTET> exif);
};

bool Encoder::encode(const Image& image, int quality, std::span<const JOCTET> exif) {
    set_up(failure);
    info.err = &failure.manager;
    if (setjmp(failure.back) != 0) {
        jpeg_destroy_compress(&info);
        return false;
    }
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &target, &bytes);
    info.image_height = static_cast<JDIMENSION>(image.height);
    info.image_width = static_cast<JDIMENSION>(image.width);
    info.input_components = 3;
    info.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    info.optimize_coding = TRUE;
    jpeg_start_compress(&info, TRUE);
    if (!exif.empty())
        jpeg_write_marker(&info, JPEG_APP0 + 1, exif.data(), static_cast<unsigned>(exif.size()));
    while (info.next_scanline < info.image_height) {
        JSAMPROW row = const_cast<JSAMPROW>(image.pixels.data()) +
                       static_cast<size_t>(info.next_scanline) * info.image_width * 3;
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    return true;
}

}  // namespace

std::vector<std::byte> encode_jpeg(const Image& image, int quality, int orientation) {
    // "Exif", then a TIFF header and a directory of one entry: tag 0x0112, one 16-bit number.
    const auto value = static_cast<JOCTET>(orientation);
    const JOCTET exif[] = {'E', 'x',  'i', 'f', 0, 0, 'M', 'M', 0, 42,    0, 0, 0, 8, 0, 1,
                           1,   0x12, 0,   3,   0, 0, 0,   1,   0, value, 0, 0, 0, 0, 0, 0};
    Encoder encoder;
    const bool good = encoder.encode(
        image, quality, orientation == 1 ? std::span<const JOCTET>() : std::span(exif));
    std::vector<std::byte> result;
    if (good) {
        const auto* first = reinterpret_cast<const std::byte*>(encoder.target);
        result.assign(first, first + encoder.bytes);
    }
    std::free(encoder.target);
    if (!good)
        throw Error(std::string("a JPEG cannot be written (") + encoder.failure.message + ")");
    return result;
}

bool has_jpeg_library() {
    return true;
}

#else

struct JpegDecoder::State {};

JpegDecoder::JpegDecoder() = default;
JpegDecoder::~JpegDecoder() = default;

namespace {

constexpr const char* missing = "it was built without libjpeg-turbo";

}  // namespace

void JpegDecoder::decode(std::span<const std::byte>, const JpegInfo&, const Box&, const UseRow&) {
    throw UsageError(std::string("this build decodes no JPEG (") + missing + ")");
}

std::vector<std::byte> encode_jpeg(const Image&, int, int) {
    throw UsageError(std::string("this build writes no JPEG (") + missing + ")");
}

bool has_jpeg_library() {
    return false;
}

#endif

}  // namespace trainer
