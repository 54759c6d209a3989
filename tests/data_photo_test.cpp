// Photographs on their way to the network: resizing, crops, colours, and the source of samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "data/loader.h"
#include "data/permutation.h"
#include "data/photo_source.h"
#include "engine/random.h"
#include "tests/photos.h"
#include "tests/python.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

/// A binary image that every build decodes: PPM needs OpenCV, JPEG one of both.
void write_photo(const fs::path& path, const Image& image) {
    std::vector<std::byte> bytes;
    try {
        bytes = encode_png(image);
    } catch (const UsageError&) {
        bytes.clear();
    }
    write_bytes(path, bytes);
}

bool has_png() {
    try {
        encode_png(waves(2, 2));
        return true;
    } catch (const UsageError&) {
        return false;
    }
}

#define NEEDS_PNG() \
    if (!has_png()) \
    GTEST_SKIP() << "this build writes no PNG"

Image resized(const Image& image, int64_t height, int64_t width) {
    ResampleAxis rows, columns;
    rows.plan(image.height, height, 0, height);
    columns.plan(image.width, width, 0, width);
    const Box box{rows.begin, columns.begin, rows.end - rows.begin, columns.end - columns.begin};
    Image part{box.height, box.width, {}}, out;
    for (int64_t y = 0; y < box.height; ++y) {
        const auto row = image.pixels.begin() + ((box.top + y) * image.width + box.left) * 3;
        part.pixels.insert(part.pixels.end(), row, row + box.width * 3);
    }
    Resampler().run(part, rows, columns, out);
    return out;
}

TEST(Resample, SameSizeIsTheSameImage) {
    const Image image = waves(13, 29);
    EXPECT_EQ(resized(image, 13, 29).pixels, image.pixels);
}

TEST(Resample, WeightsSumToOneAndStayInside) {
    for (const int64_t source : {1, 2, 3, 7, 100, 1001, 30000})
        for (const int64_t target : {1, 2, 5, 64, 224}) {
            ResampleAxis axis;
            axis.plan(source, target, 0, target);
            EXPECT_GE(axis.begin, 0);
            EXPECT_LE(axis.end, source);
            for (int64_t i = 0; i < target; ++i) {
                const auto first = axis.first[static_cast<size_t>(i)];
                EXPECT_GE(first, axis.begin);
                EXPECT_LE(first + axis.taps, axis.end);
                int sum = 0;
                for (int64_t k = 0; k < axis.taps; ++k) {
                    EXPECT_GE(axis.weights[static_cast<size_t>(i * axis.taps + k)], 0);
                    sum += axis.weights[static_cast<size_t>(i * axis.taps + k)];
                }
                EXPECT_GE(sum, 32767);
                EXPECT_LE(sum, 32768);
            }
        }
}

/// The same in doubles, as the mathematics has it.
double resized_exactly(const Image& image, int64_t height, int64_t width, int64_t y, int64_t x,
                       int64_t channel) {
    const auto triangle = [](int64_t pixel, int64_t place, int64_t source, int64_t target) {
        const double scale = static_cast<double>(source) / static_cast<double>(target);
        const double distance =
            static_cast<double>(pixel) + 0.5 - (static_cast<double>(place) + 0.5) * scale;
        return std::max(0.0, 1 - std::abs(distance) / std::max(scale, 1.0));
    };
    double sum = 0, total = 0;
    for (int64_t row = 0; row < image.height; ++row)
        for (int64_t column = 0; column < image.width; ++column) {
            const double weight =
                triangle(row, y, image.height, height) * triangle(column, x, image.width, width);
            total += weight;
            sum += weight *
                   image.pixels[static_cast<size_t>((row * image.width + column) * 3 + channel)];
        }
    return sum / total;
}

TEST(Resample, IsWithinAFifthOfALevelOfTheExactMean) {
    for (const auto& [height, width, to_height, to_width] : {std::array<int64_t, 4>{60, 80, 33, 29},
                                                             {9, 7, 40, 51},
                                                             {100, 40, 20, 64},
                                                             {300, 200, 16, 18},
                                                             {1, 1, 5, 9},
                                                             {17, 90, 17, 3}}) {
        Image image = waves(height, width);
        for (int64_t i = 0; i < width * 3; ++i)  // the largest values too
            image.pixels[static_cast<size_t>(i)] = 255;
        const Image result = resized(image, to_height, to_width);
        for (int64_t y = 0; y < to_height; y += 3)
            for (int64_t x = 0; x < to_width; ++x)
                for (int64_t c = 0; c < 3; ++c)
                    ASSERT_NEAR(result.pixels[static_cast<size_t>((y * to_width + x) * 3 + c)],
                                resized_exactly(image, to_height, to_width, y, x, c), 0.7)
                        << height << "x" << width << " to " << to_height << "x" << to_width;
    }
}

TEST(Resample, HalvingAveragesUnderATriangle) {
    // Scale 2: weights 1, 3, 3, 1 of 8 around the middle of each pair.
    Image image{1, 8, {}};
    const std::vector<int> values = {0, 8, 16, 80, 160, 240, 8, 0};
    for (const int value : values)
        image.pixels.insert(image.pixels.end(), 3, static_cast<uint8_t>(value));
    const Image half = resized(image, 1, 4);
    const auto mean = [&](int a, int b, int c, int d) {
        return static_cast<int>((values[a] + 3 * values[b] + 3 * values[c] + values[d]) / 8.0 +
                                0.5);
    };
    EXPECT_EQ(half.pixels[3], mean(1, 2, 3, 4));
    EXPECT_EQ(half.pixels[6], mean(3, 4, 5, 6));
}

TEST(Resample, APartOfAResizeIsThatPart) {
    const Image image = waves(97, 143);
    const Image whole = resized(image, 50, 61);
    ResampleAxis rows, columns;
    rows.plan(97, 50, 10, 20);
    columns.plan(143, 61, 31, 30);
    Image part{rows.end - rows.begin, columns.end - columns.begin, {}}, out;
    for (int64_t y = rows.begin; y < rows.end; ++y) {
        const auto row = image.pixels.begin() + (y * 143 + columns.begin) * 3;
        part.pixels.insert(part.pixels.end(), row, row + part.width * 3);
    }
    Resampler().run(part, rows, columns, out);
    for (int64_t y = 0; y < 20; ++y)
        EXPECT_TRUE(std::equal(out.pixels.begin() + y * 90, out.pixels.begin() + (y + 1) * 90,
                               whole.pixels.begin() + ((10 + y) * 61 + 31) * 3));
}

TEST(PhotoTransform, CropsAreOfTheSizesAndShapesAskedFor) {
    PhotoAugmentOptions options{.crop = true};
    double mean_area = 0;
    int flips = 0;
    constexpr int count = 4000;
    options.flip = true;
    for (int64_t sample = 0; sample < count; ++sample) {
        const PhotoTransform t = draw_photo_transform(options, 400, 500, 3, 1, sample);
        ASSERT_GE(t.crop.top, 0);
        ASSERT_GE(t.crop.left, 0);
        ASSERT_LE(t.crop.top + t.crop.height, 400);
        ASSERT_LE(t.crop.left + t.crop.width, 500);
        const auto h = static_cast<double>(t.crop.height), w = static_cast<double>(t.crop.width);
        EXPECT_GT(w / h, 0.75 - 0.02);
        EXPECT_LT(w / h, 4.0 / 3 + 0.02);
        EXPECT_GT(h * w / 200000, 0.078);
        mean_area += h * w / 200000 / count;
        flips += t.flip;
    }
    // By a simulation of the recipe: areas are uniform from 0.08 to 1, but the largest seldom fit.
    EXPECT_NEAR(mean_area, 0.4533, 0.016);  // four deviations
    EXPECT_NEAR(flips, count / 2, 130);
}

TEST(PhotoTransform, IsAPureFunctionOfSeedEpochAndSample) {
    PhotoAugmentOptions options{.crop = true, .flip = true};
    const auto draw = [&](uint64_t seed, int64_t epoch, int64_t sample) {
        return draw_photo_transform(options, 400, 500, seed, epoch, sample);
    };
    EXPECT_EQ(draw(1, 2, 3).crop, draw(1, 2, 3).crop);
    EXPECT_NE(draw(1, 2, 3).crop, draw(2, 2, 3).crop);
    EXPECT_NE(draw(1, 2, 3).crop, draw(1, 3, 3).crop);
    EXPECT_NE(draw(1, 2, 3).crop, draw(1, 2, 4).crop);
    const Box before = draw(1, 2, 3).crop;
    options.flip = false;
    options.jitter = {0.4, 0.4, 0.4, 0.1};
    EXPECT_EQ(draw(1, 2, 3).crop, before) << "one draw moves another";
}

TEST(PhotoTransform, WhereNoCropFitsTheMiddleIsTaken) {
    PhotoAugmentOptions options{.crop = true, .scale_low = 1, .scale_high = 1};
    const auto middle = [](int64_t) { return int64_t{0}; };
    const auto one = [] { return 0.999; };
    EXPECT_EQ(draw_crop(options, 100, 1000, one, middle), (Box{0, 433, 100, 133}));
    EXPECT_EQ(draw_crop(options, 1000, 100, one, middle), (Box{433, 0, 133, 100}));
    EXPECT_EQ(draw_crop(options, 100, 110, one, middle), (Box{0, 0, 100, 110}));
}

TEST(PhotoTransform, BadOptionsAreNamed) {
    const auto message = [](const PhotoAugmentOptions& options) -> std::string {
        try {
            check_photo_augmentation(options);
        } catch (const UsageError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(message({}), "");
    EXPECT_NE(message({.scale_low = 0}).find("data.augment.scale is [0"), std::string::npos);
    EXPECT_NE(message({.scale_low = 0.5, .scale_high = 0.2}).find("scale"), std::string::npos);
    EXPECT_NE(message({.ratio_low = 2, .ratio_high = 1}).find("ratio"), std::string::npos);
    EXPECT_NE(message({.jitter = {0, 0, 0, 0.6}}).find("half a circle"), std::string::npos);
    EXPECT_NE(message({.jitter = {-1, 0, 0, 0}}).find("color_jitter"), std::string::npos);
}

/// Writes what the samples of a folder of photographs are made of, and checks it with torchvision.
TEST(PhotoTransform, EqualsTorchvisions) {
    if (sample_photos().empty())
        GTEST_SKIP() << no_sample_photos;
    const TemporaryFolder folder;
    std::ofstream cases(folder / "cases.txt");
    int64_t number = 0;
    ImageDecoder decoder(false);
    PhotoTransformer transformer(224, 256);
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(sample_photos() / "train"))
        if (entry.is_regular_file())
            files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& path : files) {
        if (++number % 3 != 0)
            continue;
        const std::vector<std::byte> bytes = read_bytes(path);
        decoder.open(bytes);
        PhotoAugmentOptions options{.crop = true, .flip = true};
        if (number % 2 == 0)
            options.jitter = {0.4, 0.4, 0.4, number % 4 == 0 ? 0.1 : 0.0};
        Random random{5, static_cast<uint64_t>(number)};
        std::string uniforms, places;
        PhotoTransform t =
            draw_photo_transform(options, decoder.height(), decoder.width(), 5, 0, number);
        t.crop = draw_crop(
            options, decoder.height(), decoder.width(),
            [&] {
                const double drawn = random.uniform();
                char text[40];
                std::snprintf(text, sizeof text, "%s%.17g", uniforms.empty() ? "" : ",", drawn);
                uniforms += text;
                return drawn;
            },
            [&](int64_t n) {
                const auto drawn = static_cast<int64_t>(random.below(static_cast<uint64_t>(n)));
                places += (places.empty() ? "" : ",") + std::to_string(drawn);
                return drawn;
            });
        const auto keep = [&](const char* what, const Image& image) {
            std::ofstream(folder / (std::to_string(number) + "." + what), std::ios::binary)
                .write(reinterpret_cast<const char*>(image.pixels.data()),
                       static_cast<std::streamsize>(image.pixels.size()));
        };
        Image& photo = transformer.train(decoder, t.crop);
        keep("crop", photo);
        jitter_colours(t, photo);
        keep("train", photo);
        decoder.open(bytes);
        keep("eval", transformer.evaluate(decoder));
        cases << number << ' ' << t.crop.top << ' ' << t.crop.left << ' ' << t.crop.height << ' '
              << t.crop.width << ' ' << uniforms << ' ' << (places.empty() ? "-" : places);
        for (const int what : t.order)
            cases << ' ' << what;
        cases.precision(17);
        for (const double change : t.change)
            cases << ' ' << change;
        cases << ' ' << path.string() << '\n';
    }
    cases.close();
    EXPECT_GT(number, 20);
    const PythonResult result =
        run_python("torchvision_transforms_test.py", "'" + folder.path().string() + "'");
    if (result.code == python_skipped)
        GTEST_SKIP() << result.output;
    EXPECT_EQ(result.code, 0) << result.output;
    std::cout << result.output;
}

TEST(PhotoTransform, Normalises) {
    for (const int64_t width : {1, 5, 16, 70}) {
        const Image image = waves(3, width);
        const Normalizer normalizer({{0.5, 0.4, 0.3}, {0.2, 0.3, 0.4}}, 3);
        const auto pixels = static_cast<size_t>(3 * width);
        std::vector<float> values(3 * pixels);
        normalize_photo(image, normalizer, values.data());
        for (size_t c = 0; c < 3; ++c)
            for (size_t i = 0; i < pixels; ++i) {
                const uint8_t byte = image.pixels[3 * i + c];
                const double expected = (byte / 255.0 - (0.5 - 0.1 * static_cast<double>(c))) /
                                        (0.2 + 0.1 * static_cast<double>(c));
                EXPECT_NEAR(values[c * pixels + i], expected, 1e-6);
                EXPECT_NEAR(values[c * pixels + i], normalizer.table(static_cast<int64_t>(c))[byte],
                            1e-6);
            }
    }
}

TEST(PhotoTransform, AFlipIsTheSameImageMirrored) {
    NEEDS_PNG();
    const std::vector<std::byte> bytes = encode_png(waves(90, 120));
    ImageDecoder decoder(true);
    PhotoTransformer transformer(31, 40);
    const auto expect_mirrored = [](const Image& plain, const Image& flipped) {
        ASSERT_EQ(plain.width, 31);
        for (int64_t y = 0; y < 31; ++y)
            for (int64_t x = 0; x < 31; ++x)
                for (int64_t c = 0; c < 3; ++c)
                    ASSERT_EQ(plain.pixels[static_cast<size_t>((y * 31 + x) * 3 + c)],
                              flipped.pixels[static_cast<size_t>((y * 31 + 30 - x) * 3 + c)]);
    };
    decoder.open(bytes);
    const Image crop = transformer.train(decoder, {5, 20, 80, 77});
    decoder.open(bytes);
    expect_mirrored(crop, transformer.train(decoder, {5, 20, 80, 77}, true));
    decoder.open(bytes);
    const Image middle = transformer.evaluate(decoder);
    EXPECT_NE(middle.pixels, crop.pixels);
    decoder.open(bytes);
    expect_mirrored(middle, transformer.evaluate(decoder, true));
}

/// Six photographs of three classes.
Dataset small_folder(const fs::path& dir, PhotoOptions options = {.image_size = 32, .resize = 36}) {
    for (int i = 0; i < 6; ++i)
        write_photo(dir / "train" / ("class" + std::to_string(i / 2)) /
                        ("photo " + std::to_string(i) + ".JPEG"),
                    waves(40 + 7 * i, 60 - 3 * i, i));
    fs::create_directories(dir / "val");
    for (const char* name : {"class0", "class1", "class2"})
        write_photo(dir / "val" / name / "a.JPEG", waves(50, 50));
    return load_dataset({.dataset = "folder", .dir = dir.string(), .photos = options});
}

LoaderOptions photo_loader(int threads) {
    LoaderOptions options;
    options.batch = 2;
    options.seed = 9;
    options.threads = threads;
    options.augment.photo = {.crop = true, .flip = true, .jitter = {0.4, 0.4, 0.4, 0.1}};
    options.normalization = default_normalization("imagenet");
    return options;
}

std::vector<float> take(Loader& loader, int64_t steps) {
    std::vector<float> all;
    for (int64_t i = 0; i < steps; ++i) {
        const Batch& batch = loader.next();
        all.insert(all.end(), batch.images, batch.images + 2 * 3 * 32 * 32);
        all.insert(all.end(), batch.labels, batch.labels + 2);
    }
    return all;
}

TEST(PhotoSource, BatchesAreTheSameOnAnyThreadsAndAfterARestart) {
    NEEDS_PNG();
    const TemporaryFolder folder;
    const Dataset data = small_folder(folder.path());
    EXPECT_EQ(data.count, 6);
    EXPECT_EQ(data.classes, 3);
    EXPECT_EQ(data.labels, (std::vector<int32_t>{0, 0, 1, 1, 2, 2}));
    Loader one(data, photo_loader(1)), four(data, photo_loader(4));
    one.start(0);
    const std::vector<float> expected = take(one, 9);
    four.start(0);
    EXPECT_EQ(take(four, 9), expected);
    four.start(1, 2);
    const std::vector<float> rest = take(four, 4);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), expected.begin() + 5 * (2 * 3 * 32 * 32 + 2)));
    EXPECT_EQ(one.source_times().samples > 0, true);
    EXPECT_TRUE(one.take_notes().empty());
}

TEST(PhotoSource, DamagedImagesFailOrAreSkippedByName) {
    NEEDS_PNG();
    const TemporaryFolder folder;
    small_folder(folder.path());
    const fs::path bad = folder / "train" / "class1" / "photo 2.JPEG";
    std::ofstream(bad, std::ios::trunc) << "no image";
    PhotoOptions options{.image_size = 32, .resize = 36};
    LoaderOptions how = photo_loader(2);
    how.shuffle = false;
    {
        const Dataset data =
            load_dataset({.dataset = "folder", .dir = folder.path().string(), .photos = options});
        Loader loader(data, how);
        loader.start(0);
        loader.next();
        try {
            loader.next();
            FAIL() << "no error";
        } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what()),
                      "image 2 is damaged: " + bad.string() +
                          ": not an image that can be decoded; data.on_corrupt: skip goes on "
                          "without it");
        }
    }
    options.skip_corrupt = true;
    const Dataset data =
        load_dataset({.dataset = "folder", .dir = folder.path().string(), .photos = options});
    Loader loader(data, how);
    loader.start(0);
    loader.next();
    std::vector<float> image(3 * 32 * 32);
    int32_t label = -1;
    PhotoSource(data, how.augment.photo, how.normalization, 9).load(0, 3, image.data(), label);
    const Batch& batch = loader.next();
    EXPECT_EQ(batch.labels[0], label);
    EXPECT_EQ(std::memcmp(batch.images, image.data(), image.size() * 4), 0);
    loader.start(0);  // what was read ahead is done
    const std::vector<std::string> notes = loader.take_notes();
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0], "image 2 is damaged: " + bad.string() +
                            ": not an image that can be decoded; skipped, image 3 takes its place");
    EXPECT_TRUE(loader.take_notes().empty());
}

TEST(PhotoSource, WithoutSubstitutesTheOthersCountOnce) {
    NEEDS_PNG();
    const TemporaryFolder folder;
    small_folder(folder.path());
    for (const char* name : {"class0/photo 0.JPEG", "class1/photo 3.JPEG", "class2/photo 4.JPEG",
                             "class2/photo 5.JPEG"})
        std::ofstream(folder / "train" / name, std::ios::trunc) << "no image";
    const Dataset data =
        load_dataset({.dataset = "folder",
                      .dir = folder.path().string(),
                      .photos = {.image_size = 32, .resize = 36, .skip_corrupt = true}});
    LoaderOptions how = photo_loader(2);
    how.shuffle = how.repeat = how.substitute = false;
    how.augment = {};
    Loader loader(data, how);
    const PhotoSource source(data, {}, how.normalization, 1);
    for (int round = 0; round < 2; ++round) {
        std::vector<int64_t> sizes;
        std::vector<float> images;
        loader.start(0);
        for (const Batch* batch = &loader.next(); batch->global_size > 0; batch = &loader.next()) {
            sizes.push_back(batch->size);
            images.insert(images.end(), batch->images, batch->images + 3 * 32 * 32);
            EXPECT_EQ(batch->labels[0], std::ssize(sizes) == 2 ? 1 : 0);
            EXPECT_EQ(batch->labels[1], 0);
        }
        EXPECT_EQ(sizes, (std::vector<int64_t>{1, 1, 0}));
        std::vector<float> expected(images.size());  // images 1 and 2, and zeros
        int32_t label = -1;
        source.load(0, 1, expected.data(), label);
        source.load(0, 2, expected.data() + 3 * 32 * 32, label);
        EXPECT_EQ(images, expected);
    }
    const std::vector<std::string> notes = loader.take_notes();
    EXPECT_EQ(notes.size(), 4u) << "each once";
    EXPECT_TRUE(notes[0].ends_with("; left out")) << notes[0];
}

TEST(PhotoSource, WhereAllAreDamagedSkippingEnds) {
    NEEDS_PNG();
    const TemporaryFolder folder;
    for (const char* name : {"a", "b", "c"}) {
        write_bytes(folder / "train" / name / "x", {});
        write_bytes(folder / "val" / name / "x", {});
    }
    const Dataset data = load_dataset({.dataset = "folder",
                                       .dir = folder.path().string(),
                                       .photos = {.image_size = 32, .skip_corrupt = true}});
    Loader loader(data, photo_loader(1));
    loader.start(0);
    EXPECT_THROW(loader.next(), CorruptImage);
}

}  // namespace
}  // namespace trainer
