#include "data/image.h"

#include <fstream>
#include <iterator>

#ifdef TRAINER_HAVE_OPENCV
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#endif

#include "engine/error.h"

namespace trainer {

#ifdef TRAINER_HAVE_OPENCV

namespace {

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

}  // namespace

Image decode_image(std::span<const std::byte> bytes, const std::string& name) {
    try {
        const cv::Mat packed(1, static_cast<int>(bytes.size()), CV_8UC1,
                             const_cast<std::byte*>(bytes.data()));
        if (const cv::Mat mat = cv::imdecode(packed, cv::IMREAD_COLOR); !mat.empty())
            return image_of(mat, cv::COLOR_BGR2RGB);
    } catch (const cv::Exception&) {  // some faults are thrown, others give an empty image
    }
    throw Error("'" + name + "' is not an image that can be decoded");
}

Image resize_image(const Image& image, int64_t height, int64_t width) {
    check(height > 0 && width > 0 && image.height > 0 && image.width > 0, "images have pixels");
    const cv::Mat from(static_cast<int>(image.height), static_cast<int>(image.width), CV_8UC3,
                       const_cast<uint8_t*>(image.pixels.data()));
    const bool smaller = height < image.height && width < image.width;
    cv::Mat to;
    cv::resize(from, to, {static_cast<int>(width), static_cast<int>(height)}, 0, 0,
               smaller ? cv::INTER_AREA : cv::INTER_LINEAR);
    return image_of(to, -1);
}

#else

namespace {

constexpr const char* missing = "this build decodes no images (it was built without OpenCV)";

}  // namespace

Image decode_image(std::span<const std::byte>, const std::string& name) {
    throw UsageError("'" + name + "': " + missing);
}

Image resize_image(const Image&, int64_t, int64_t) {
    throw UsageError(missing);
}

#endif

Image read_image(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file)
        throw Error("'" + path.string() + "' cannot be read");
    return decode_image(std::as_bytes(std::span(bytes)), path.string());
}

}  // namespace trainer
