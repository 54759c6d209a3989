// The safetensors reader and writer: bytes as the format has them, and every kind of damage named.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "engine/crc32c.h"
#include "engine/safetensors.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
  protected:
    Safetensors() {
        path_ = fs::temp_directory_path() /
                ("safetensors_test_" + std::to_string(getpid()) + ".safetensors");
    }
    ~Safetensors() override { fs::remove(path_); }

    /// A file of this header and data, whatever they are.
    void write_raw(const std::string& header, const std::string& data) {
        std::string text(8, '\0');
        const uint64_t length = header.size();
        std::memcpy(text.data(), &length, 8);
        overwrite(text + header + data);
    }
    void overwrite(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
    std::string bytes() const {
        std::ifstream file(path_, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }

    /// The message of what opening and verifying the file throws; empty where nothing is.
    std::string complaint() const {
        try {
            SafetensorsFile(path_).verify();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }
    void expect_complaint(const std::string& part) const {
        const std::string message = complaint();
        EXPECT_NE(message.find(part), std::string::npos) << message;
        EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }

    template <typename T>
    static std::span<const std::byte> as_item(const std::vector<T>& values) {
        return std::as_bytes(std::span(values));
    }

    fs::path path_;
};

TEST(Crc32c, KnownValues) {
    EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
    EXPECT_EQ(crc32c("", 0), 0u);
    // RFC 3720 B.4: 32 bytes of zeros, and of ones.
    EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);
    EXPECT_EQ(crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
    EXPECT_EQ(crc32c("56789", 5, crc32c("1234", 4)), 0xe3069283u);
}

TEST_F(Safetensors, BytesOfASmallFile) {
    const std::vector<float> values{1, -2};
    write_safetensors(path_, {{"w", "F32", {2}, as_item(values)}}, {});
    const std::string header =
        R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";  // 54 bytes
    std::string expected(8, '\0');
    expected[0] = 56;
    expected += header + "  ";
    expected.append(reinterpret_cast<const char*>(values.data()), 8);
    EXPECT_EQ(bytes(), expected);
    EXPECT_EQ(safetensors_bytes({{"w", "F32", {2}, as_item(values)}}, {}), 72);
}

TEST_F(Safetensors, ReadsBackWhatItWrote) {
    const std::vector<float> floats{0.5f, -1.25f, 3e-40f, 7, 8, 9};
    const std::vector<double> doubles{0.1};
    const std::vector<int64_t> integers{-5};
    const std::vector<float> none;
    const std::vector<SafetensorsItem> items{{"a.weight", "F32", {2, 3}, as_item(floats)},
                                             {"b", "F64", {1}, as_item(doubles)},
                                             {"n", "I64", {}, as_item(integers)},
                                             {"empty", "F32", {0, 4}, as_item(none)}};
    const Metadata metadata{{"key", "a \"quoted\" value"}, {std::string(checksum_key), ""}};
    const uint32_t crc = write_safetensors(path_, items, metadata);
    EXPECT_EQ(static_cast<int64_t>(bytes().size()), safetensors_bytes(items, metadata));
    EXPECT_EQ(crc, crc32c(bytes().data(), bytes().size()));

    const SafetensorsFile file(path_);
    file.verify();
    EXPECT_EQ(file.checksum(), crc);
    EXPECT_EQ(file.metadata().at("key"), "a \"quoted\" value");
    ASSERT_EQ(file.tensors().size(), 4u);
    EXPECT_EQ(file.find("n")->dtype, "I64");
    EXPECT_EQ(file.find("missing"), nullptr);
    std::vector<float> back(6);
    file.read("a.weight", {2, 3}, std::span<float>(back));
    EXPECT_EQ(back, floats);
    std::vector<double> wide(6), one(1);
    file.read("a.weight", {2, 3}, std::span<double>(wide));
    EXPECT_EQ(wide[1], -1.25);
    file.read("b", {1}, std::span<double>(one));
    EXPECT_EQ(one[0], 0.1);
    EXPECT_THROW(file.read("a.weight", {6}, std::span<float>(back)), Error);
    EXPECT_THROW(file.read("n", {}, std::span<double>(one)), Error);
    EXPECT_THROW(file.read("missing", {}, std::span<double>(one)), Error);
}

TEST_F(Safetensors, ReadsBfloat16) {
    write_raw(R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})",
              std::string("\x80\x3f\x20\xc1", 4));
    std::vector<float> values(2);
    SafetensorsFile(path_).read("w", {2}, std::span<float>(values));
    EXPECT_EQ(values, (std::vector<float>{1, -10}));
}

TEST_F(Safetensors, EveryBitCounts) {
    const std::vector<float> values{1, 2, 3};
    write_safetensors(path_, {{"w", "F32", {3}, as_item(values)}},
                      {{"step", "12"}, {std::string(checksum_key), ""}});
    const std::string good = bytes();
    ASSERT_EQ(complaint(), "");
    const size_t digits = good.find("crc32c\":\"") + 9;
    for (size_t at = 0; at < good.size(); ++at)
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
            overwrite(bad);
            // A damaged key of the checksum itself leaves a file without one.
            if (at + 9 >= digits && at + 3 < digits)
                EXPECT_TRUE(complaint() != "" ||
                            !SafetensorsFile(path_).metadata().contains(std::string(checksum_key)));
            else
                EXPECT_NE(complaint(), "") << "byte " << at << ", bit " << bit;
        }
}

TEST_F(Safetensors, EveryLengthCounts) {
    const std::vector<float> values{1, 2, 3};
    write_safetensors(path_, {{"w", "F32", {3}, as_item(values)}}, {});
    const std::string good = bytes();
    for (size_t length = 0; length < good.size(); ++length) {
        overwrite(good.substr(0, length));
        EXPECT_NE(complaint(), "") << length;
    }
    overwrite(good.substr(0, good.size() - 1));
    expect_complaint("cut short");
    overwrite(good + "x");
    expect_complaint("too long: 13 bytes of tensors, its header says 12");
}

TEST_F(Safetensors, NamesTheDamage) {
    overwrite("short");
    expect_complaint("only 5 bytes long");
    overwrite(std::string(8, '\xff'));
    expect_complaint("more than the format allows");
    overwrite(std::string("\x20\0\0\0\0\0\0\0{}", 10));
    expect_complaint("cut short inside its header");
    write_raw("{nonsense", "");
    expect_complaint("its header is damaged");
    write_raw("[1, 2]", "");
    expect_complaint("its header is damaged");
    write_raw(R"({"w": {"dtype": "F32", "shape": [1]}})", "1234");
    expect_complaint("its header is damaged");
    write_raw(R"({"w":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "1234");
    expect_complaint("unknown type 'F33'");
    write_raw(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234");
    expect_complaint("of shape [2] needs 8 bytes, its place has 4");
    write_raw(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234");
    expect_complaint("has the shape [-1]");
    write_raw(
        R"({"w":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,4]}})",
        "1234");
    expect_complaint("has the shape");
    write_raw(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234");
    expect_complaint("impossible place");
    write_raw(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678");
    expect_complaint("'w' begins at 4, the one before it ends at 0");
    write_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
              R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
              "1234");
    expect_complaint("'b' begins at 0, the one before it ends at 4");
    write_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
              R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
              "12345678");
    expect_complaint("names 'a' twice");
    fs::remove(path_);
    expect_complaint("cannot open");
}

// A path in Latin-1 in the config ended the run at its first checkpoint.
TEST_F(Safetensors, MetadataThatIsNotUtf8IsMarked) {
    write_safetensors(path_, {}, {{"dir", "caf\xe9/data"}, {"class\xff", "1"}, {"crc32c", ""}});
    const SafetensorsFile file(path_);
    file.verify();
    EXPECT_EQ(file.metadata().at("dir"), "caf\xef\xbf\xbd/data");
    EXPECT_EQ(file.metadata().at("class\xef\xbf\xbd"), "1");
}

TEST_F(Safetensors, ADeviceThatIsFull) {
    const std::vector<float> values{1};
    try {
        write_safetensors("/dev/full", {{"w", "F32", {1}, as_item(values)}}, {});
        FAIL() << "a full device took a file";
    } catch (const FileError& error) {
        EXPECT_TRUE(error.no_space());
        EXPECT_STREQ(error.what(), "cannot write '/dev/full': No space left on device");
    }
}

}  // namespace
}  // namespace trainer
