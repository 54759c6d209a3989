// The readers of CIFAR and IDX: what they read from good files, and what they say about bad ones.
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "data/dataset.h"
#include "engine/error.h"
#include "tests/error_of.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

/// A directory that is gone after the test.
class Directory {
  public:
    Directory() {
        std::string pattern = (fs::temp_directory_path() / "data_formats_XXXXXX").string();
        path_ = mkdtemp(pattern.data());
    }
    ~Directory() { fs::remove_all(path_); }
    fs::path operator/(const std::string& name) const { return path_ / name; }
    std::string string() const { return path_.string(); }

  private:
    fs::path path_;
};

void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

void write_at(const fs::path& path, int64_t at, const std::string& bytes) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(at);
    file << bytes;
}

std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string gzip(const std::string& bytes) {
    std::string packed(bytes.size() + 1000, '\0');
    z_stream zlib{};
    deflateInit2(&zlib, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    zlib.avail_in = static_cast<uInt>(bytes.size());
    zlib.next_out = reinterpret_cast<Bytef*>(packed.data());
    zlib.avail_out = static_cast<uInt>(packed.size());
    EXPECT_EQ(deflate(&zlib, Z_FINISH), Z_STREAM_END);
    packed.resize(zlib.total_out);
    deflateEnd(&zlib);
    return packed;
}

/// The message of the Error that `work` throws.
std::string load_message(const std::string& dataset, const std::string& dir,
                         Split split = Split::train) {
    return error_of([&] { load_dataset({dataset, dir, split, {}}); });
}

// A sum that any change or swap of bytes changes (FNV-1a).
uint64_t checksum(const void* data, size_t bytes) {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (const auto* at = static_cast<const uint8_t*>(data); bytes > 0; --bytes)
        hash = (hash ^ *at++) * 0x100000001b3ULL;
    return hash;
}

uint64_t pixel_checksum(const Dataset& dataset) {
    return checksum(dataset.pixels.data.get(),
                    static_cast<size_t>(dataset.count * dataset.image_bytes()));
}

uint64_t label_checksum(const Dataset& dataset) {
    return checksum(dataset.labels.data(), dataset.labels.size() * sizeof(int32_t));
}

constexpr int64_t cifar_file = 30730000;

/// Files of zeros: 10000 black images of class 0 each, sparse on the disk.
void make_cifar10(const fs::path& dir) {
    fs::create_directories(dir);
    for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                             "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
        write(dir / name, "");
        fs::resize_file(dir / name, cifar_file);
    }
}

class Cifar10 : public testing::Test {
  protected:
    Cifar10() { make_cifar10(dir / ""); }
    Directory dir;
};

TEST_F(Cifar10, RecordsLieWhereTheyShould) {
    // Record 7 of file 3: label 9, red rows of 1, green of 2, blue ending in 3.
    std::string record(3073, '\1');
    record[0] = 9;
    std::fill(record.begin() + 1 + 1024, record.end(), '\2');
    record.back() = 3;
    write_at(dir / "data_batch_3.bin", 7 * 3073, record);
    const Dataset data = load_dataset({"cifar10", dir.string(), Split::train, {}});
    EXPECT_EQ(data.count, 50000);
    EXPECT_EQ(data.channels, 3);
    EXPECT_EQ(data.height, 32);
    EXPECT_EQ(data.width, 32);
    EXPECT_EQ(data.classes, 10);
    EXPECT_TRUE(data.class_names.empty());
    EXPECT_EQ(data.description,
              "cifar10 train: 50000 images of 3x32x32 in 10 classes, from " + dir.string());
    const int64_t sample = 20007;
    for (int64_t i = 0; i < data.count; ++i)
        ASSERT_EQ(data.labels[static_cast<size_t>(i)], i == sample ? 9 : 0) << i;
    EXPECT_EQ(data.image(sample)[0], 1);
    EXPECT_EQ(data.image(sample)[1023], 1);
    EXPECT_EQ(data.image(sample)[1024], 2);
    EXPECT_EQ(data.image(sample)[3071], 3);
    EXPECT_EQ(data.image(sample - 1)[3071], 0);
    EXPECT_EQ(data.image(sample + 1)[0], 0);
}

TEST_F(Cifar10, TestSplitIsItsOwnFile) {
    write_at(dir / "test_batch.bin", 9999 * 3073, "\5\7");
    const Dataset data = load_dataset({"cifar10", dir.string(), Split::test, {}});
    EXPECT_EQ(data.count, 10000);
    EXPECT_EQ(data.labels.back(), 5);
    EXPECT_EQ(data.image(9999)[0], 7);
}

TEST_F(Cifar10, FoundInTheArchivesDirectory) {
    Directory outer;
    fs::rename(dir / "", outer / "cifar-10-batches-bin");
    write(outer / "cifar-10-batches-bin/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n");
    const Dataset data = load_dataset({"cifar10", outer.string(), Split::test, {}});
    EXPECT_EQ(data.count, 10000);
    EXPECT_EQ(data.class_names,
              (std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}));
}

TEST_F(Cifar10, BadFilesAreNamed) {
    const std::string advice =
        "; get it with 'tools/get_data.sh cifar10', or set data.dir to where it is";
    const std::string file = (dir / "data_batch_4.bin").string();

    EXPECT_EQ(load_message("cifar10", "/nowhere/at/all"),
              "/nowhere/at/all: no such directory" + advice);

    write_at(file, 123 * 3073, "\12");
    EXPECT_EQ(load_message("cifar10", dir.string()),
              file + ": label 10 in record 123 (byte 377979), labels are 0 to 9" + advice);

    fs::resize_file(file, cifar_file - 1000);
    EXPECT_EQ(load_message("cifar10", dir.string()),
              file +
                  ": cut short at record 9999: 30729000 bytes, but 10000 records of 3073 take "
                  "30730000" +
                  advice);

    fs::resize_file(file, cifar_file + 1);
    EXPECT_EQ(load_message("cifar10", dir.string()),
              file +
                  ": garbage from byte 30730000: 30730001 bytes, but 10000 records of 3073 take "
                  "30730000" +
                  advice);

    fs::remove(file);
    EXPECT_EQ(load_message("cifar10", dir.string()), file + ": no such file" + advice);

    write(dir / "batches.meta.txt", "cat\ndog\n");
    EXPECT_EQ(load_message("cifar10", dir.string()),
              (dir / "batches.meta.txt").string() + ": 2 class names, not 10" + advice);
}

TEST(Cifar100, FineLabelsAreRead) {
    Directory dir;
    fs::create_directories(dir / "cifar-100-binary");
    const fs::path file = dir / "cifar-100-binary/train.bin";
    write(file, "");
    fs::resize_file(file, 50000 * 3074);
    write_at(file, 49999 * 3074, "\23\143\10");  // coarse 19, fine 99, first red pixel 8
    Dataset data = load_dataset({"cifar100", dir.string(), Split::train, {}});
    EXPECT_EQ(data.count, 50000);
    EXPECT_EQ(data.classes, 100);
    EXPECT_EQ(data.labels.back(), 99);
    EXPECT_EQ(data.labels.front(), 0);
    EXPECT_EQ(data.image(49999)[0], 8);

    write_at(file, 2 * 3074 + 1, "\144");
    EXPECT_NE(load_message("cifar100", dir.string())
                  .find("train.bin: label 100 in record 2 (byte "
                        "6149), labels are 0 to 99; get it with "
                        "'tools/get_data.sh cifar100'"),
              std::string::npos);
    EXPECT_NE(load_message("cifar100", dir.string(), Split::test).find("test.bin: no such file; "),
              std::string::npos);
}

std::string big_endian(uint32_t value) {
    return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
            static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string idx_labels(const std::string& labels) {
    return big_endian(0x801) + big_endian(static_cast<uint32_t>(labels.size())) + labels;
}

std::string idx_images(const std::string& pixels) {
    return big_endian(0x803) + big_endian(static_cast<uint32_t>(pixels.size() / 784)) +
           big_endian(28) + big_endian(28) + pixels;
}

class Idx : public testing::Test {
  protected:
    Idx() {
        for (size_t i = 0; i < pixels.size(); ++i)
            pixels[i] = static_cast<char>(i * 7 + i / 784);
        write(labels_file, idx_labels(labels));
        write(images_file, idx_images(pixels));
    }
    std::string message() { return load_message("mnist", dir.string()); }

    Directory dir;
    const fs::path labels_file = dir / "train-labels-idx1-ubyte";
    const fs::path images_file = dir / "train-images-idx3-ubyte";
    std::string labels{"\1\11\0", 3};
    std::string pixels = std::string(3 * 784, '\0');
    const std::string advice =
        "; get it with 'tools/get_data.sh mnist', or set data.dir to where it is";
};

TEST_F(Idx, ImagesArePaddedAndRepeated) {
    const Dataset data = load_dataset({"mnist", dir.string(), Split::train, {}});
    EXPECT_EQ(data.count, 3);
    EXPECT_EQ(data.labels, (std::vector<int32_t>{1, 9, 0}));
    EXPECT_EQ(data.class_names.at(9), "9");
    EXPECT_EQ(data.channels * data.height * data.width, 3 * 32 * 32);
    for (int64_t i = 0; i < 3; ++i)
        for (int64_t c = 0; c < 3; ++c)
            for (int64_t y = 0; y < 32; ++y)
                for (int64_t x = 0; x < 32; ++x) {
                    const bool inside = y >= 2 && y < 30 && x >= 2 && x < 30;
                    const int64_t at = i * 784 + (y - 2) * 28 + x - 2;
                    ASSERT_EQ(data.image(i)[(c * 32 + y) * 32 + x],
                              inside ? static_cast<uint8_t>(pixels[static_cast<size_t>(at)]) : 0);
                }
}

TEST_F(Idx, GzipReadsTheSame) {
    const Dataset plain = load_dataset({"mnist", dir.string(), Split::train, {}});
    for (const fs::path& file : {labels_file, images_file}) {
        write(file.string() + ".gz", gzip(read(file)));
        fs::remove(file);
    }
    const Dataset packed = load_dataset({"mnist", dir.string(), Split::train, {}});
    EXPECT_EQ(packed.labels, plain.labels);
    EXPECT_EQ(pixel_checksum(packed), pixel_checksum(plain));

    // Two members in one file are gzip too.
    const std::string bytes = idx_images(pixels);
    write(images_file.string() + ".gz", gzip(bytes.substr(0, 1000)) + gzip(bytes.substr(1000)));
    EXPECT_EQ(pixel_checksum(load_dataset({"mnist", dir.string(), Split::train, {}})),
              pixel_checksum(plain));
}

TEST_F(Idx, BadGzipIsNamed) {
    fs::remove(images_file);
    const std::string file = images_file.string() + ".gz";
    const std::string packed = gzip(idx_images(pixels));

    write(file, packed.substr(0, packed.size() / 2));
    EXPECT_NE(message().find(file + ": gzip cut short: its " + std::to_string(packed.size() / 2) +
                             " bytes end after "),
              std::string::npos)
        << message();
    // All data is there, but the length and checksum behind it are not.
    write(file, packed.substr(0, packed.size() - 8));
    EXPECT_EQ(message(), file + ": gzip cut short: its " + std::to_string(packed.size() - 8) +
                             " bytes end after 2368 unpacked ones" + advice);
    write(file, "\x1f");
    EXPECT_EQ(message(), file + ": gzip cut short: 1 bytes" + advice);
    write(file, idx_images(pixels));
    EXPECT_EQ(message(), file + ": not gzip, although its name ends in .gz" + advice);

    std::string damaged = packed;
    damaged[packed.size() - 8] ^= 1;  // checksum
    write(file, damaged);
    EXPECT_NE(message().find(file + ": gzip is corrupt near byte "), std::string::npos);
    EXPECT_NE(message().find("(incorrect data check)" + advice), std::string::npos) << message();

    write(file, packed + "more");
    EXPECT_EQ(message(), file + ": garbage behind the end of gzip at byte " +
                             std::to_string(packed.size()) + advice);

    write(file, gzip(idx_images(pixels) + "x"));
    EXPECT_EQ(message(),
              file + ": garbage behind the last of the 2368 bytes that its header says" + advice);
    write(file, gzip(idx_images(pixels).substr(0, 2000)));
    EXPECT_EQ(message(), file + ": cut short: 2000 unpacked bytes, its header says 2368" + advice);
    // A header that claims terabytes is refused before memory is taken for them.
    write(file, gzip(big_endian(0x803) + big_endian(0xffffffff) + big_endian(28) + big_endian(28)));
    EXPECT_NE(
        message().find(": cut short: at most 33024 unpacked bytes, its header says 3367254359296"),
        std::string::npos)
        << message();
}

TEST_F(Idx, BadFilesAreNamed) {
    const std::string images = images_file.string();
    const std::string good = idx_images(pixels);

    write(images, "\x1\x2\x3\x4" + good.substr(4));
    EXPECT_EQ(message(), images +
                             ": bad magic number 0x01020304 at byte 0, expected 0x00000803 "
                             "(IDX, unsigned bytes, 3 dimensions)" +
                             advice);
    write(images, good.substr(0, 10));
    EXPECT_EQ(message(), images + ": cut short in the header, at byte 8" + advice);
    write(images, good.substr(0, good.size() - 1));
    EXPECT_EQ(message(), images + ": cut short: 2367 bytes, its header says 2368" + advice);
    write(images, good + "xy");
    EXPECT_EQ(message(), images + ": too long: 2370 bytes, its header says 2368" + advice);
    write(images, good.substr(0, 8) + big_endian(32) + good.substr(12));
    EXPECT_EQ(message(), images + ": images of 32x28 (bytes 8 to 15), 28x28 expected" + advice);
    write(images, big_endian(0x803) + big_endian(0) + good.substr(8, 8));
    EXPECT_EQ(message(), images + ": holds nothing: the count at byte 4 is 0" + advice);
    write(images, idx_images(pixels.substr(784)));
    EXPECT_EQ(message(),
              images + " holds 2 images, but " + labels_file.string() + " 3 labels" + advice);

    write(labels_file, idx_labels("\1\2\12"));
    EXPECT_EQ(message(),
              labels_file.string() + ": label 10 of image 2 (byte 10), labels are 0 to 9" + advice);
    write(labels_file, good);
    EXPECT_EQ(message(), labels_file.string() +
                             ": bad magic number 0x00000803 at byte 0, expected 0x00000801 (IDX, "
                             "unsigned bytes, 1 dimensions)" +
                             advice);
    fs::remove(labels_file);
    EXPECT_EQ(message(), labels_file.string() + "[.gz]: no such file" + advice);
    fs::create_directory(labels_file);
    EXPECT_EQ(message(), labels_file.string() + ": is a directory, a file was expected" + advice);
    EXPECT_EQ(load_message("mnist", "/nowhere"), "/nowhere: no such directory" + advice);
}

TEST(Synthetic, IsAFunctionOfItsSeedAndSplit) {
    const SyntheticOptions sizes{.train_count = 50,
                                 .test_count = 20,
                                 .classes = 4,
                                 .channels = 3,
                                 .height = 16,
                                 .width = 24,
                                 .seed = 5};
    const Dataset once = load_dataset({"synthetic", "", Split::train, sizes});
    const Dataset again = load_dataset({"synthetic", "", Split::train, sizes});
    EXPECT_EQ(once.count, 50);
    EXPECT_EQ(once.image_bytes(), 3 * 16 * 24);
    EXPECT_EQ(pixel_checksum(once), pixel_checksum(again));
    for (int64_t i = 0; i < once.count; ++i)
        EXPECT_EQ(once.labels[static_cast<size_t>(i)], i % 4);

    SyntheticOptions other = sizes;
    other.seed = 6;
    EXPECT_NE(pixel_checksum(load_dataset({"synthetic", "", Split::train, other})),
              pixel_checksum(once));
    other = sizes;
    other.train_count = 20;  // a shorter set is the start of a longer one
    EXPECT_EQ(checksum(once.image(0), static_cast<size_t>(20 * once.image_bytes())),
              pixel_checksum(load_dataset({"synthetic", "", Split::train, other})));
    const Dataset test = load_dataset({"synthetic", "", Split::test, sizes});
    EXPECT_EQ(test.count, 20);
    EXPECT_NE(checksum(test.image(0), 1152), checksum(once.image(0), 1152));
}

TEST(Synthetic, CanBeLearnt) {
    // The nearest class mean of the training images tells most test images' class.
    const Dataset train = load_dataset({"synthetic", "", Split::train, {}});
    const Dataset test = load_dataset({"synthetic", "", Split::test, {}});
    const auto size = static_cast<size_t>(train.image_bytes());
    std::vector<std::vector<double>> means(10, std::vector<double>(size));
    for (int64_t i = 0; i < train.count; ++i)
        for (size_t p = 0; p < size; ++p)
            means[static_cast<size_t>(i % 10)][p] += train.image(i)[p] * 10.0 / 8192;
    int right = 0;
    for (int64_t i = 0; i < test.count; ++i) {
        std::vector<double> distances(10);
        for (size_t label = 0; label < 10; ++label)
            for (size_t p = 0; p < size; ++p)
                distances[label] += std::pow(test.image(i)[p] - means[label][p], 2);
        const auto nearest = std::min_element(distances.begin(), distances.end());
        right += nearest - distances.begin() == test.labels[static_cast<size_t>(i)];
    }
    EXPECT_GT(right, 1000);
}

TEST(Synthetic, BadSizesAreUsageErrors) {
    try {
        load_dataset({"synthetic", "", Split::train, {.train_count = 0}});
        FAIL() << "no error";
    } catch (const UsageError& error) {
        EXPECT_STREQ(error.what(), "synthetic data: train_count is 0, at least 1 is needed");
    }
}

TEST(LoadDataset, UnknownNameIsAUsageError) {
    try {
        load_dataset({"cifar11", "", Split::train, {}});
        FAIL() << "no error";
    } catch (const UsageError& error) {
        EXPECT_STREQ(error.what(),
                     "unknown data set 'cifar11'; data.dataset is one of cifar10, cifar100, "
                     "fashion_mnist, folder, imagenet, mnist, synthetic");
    }
}

// The real thing: counts and checksums of what the readers made of it.
TEST(RealData, Cifar10) {
    const char* place = std::getenv("TRAINER_DATA");
    std::string dir;
    for (const std::string& candidate :
         {std::string(TRAINER_SOURCE_DIR "/data/cifar10"), std::string(place ? place : "."),
          std::string(place ? place : ".") + "/cifar10"})
        for (const char* below : {"/", "/cifar-10-batches-bin/"})
            if (fs::exists(candidate + below + "test_batch.bin"))
                dir = candidate;
    if (dir.empty())
        GTEST_SKIP() << "no CIFAR-10 in data/cifar10 or $TRAINER_DATA";
    const Dataset train = load_dataset({"cifar10", dir, Split::train, {}});
    const Dataset test = load_dataset({"cifar10", dir, Split::test, {}});
    EXPECT_EQ(train.count, 50000);
    EXPECT_EQ(test.count, 10000);
    EXPECT_EQ(train.class_names.at(0), "airplane");
    EXPECT_EQ(train.class_names.at(9), "truck");
    for (int32_t label = 0; label < 10; ++label) {
        EXPECT_EQ(std::count(train.labels.begin(), train.labels.end(), label), 5000);
        EXPECT_EQ(std::count(test.labels.begin(), test.labels.end(), label), 1000);
    }
    EXPECT_EQ(label_checksum(train), 0xc6d8b2906674d6a5ULL);
    EXPECT_EQ(pixel_checksum(train), 0x4d08ea51bbf95298ULL);
    EXPECT_EQ(label_checksum(test), 0xeffad14ac9908395ULL);
    EXPECT_EQ(pixel_checksum(test), 0x0d8cc5cc17b1341fULL);
}

TEST(RealData, FashionMnist) {
    const std::string dir = "/usr/share/datasets/fashion-mnist";  // Debian: dataset-fashion-mnist
    if (!fs::exists(dir))
        GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
    const Dataset train = load_dataset({"fashion_mnist", dir, Split::train, {}});
    const Dataset test = load_dataset({"fashion_mnist", dir, Split::test, {}});
    EXPECT_EQ(train.count, 60000);
    EXPECT_EQ(test.count, 10000);
    for (int32_t label = 0; label < 10; ++label) {
        EXPECT_EQ(std::count(train.labels.begin(), train.labels.end(), label), 6000);
        EXPECT_EQ(std::count(test.labels.begin(), test.labels.end(), label), 1000);
    }
    EXPECT_EQ(train.class_names.at(static_cast<size_t>(train.labels[0])), "Ankle boot");
    EXPECT_EQ(label_checksum(train), 0x3941146f6aa883f5ULL);
    EXPECT_EQ(pixel_checksum(train), 0x6191848349f4f84cULL);
    EXPECT_EQ(label_checksum(test), 0x2f57e8024bba1255ULL);
    EXPECT_EQ(pixel_checksum(test), 0xf42f034c0cc41599ULL);
}

}  // namespace
}  // namespace trainer
