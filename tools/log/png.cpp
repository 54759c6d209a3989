// Figure as PNG, where librsvg is there to draw its SVG.
#include "tools/log/figure.h"

#ifdef TRAINER_HAVE_RSVG
#include <cairo.h>
#include <librsvg/rsvg.h>
#endif

#include <memory>
#include <span>
#include <string>

#include "engine/error.h"
#include "engine/whole_file.h"

namespace trainer::logs {
namespace {

namespace fs = std::filesystem;

#ifdef TRAINER_HAVE_RSVG

template <auto release>
struct Release {
    template <typename T>
    void operator()(T* object) const {
        release(object);
    }
};

cairo_status_t append(void* png, const unsigned char* bytes, unsigned int count) {
    static_cast<std::string*>(png)->append(reinterpret_cast<const char*>(bytes), count);
    return CAIRO_STATUS_SUCCESS;
}

std::string png_of(const Figure& figure, const fs::path& path) {
    constexpr double pixels = 2;  // to a unit of the SVG
    const std::string svg = svg_of(figure);
    const Layout layout = lay_out(figure);
    const std::unique_ptr<RsvgHandle, Release<g_object_unref>> handle(rsvg_handle_new_from_data(
        reinterpret_cast<const guint8*>(svg.data()), svg.size(), nullptr));
    check(handle != nullptr, "an SVG of ours is one");
    const std::unique_ptr<cairo_surface_t, Release<cairo_surface_destroy>> surface(
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(pixels * layout.width),
                                   static_cast<int>(pixels * layout.height)));
    const std::unique_ptr<cairo_t, Release<cairo_destroy>> context(cairo_create(surface.get()));
    const RsvgRectangle page{0, 0, pixels * layout.width, pixels * layout.height};
    check(rsvg_handle_render_document(handle.get(), context.get(), &page, nullptr) != 0,
          "an SVG of ours can be drawn");
    std::string png;
    const cairo_status_t status = cairo_surface_write_to_png_stream(surface.get(), append, &png);
    if (status != CAIRO_STATUS_SUCCESS)
        throw Error("'" + path.string() + "' cannot be drawn: " + cairo_status_to_string(status));
    return png;
}

#else

std::string png_of(const Figure&, const fs::path& path) {
    throw UsageError("--plot " + path.string() +
                     ": this build draws no PNG (it was built without librsvg2-dev); name a file " +
                     "that ends in .svg or .html");
}

#endif

}  // namespace

void write_figure(const Figure& figure, const fs::path& path) {
    std::string file;
    if (path.extension() == ".svg")
        file = svg_of(figure);
    else if (path.extension() == ".html")
        file = html_of(figure);
    else if (path.extension() == ".png")
        file = png_of(figure, path);
    else
        throw UsageError("--plot " + path.string() + ": name a file that ends in .png, .svg or " +
                         ".html");
    write_whole_file(path, std::as_bytes(std::span(file)));
}

}  // namespace trainer::logs
