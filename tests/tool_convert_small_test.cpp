// tools/convert: CIFAR and IDX there and back; the program itself.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>

#include "data/dataset.h"
#include "tests/conversion.h"
#include "tests/photos.h"
#include "tests/python.h"
#include "tools/conversion/convert.h"
#include "tools/conversion/pickle.h"
#include "tools/conversion/small_images.h"

namespace trainer::convert {
namespace {

using Bytes = std::vector<std::byte>;

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
        ASSERT_EQ(printed([&] { return convert_cifar(dir / "bin", dir / "png", "", never); }).first,
                  0);
        EXPECT_FALSE(fs::exists(dir / "png" / "test_batch.bin"));
        ASSERT_EQ(
            printed([&] { return convert_cifar(dir / "png", dir / "back", "", never); }).first, 0);
        EXPECT_EQ(files_in(dir / "back"), files_in(dir / "bin"));
        // And the PNG folder is one that `folder` reads.
        const Dataset folder = load_dataset({.dataset = "folder", .dir = (dir / "png").string()});
        EXPECT_EQ(folder.count, hundred ? 150 : 240);
    }
}

TEST(Cifar, StoppedItLeavesNothing) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_cifar(dir / "bin", false, {"data_batch_1", "test_batch"}, 60);
    int left = 50;
    const auto [code, text] = printed(
        [&] { return convert_cifar(dir / "bin", dir / "png", "", [&] { return left-- == 0; }); });
    EXPECT_EQ(code, exit_interrupted);
    EXPECT_EQ(text, "interrupted; nothing was written to " + (dir / "png").string() + "\n");
    EXPECT_FALSE(fs::exists(dir / "png"));

    // What one left that was killed is hidden, and in nobody's way.
    write_bytes(dir / "png" / ".convert" / "train" / "0" / "data_batch_1-00000.png", {});
    ASSERT_EQ(printed([&] { return convert_cifar(dir / "bin", dir / "png", "", never); }).first, 0);
    EXPECT_FALSE(fs::exists(dir / "png" / ".convert"));
    EXPECT_EQ(files_in(dir / "png").size(), 120u);
    EXPECT_EQ(
        error_of([&] { convert_cifar(dir / "bin", dir / "png", "", never); }),
        "'" + (dir / "png").string() + "' has train already; remove it, or choose another place");
    left = 70;
    EXPECT_EQ(printed([&] {
                  return convert_cifar(dir / "png", dir / "back", "", [&] { return left-- == 0; });
              }).first,
              exit_interrupted);
    EXPECT_FALSE(fs::exists(dir / "back"));

    fs::rename(dir / "png" / "test" / "3", dir / "png" / "test" / "three");
    EXPECT_NE(error_of([&] {
                  convert_cifar(dir / "png", dir / "back", "", never);
              }).find("its folder 'three' is none of the data set's classes, which are '0' to "),
              std::string::npos);
}

TEST(Cifar, BinaryToPickleToBinaryIsTheSame) {
    for (const bool hundred : {false, true}) {
        const TemporaryFolder dir;
        if (hundred)
            make_cifar(dir / "bin", true, {"train", "test"}, 300);  // labels of one and two bytes
        else
            make_cifar(dir / "bin", false, {"data_batch_1", "test_batch"}, 300);
        ASSERT_EQ(
            printed([&] { return convert_cifar(dir / "bin", dir / "py", "pickle", never); }).first,
            0);
        ASSERT_EQ(printed([&] { return convert_cifar(dir / "py", dir / "back", "", never); }).first,
                  0);
        EXPECT_EQ(files_in(dir / "back"), files_in(dir / "bin"));
    }
}

TEST(Cifar, PythonReadsOurPicklesAndWeReadPythons) {
    const TemporaryFolder dir;
    make_cifar(dir / "bin", false, {"data_batch_1", "test_batch"}, 300);
    write_lines(dir / "bin" / "batches.meta.txt",
                {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"});
    ASSERT_EQ(
        printed([&] { return convert_cifar(dir / "bin", dir / "py", "pickle", never); }).first, 0);
    const PythonResult result = run_python("cifar_pickle_test.py", "'" + dir.path().string() + "'");
    if (result.code == python_skipped)
        GTEST_SKIP() << result.output;
    ASSERT_EQ(result.code, 0) << result.output;
    int count = 0;
    for (const auto& entry : fs::directory_iterator(dir / "python")) {
        SCOPED_TRACE(entry.path());
        const fs::path back = dir / "back" / entry.path().filename();
        ASSERT_EQ(printed([&] { return convert_cifar(entry.path(), back, "", never); }).first, 0);
        EXPECT_EQ(files_in(back), files_in(dir / "bin"));
        ++count;
    }
    EXPECT_GE(count, 4) << "protocols";
}

TEST(Cifar, WhatIsDamagedIsRefused) {
    const TemporaryFolder dir;
    const auto message = [&] {
        return error_of([&] { convert_cifar(dir / "x", dir / "to", "", never); });
    };
    fs::create_directories(dir / "x");
    EXPECT_NE(message().find("holds no CIFAR"), std::string::npos);
    make_cifar(dir / "x", false, {"test_batch"}, 2);
    Bytes bytes = read_bytes(dir / "x" / "test_batch.bin");
    bytes[3073] = std::byte{10};
    write_bytes(dir / "x" / "test_batch.bin", bytes);
    EXPECT_NE(message().find("record 1: label 10 is of no class; CIFAR-10's are 0 to 9"),
              std::string::npos);
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
    int left = 210;
    EXPECT_EQ(printed([&] {
                  return convert_idx(dir / "idx", dir / "png", [&] { return left-- == 0; });
              }).first,
              exit_interrupted);
    EXPECT_FALSE(fs::exists(dir / "png"));
    ASSERT_EQ(printed([&] { return convert_idx(dir / "idx", dir / "png", never); }).first, 0);
    ASSERT_EQ(printed([&] { return convert_idx(dir / "png", dir / "back", never); }).first, 0);
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
    EXPECT_EQ(
        run_convert("imagnet a b"),
        std::pair(2, std::string("convert: error: there is no conversion 'imagnet'; there are "
                                 "imagenet, folder, cifar, idx, verify and info\n")));
    EXPECT_EQ(run_convert("imagenet a b --qualty 3").first, 2);
    EXPECT_EQ(run_convert("folder " + (dir / "no").string() + " " + (dir / "to").string()).first,
              1);
    make_cifar(dir / "bin", false, {"test_batch"}, 3);
    const auto [code, text] = run_convert("cifar " + (dir / "bin").string() + " " +
                                          (dir / "py").string() + " --to pickle");
    EXPECT_EQ(code, 0);
    EXPECT_EQ(text, "CIFAR-10: 3 images in 1 batches, binary to pickle\n");
    EXPECT_EQ(run_convert("--help 2>&1 >/dev/full #"),
              std::pair(1, std::string("convert: error: standard output could not be written: No "
                                       "space left on device\n")));
}

TEST(ConvertProgram, ASignalStopsCifar) {
    NEEDS_LIBRARIES();
    const TemporaryFolder dir;
    make_cifar(dir / "bin", false, {"data_batch_1", "data_batch_2", "test_batch"}, 4000);
    const fs::path to = dir / "png";
    // Interrupted once it has begun to write.
    std::ofstream(dir / "script")
        << "'" TRAINER_BINARY_DIR "/tools/conversion/convert' cifar '" << (dir / "bin").string()
        << "' '" << to.string() << "' & process=$!\nwhile [ ! -e '"
        << (to / ".convert" / "train").string()
        << "' ]; do sleep 0.01; done\nkill -INT $process\nwait $process\n";
    const int status = std::system(("sh '" + (dir / "script").string() + "' > /dev/null").c_str());
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), exit_interrupted);
    EXPECT_FALSE(fs::exists(to));
}

}  // namespace
}  // namespace trainer::convert
