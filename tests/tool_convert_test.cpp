// tools/convert: folders to shards and what it does with the odd files in them.
#include <gtest/gtest.h>

#include <functional>

#include "data/dataset.h"
#include "data/jpeg.h"
#include "data/shards.h"
#include "tests/conversion.h"
#include "tests/photos.h"
#include "tools/conversion/convert.h"
#include "tools/conversion/small_images.h"

namespace trainer::convert {
namespace {

using Bytes = std::vector<std::byte>;

/// train/ of three classes with twelve photographs, val/ with three.
void make_photos(const fs::path& dir) {
    for (int i = 0; i < 12; ++i)
        write_bytes(dir / "train" / ("n0" + std::to_string(i % 3)) /
                        ("photo_" + std::to_string(i) + ".JPEG"),
                    encode_jpeg(waves(60 + 9 * i, 150 - 7 * i, i), 90, i == 4 ? 6 : 1));
    for (int i = 0; i < 3; ++i)
        write_bytes(dir / "val" / ("n0" + std::to_string(i)) / "v.JPEG",
                    encode_jpeg(waves(70, 80, 20 + i), 90));
}

TEST(Pack, KeepsEveryByteAndLabel) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_photos(dir / "from");
    const PackOptions options{.from = dir / "from", .to = dir / "to", .threads = 2};
    const auto [code, text] = printed([&] { return pack(options, never); });
    EXPECT_EQ(code, 0);
    EXPECT_EQ(text, "train: 12 ok, 0 repaired, 0 rejected\nval: 3 ok, 0 repaired, 0 rejected\n");
    EXPECT_EQ(files_in(dir / "to").size(), 2u) << "files of the conversion itself are left";
    for (const Split split : {Split::train, Split::test}) {
        const DatasetOptions folder{
            .dataset = "imagenet", .dir = (dir / "from").string(), .split = split};
        DatasetOptions packed = folder;
        packed.dir = (dir / "to").string();
        const Dataset a = load_dataset(folder), b = load_dataset(packed);
        EXPECT_EQ(a.class_names, b.class_names);
        EXPECT_EQ(a.labels, b.labels);
        ASSERT_EQ(a.count, b.count);
        Bytes first, second;
        for (int64_t i = 0; i < a.count; ++i) {
            a.photos.store->read(i, first);
            b.photos.store->read(i, second);
            EXPECT_EQ(first, second);
        }
    }
    EXPECT_EQ(printed([&] { return verify(dir / "to", true, 2, never); }).first, 0);
    const auto [info_code, said] = printed([&] { return info(dir / "to", true); });
    EXPECT_NE(said.find("train: 12 images of 3 classes in 1 shard, "), std::string::npos) << said;
    EXPECT_NE(said.find("  2  n02  4\n"), std::string::npos) << said;
}

TEST(Pack, SameBytesOnAnyThreadsAndAfterAnyInterruption) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    // Shards are cut by a megabyte at least: files of noise, which JPEG cannot make small.
    uint32_t state = 1;
    for (int i = 0; i < 8; ++i) {
        Image image = waves(512, 512);
        for (uint8_t& value : image.pixels)
            value = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
        write_bytes(
            dir / "from" / "train" / ("c" + std::to_string(i / 3)) / (std::to_string(i) + ".JPEG"),
            encode_jpeg(image, 97));
    }
    PackOptions options{.from = dir / "from", .to = dir / "one", .shard_mib = 1, .threads = 1};
    ASSERT_EQ(printed([&] { return pack(options, never); }).first, 0);
    const auto expected = files_in(dir / "one");
    ASSERT_GE(expected.size(), 3u) << "several shards";
    options.threads = 4;
    options.to = dir / "four";
    ASSERT_EQ(printed([&] { return pack(options, never); }).first, 0);
    EXPECT_EQ(files_in(dir / "four"), expected);

    options.to = dir / "stopped";
    options.threads = 2;
    for (int stops = 0;; ++stops) {
        ASSERT_LT(stops, 20);
        int left = 3;  // images until it is stopped
        const auto [code, text] =
            printed([&] { return pack(options, [&] { return left-- == 0; }); });
        if (code == exit_done) {
            EXPECT_GE(stops, 2);
            break;
        }
        EXPECT_EQ(code, exit_interrupted);
        EXPECT_NE(text.find("goes on from here"), std::string::npos);
        EXPECT_THROW(open_shards(dir / "stopped", "train"), Error);
    }
    EXPECT_EQ(files_in(dir / "stopped"), expected);

    EXPECT_THROW(pack(options, never), UsageError) << "it is there already";
    options.overwrite = true;
    EXPECT_EQ(printed([&] { return pack(options, never); }).first, 0);
    EXPECT_EQ(files_in(dir / "stopped"), expected);
    // The beginning of another conversion is not gone on with.
    options.overwrite = false;
    options.to = dir / "other";
    int left = 5;
    ASSERT_EQ(printed([&] { return pack(options, [&] { return left-- == 0; }); }).first,
              exit_interrupted);
    options.resize = 100;
    EXPECT_THROW(pack(options, never), UsageError);
}

TEST(Pack, RepairsAndRejectsByName) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_photos(dir / "from");
    const fs::path train = dir / "from" / "train" / "n00";
    const Bytes good = encode_jpeg(waves(90, 90), 90);
    Bytes longer = good;
    longer.resize(good.size() + 77, std::byte{1});
    write_bytes(train / "a longer.JPEG", longer);
    write_bytes(train / "b no end.JPEG", std::span(good).first(good.size() - 2));
    write_bytes(train / "c cut.JPEG", std::span(good).first(good.size() / 2));
    write_bytes(train / "d zero.JPEG", {});
    write_bytes(train / "e png.JPEG", encode_png(waves(30, 40)));
    std::ofstream(train / "f text\n.JPEG") << "no image";
    std::ofstream(train / ".DS_Store") << "passed over";
    fs::create_symlink("nowhere", train / "g dead.JPEG");
    fs::create_directory_symlink("..", train / "h loop");
    PackOptions options{.from = dir / "from", .to = dir / "to", .threads = 2};
    const auto [code, text] = printed([&] { return pack(options, never); });
    EXPECT_EQ(code, exit_rejected);
    // The loop leads to all classes again, once.
    EXPECT_NE(text.find("2 repaired, "), std::string::npos) << text;
    EXPECT_NE(text.find("repaired n00/a longer.JPEG: 77 bytes behind its end left out"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("repaired n00/b no end.JPEG: its end marker was missing"),
              std::string::npos)
        << text;
    const std::vector<std::string> rejects = read_lines(dir / "to" / "train-rejects.tsv");
    ASSERT_EQ(rejects.size(), 4u);
    EXPECT_EQ(rejects[0].find("n00/c cut.JPEG\ta JPEG that is cut short ("), 0u) << rejects[0];
    EXPECT_EQ(rejects[1], "n00/d zero.JPEG\tan empty file");
    EXPECT_EQ(rejects[2], "n00/f text\\x0a.JPEG\tnot an image that can be decoded");
    EXPECT_EQ(rejects[3], (train / "g dead.JPEG").string() + "\ta link to nothing");
    EXPECT_EQ(printed([&] { return verify(dir / "to", true, 1, never); }).first, 0);
    const ShardSet set = open_shards(dir / "to", "train");
    Bytes bytes;
    set.store->read(1, bytes);
    EXPECT_EQ(bytes, good) << "the repaired one is whole";
    options.to = dir / "again";
    options.allow_rejects = true;
    EXPECT_EQ(printed([&] { return pack(options, never); }).first, 0);
}

TEST(Pack, MakesImagesSmallerAndKeepsTheirOrientation) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_photos(dir / "from");
    const PackOptions options{
        .from = dir / "from", .to = dir / "to", .resize = 64, .quality = 85, .threads = 2};
    ASSERT_EQ(printed([&] { return pack(options, never); }).first, 0);
    const ShardSet set = open_shards(dir / "to", "train");
    const Dataset folder = load_dataset({.dataset = "imagenet", .dir = (dir / "from").string()});
    Bytes small, large;
    int smaller = 0, turned = 0;
    for (int64_t i = 0; i < folder.count; ++i) {
        set.store->read(i, small);
        folder.photos.store->read(i, large);
        const JpegInfo a = read_jpeg_info(large), b = read_jpeg_info(small);
        EXPECT_EQ(a.orientation, b.orientation);
        turned += b.orientation == 6;
        if (std::min(a.height, a.width) <= 64) {
            EXPECT_EQ(small, large);
            continue;
        }
        ++smaller;
        EXPECT_EQ(std::min(b.height, b.width), 64);
        EXPECT_NEAR(static_cast<double>(b.height) / static_cast<double>(b.width),
                    static_cast<double>(a.height) / static_cast<double>(a.width), 0.02);
    }
    EXPECT_GT(smaller, 5);
    EXPECT_EQ(turned, 1);
}

TEST(Pack, OtherValidationClassesAreRefused) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_photos(dir / "from");
    fs::rename(dir / "from" / "val" / "n02", dir / "from" / "val" / "n03");
    EXPECT_EQ(error_of([&] { pack({.from = dir / "from", .to = dir / "to"}, never); }),
              "'" + (dir / "from").string() +
                  "': the test images have the class not 'n02', which the training images have; "
                  "labels would mean something else");
    EXPECT_FALSE(fs::exists(dir / "to"));
}

TEST(Pack, SettingsThatDoNothingAreRefused) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_photos(dir / "from");
    const fs::path from = dir / "from", to = dir / "to";
    const std::string val = (from / "val").string();
    EXPECT_EQ(
        error_of([&] { pack({.from = from, .to = to, .held_out = 0.5}, never); }),
        "--split holds nothing out: the test images are those of '" + val + "'; leave it out");
    EXPECT_EQ(error_of([&] { pack({.from = from, .to = to, .val_labels = "a.txt"}, never); }),
              "--val-labels is not read: the class folders of '" + val +
                  "' say the classes; leave it out");
    fs::remove_all(from / "val");
    EXPECT_EQ(error_of([&] { pack({.from = from, .to = to, .val_labels = "a.txt"}, never); }),
              "--val-labels is not read: '" + from.string() + "' has no val/; leave it out");
    EXPECT_EQ(error_of([&] { pack({.from = dir / "no", .to = to}, never); }),
              "'" + (dir / "no").string() + "' is no directory; set FROM to where it is");
    write_bytes(from / "val" / "v.JPEG", encode_jpeg(waves(70, 80), 90));
    EXPECT_NE(error_of([&] { pack({.from = from, .to = to}, never); }).find("; set --val-labels"),
              std::string::npos);
    EXPECT_FALSE(fs::exists(to));
}

TEST(Pack, ClassesWithoutImagesAreSaid) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_photos(dir / "from");
    for (const char* split : {"train", "val"})
        fs::create_directories(dir / "from" / split / "n07");
    testing::internal::CaptureStderr();
    EXPECT_EQ(printed([&] { return pack({.from = dir / "from", .to = dir / "to"}, never); }).first,
              0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("1 of 4 classes has no training images: 'n07'\n"), std::string::npos)
        << said;
    EXPECT_NE(said.find("1 of 4 classes has no validation images: 'n07'\n"), std::string::npos)
        << said;
}

TEST(Convert, OneAtATimeWritesToAFolder) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_photos(dir / "from");
    const PackOptions options{.from = dir / "from", .to = dir / "to"};
    const std::string busy = "another conversion is writing to '" + options.to.string() +
                             "'; wait until it ends, or choose another place";
    std::string met = "nothing";
    const auto second = [&] {
        if (met == "nothing")
            met = error_of([&] { pack(options, never); });
        return false;
    };
    EXPECT_EQ(printed([&] { return pack(options, second); }).first, 0);
    EXPECT_EQ(met, busy);
    EXPECT_EQ(printed([&] { return verify(options.to, true, 1, never); }).first, 0);
}

TEST(Verify, FindsWhatChanged) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_photos(dir / "from");
    ASSERT_EQ(printed([&] { return pack({.from = dir / "from", .to = dir / "to"}, never); }).first,
              0);
    const fs::path shard = dir / "to" / shard_file_name("train", 0, 1);
    Bytes bytes = read_bytes(shard);
    bytes[bytes.size() / 3] ^= std::byte{1};
    write_bytes(shard, bytes);
    const auto [code, text] = printed([&] { return verify(dir / "to", false, 2, never); });
    EXPECT_EQ(code, exit_rejected);
    EXPECT_NE(text.find("train: 11 of 12 images are as they were packed"), std::string::npos);
    EXPECT_NE(text.find("does not hold"), std::string::npos);
    EXPECT_THROW(verify(dir / "from", true, 1, never), Error);
}

TEST(Pack, SamplePhotographs) {
    if (sample_photos().empty())
        GTEST_SKIP() << no_sample_photos;
    const TemporaryFolder dir;
    const fs::path to = dir / "to";
    ASSERT_EQ(printed([&] {
                  return pack({.from = sample_photos(), .to = to, .shard_mib = 2, .threads = 2},
                              never);
              }).first,
              0);
    EXPECT_GE(list_shards(to, "train").size(), 3u);
    EXPECT_EQ(printed([&] { return verify(to, true, 2, never); }).first, 0);
    const Dataset folder = load_dataset({.dataset = "imagenet", .dir = sample_photos().string()});
    const Dataset packed = load_dataset({.dataset = "imagenet", .dir = to.string()});
    EXPECT_EQ(folder.class_names, packed.class_names);
    EXPECT_EQ(folder.labels, packed.labels);
    Bytes a, b;
    for (int64_t i = 0; i < folder.count; ++i) {
        folder.photos.store->read(i, a);
        packed.photos.store->read(i, b);
        ASSERT_EQ(a, b);
    }
}

}  // namespace
}  // namespace trainer::convert
