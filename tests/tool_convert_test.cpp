// tools/convert: folders to shards and what it does with the odd files in them; CIFAR and IDX there
// and back.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <sstream>

#include "data/dataset.h"
#include "data/jpeg.h"
#include "data/shards.h"
#include "tests/photos.h"
#include "tests/python.h"
#include "tools/conversion/convert.h"
#include "tools/conversion/pickle.h"
#include "tools/conversion/small_images.h"

namespace trainer::convert {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

const std::function<bool()> never = [] { return false; };

bool can_encode() {
    try {
        encode_png(waves(2, 2));
        return has_jpeg_library();
    } catch (const UsageError&) {
        return false;
    }
}

#define NEEDS_LIBRARIES() \
    if (!can_encode())    \
    GTEST_SKIP() << "this build writes no PNG or no JPEG"

/// Runs `work` and returns its result and what it printed.
std::pair<int, std::string> printed(const std::function<int()>& work) {
    testing::internal::CaptureStdout();
    const int code = work();
    return {code, testing::internal::GetCapturedStdout()};
}

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

std::map<std::string, Bytes> files_in(const fs::path& dir) {
    std::map<std::string, Bytes> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir))
        if (entry.is_regular_file())
            files[fs::relative(entry.path(), dir).string()] = read_bytes(entry.path());
    return files;
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
    EXPECT_THROW(pack({.from = dir / "from", .to = dir / "to"}, never), Error);
    EXPECT_FALSE(fs::exists(dir / "to"));
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

/// Records of CIFAR that no formula of a converter could guess.
void make_cifar(const fs::path& dir, bool hundred, const std::vector<std::string>& names,
                int64_t records) {
    uint32_t state = 7;
    const auto next = [&] {
        return static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
    };
    for (const std::string& name : names) {
        Bytes bytes;
        for (int64_t i = 0; i < records; ++i) {
            if (hundred)
                bytes.push_back(static_cast<std::byte>(next() % 20));
            bytes.push_back(static_cast<std::byte>(next() % (hundred ? 100 : 10)));
            for (int p = 0; p < 3072; ++p)
                bytes.push_back(static_cast<std::byte>(next()));
        }
        write_bytes(dir / (name + ".bin"), bytes);
    }
}

TEST(Cifar, BinaryToPngToBinaryIsTheSame) {
    NEEDS_LIBRARIES();
    for (const bool hundred : {false, true}) {
        const TemporaryFolder dir;
        if (hundred) {
            make_cifar(dir / "bin", true, {"train", "test"}, 150);
            std::vector<std::string> fine;
            for (int i = 0; i < 100; ++i)
                fine.push_back("class " + std::to_string(99 - i));  // not in the order of labels
            write_lines(dir / "bin" / "fine_label_names.txt", fine);
        } else {
            make_cifar(dir / "bin", false, {"data_batch_1", "data_batch_2", "test_batch"}, 120);
            write_lines(dir / "bin" / "batches.meta.txt",
                        {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
                         "ship", "truck"});
        }
        ASSERT_EQ(printed([&] { return convert_cifar(dir / "bin", dir / "png", ""); }).first, 0);
        EXPECT_FALSE(fs::exists(dir / "png" / "test_batch.bin"));
        ASSERT_EQ(printed([&] { return convert_cifar(dir / "png", dir / "back", ""); }).first, 0);
        EXPECT_EQ(files_in(dir / "back"), files_in(dir / "bin"));
        // And the PNG folder is one that `folder` reads.
        const Dataset folder = load_dataset({.dataset = "folder", .dir = (dir / "png").string()});
        EXPECT_EQ(folder.count, hundred ? 150 : 240);
    }
}

TEST(Cifar, BinaryToPickleToBinaryIsTheSame) {
    for (const bool hundred : {false, true}) {
        const TemporaryFolder dir;
        if (hundred)
            make_cifar(dir / "bin", true, {"train", "test"}, 300);  // labels of one and two bytes
        else
            make_cifar(dir / "bin", false, {"data_batch_1", "test_batch"}, 300);
        ASSERT_EQ(printed([&] { return convert_cifar(dir / "bin", dir / "py", "pickle"); }).first,
                  0);
        ASSERT_EQ(printed([&] { return convert_cifar(dir / "py", dir / "back", ""); }).first, 0);
        EXPECT_EQ(files_in(dir / "back"), files_in(dir / "bin"));
    }
}

TEST(Cifar, PythonReadsOurPicklesAndWeReadPythons) {
    const TemporaryFolder dir;
    make_cifar(dir / "bin", false, {"data_batch_1", "test_batch"}, 300);
    write_lines(dir / "bin" / "batches.meta.txt",
                {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"});
    ASSERT_EQ(printed([&] { return convert_cifar(dir / "bin", dir / "py", "pickle"); }).first, 0);
    const PythonResult result = run_python("cifar_pickle_test.py", "'" + dir.path().string() + "'");
    if (result.code == python_skipped)
        GTEST_SKIP() << result.output;
    ASSERT_EQ(result.code, 0) << result.output;
    int count = 0;
    for (const auto& entry : fs::directory_iterator(dir / "python")) {
        SCOPED_TRACE(entry.path());
        const fs::path back = dir / "back" / entry.path().filename();
        ASSERT_EQ(printed([&] { return convert_cifar(entry.path(), back, ""); }).first, 0);
        EXPECT_EQ(files_in(back), files_in(dir / "bin"));
        ++count;
    }
    EXPECT_GE(count, 4) << "protocols";
}

TEST(Cifar, WhatIsDamagedIsRefused) {
    const TemporaryFolder dir;
    const auto message = [&] {
        try {
            convert_cifar(dir / "x", dir / "to", "");
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("no error");
    };
    fs::create_directories(dir / "x");
    EXPECT_NE(message().find("holds no CIFAR"), std::string::npos);
    make_cifar(dir / "x", false, {"test_batch"}, 2);
    Bytes bytes = read_bytes(dir / "x" / "test_batch.bin");
    bytes[3073] = std::byte{10};
    write_bytes(dir / "x" / "test_batch.bin", bytes);
    EXPECT_NE(message().find("record 1: label 10 of no class"), std::string::npos);
    bytes.pop_back();
    write_bytes(dir / "x" / "test_batch.bin", bytes);
    EXPECT_NE(message().find("no whole number of records"), std::string::npos);
    fs::remove(dir / "x" / "test_batch.bin");
    const std::string text =
        "\x80\x02}(U\x04"
        "datacos\nsystem\n(U\x02lstRu.";
    write_bytes(dir / "x" / "test_batch", std::as_bytes(std::span(text.data(), text.size())));
    EXPECT_NE(message().find("a pickle without 'data'"), std::string::npos) << message();
    for (const std::string& bad :
         {std::string("\x80\x02}("), std::string("h\x05."), std::string("u."), std::string("e."),
          std::string("q"), std::string("\xff."), std::string("(t"), std::string("0"),
          std::string()}) {
        const auto* first = reinterpret_cast<const std::byte*>(bad.data());
        EXPECT_THROW(read_pickle({first, bad.size()}, "bad"), Error) << bad;
    }
}

TEST(Idx, ThereAndBackIsTheSame) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    uint32_t state = 3;
    const auto next = [&] {
        return static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
    };
    for (const char* prefix : {"train", "t10k"}) {
        const uint8_t count = prefix[1] == 'r' ? 200 : 30;
        Bytes images, labels;
        for (const int value : {0, 0, 8, 3, 0, 0, 0, int{count}, 0, 0, 0, 28, 0, 0, 0, 20})
            images.push_back(static_cast<std::byte>(value));
        for (const int value : {0, 0, 8, 1, 0, 0, 0, int{count}})
            labels.push_back(static_cast<std::byte>(value));
        for (int i = 0; i < count; ++i) {
            labels.push_back(static_cast<std::byte>(std::to_integer<int>(next()) % 10));
            for (int p = 0; p < 28 * 20; ++p)
                images.push_back(next());
        }
        write_bytes(dir / "idx" / (std::string(prefix) + "-images-idx3-ubyte"), images);
        write_bytes(dir / "idx" / (std::string(prefix) + "-labels-idx1-ubyte"), labels);
    }
    ASSERT_EQ(printed([&] { return convert_idx(dir / "idx", dir / "png"); }).first, 0);
    ASSERT_EQ(printed([&] { return convert_idx(dir / "png", dir / "back"); }).first, 0);
    EXPECT_EQ(files_in(dir / "back"), files_in(dir / "idx"));
}

/// The program itself: its exit code, and what it said.
std::pair<int, std::string> run_convert(const std::string& arguments) {
    const std::string command =
        "'" TRAINER_BINARY_DIR "/tools/conversion/convert' " + arguments + " 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    std::string output;
    char buffer[4096];
    while (const size_t bytes = fread(buffer, 1, sizeof buffer, pipe))
        output.append(buffer, bytes);
    const int status = pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

TEST(ConvertProgram, ExitCodes) {
    const TemporaryFolder dir;
    EXPECT_EQ(run_convert("--help").first, 0);
    EXPECT_EQ(run_convert("imagenet --help").first, 0);
    EXPECT_EQ(run_convert("").first, 2);
    EXPECT_EQ(run_convert("imagnet a b").first, 2);
    EXPECT_EQ(run_convert("imagenet a b --qualty 3").first, 2);
    EXPECT_EQ(run_convert("folder " + (dir / "no").string() + " " + (dir / "to").string()).first,
              1);
    make_cifar(dir / "bin", false, {"test_batch"}, 3);
    const auto [code, text] = run_convert("cifar " + (dir / "bin").string() + " " +
                                          (dir / "py").string() + " --to pickle");
    EXPECT_EQ(code, 0);
    EXPECT_EQ(text, "CIFAR-10: 3 images in 1 batches, binary to pickle\n");
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
