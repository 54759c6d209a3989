// JPEG files: what their markers say, without a library; decoding of a part of one, and encoding,
// behind the one door to libjpeg-turbo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/image.h"

namespace trainer {

/// What the markers of a JPEG file (ITU-T T.81, annex B) say.
struct JpegInfo {
    int64_t height = 0, width = 0;  ///< as stored, before any rotation
    int components = 0;
    bool sequential = true;  ///< data in one pass from top to bottom; else progressive
    int orientation = 1;     ///< of EXIF, 1 to 8; 1 where there is none or it is nonsense
    /// Offset behind the end marker (EOI); 0: there is none behind the start of the scan, so that
    /// the file may be cut short.
    size_t end = 0;
};

/// Whether the bytes begin as a JPEG file does.
bool is_jpeg(std::span<const std::byte> bytes);

/// Reads the markers up to the first scan. Throws CorruptImage where they are none, or end before
/// it.
JpegInfo read_jpeg_info(std::span<const std::byte> bytes);

/// Whether this build has libjpeg-turbo.
bool has_jpeg_library();

/// Decodes JPEG files, one after another, in memory that it keeps. Of one thread at a time.
class JpegDecoder {
  public:
    JpegDecoder();
    ~JpegDecoder();
    JpegDecoder(const JpegDecoder&) = delete;
    JpegDecoder& operator=(const JpegDecoder&) = delete;

    /// Gives the rows of `box`, which lies inside the image, to `use`, from top to bottom: RGB,
    /// whatever the file holds (gray, YCbCr, CMYK and YCCK as Adobe writes them). They are the
    /// pixels that decoding the whole image would give; what lies outside the box is mostly left
    /// undecoded. Throws CorruptImage where the data that the box needs is damaged or missing,
    /// UsageError where this build has no libjpeg-turbo.
    void decode(std::span<const std::byte> bytes, const JpegInfo& info, const Box& box,
                const UseRow& use);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// A baseline JPEG file of the image (4:2:0, optimised tables), with an EXIF orientation where it
/// is not 1: the same bytes for the same image, quality (1 to 100) and libjpeg-turbo.
/// Throws UsageError where this build has none.
std::vector<std::byte> encode_jpeg(const Image& image, int quality, int orientation = 1);

}  // namespace trainer
