// The bytes of messages, literally as comm/PROTOCOL.md has them.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include "comm/hello.h"
#include "comm/message.h"
#include "tests/error_of.h"

namespace trainer {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}

uint32_t crc(std::string_view text) {
    Crc32c crc;
    crc.add(bytes_of(text));
    return crc.value();
}

/// The example of PROTOCOL.md: worker 2 pushes 2 floats, 1.0 and -2.0, as elements 1000 and 1001 of
/// step 7.
Header example_header() {
    Header header;
    header.kind = MessageKind::push;
    header.worker = 2;
    header.step = 7;
    header.range = {1000, 2};
    header.payload = 8;
    return header;
}

/// Bytes as PROTOCOL.md prints them: "54 52 ..." in the indented lines behind the mark.
std::vector<std::byte> bytes_from_document() {
    std::ifstream file(std::string(TRAINER_SOURCE_DIR) + "/comm/PROTOCOL.md");
    std::vector<std::byte> bytes;
    bool inside = false;
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("```"))
            inside = line == "```bytes";
        else if (inside) {
            std::istringstream words(line.substr(0, line.find('#')));
            for (std::string word; words >> word;)
                bytes.push_back(static_cast<std::byte>(std::stoi(word, nullptr, 16)));
        }
    }
    return bytes;
}

TEST(Crc32c, KnownValues) {
    EXPECT_EQ(crc(""), 0u);
    EXPECT_EQ(crc("123456789"), 0xe3069283u);            // the catalogue's check value
    EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
    EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32c, AnyCutGivesTheSameAndThePlainLoopAgrees) {
    std::mt19937 random(1);
    std::vector<std::byte> data(4099);
    for (std::byte& byte : data)
        byte = static_cast<std::byte>(random());
    const std::span<const std::byte> all(data);
    for (size_t cut = 0; cut <= data.size(); cut += 97) {
        Crc32c crc;
        crc.add(all.first(cut));
        crc.add(all.subspan(cut));
        const uint32_t before = crc32c_portable(data.data(), cut);
        ASSERT_EQ(crc.value(), crc32c_portable(data.data() + cut, data.size() - cut, before))
            << cut;
    }
}

TEST(Message, WorkedExampleOfTheDocument) {
    const std::vector<std::byte> document = bytes_from_document();
    ASSERT_EQ(document.size(), header_bytes + 8 + checksum_bytes);

    const auto header = encode(example_header());
    const std::array<float, 2> values = {1.0f, -2.0f};
    std::vector<std::byte> message(header.begin(), header.end());
    const auto payload = std::as_bytes(std::span(values));
    message.insert(message.end(), payload.begin(), payload.end());
    Crc32c crc = checksum_of_header(header);
    crc.add(payload);
    message.resize(message.size() + checksum_bytes);
    put<uint32_t>(message.data() + message.size() - checksum_bytes, crc.value());
    EXPECT_EQ(message, document);
}

TEST(Message, ParseGivesBackWhatWasEncoded) {
    Header header;
    header.kind = MessageKind::pulled;
    header.codec = 200;
    header.worker = -1;
    header.request = 0xfedcba98;
    header.step = (int64_t{1} << 40) + 3;
    header.range = {int64_t{1} << 33, (int64_t{1} << 34) + 1};
    header.payload = 5'000'000'000;
    EXPECT_EQ(parse_header(encode(header), uint64_t{1} << 40), header);
}

TEST(Message, RefusesWhatIsNotAHeader) {
    const auto good = encode(example_header());
    auto bytes = good;
    std::memcpy(bytes.data(), "GET / HTTP/1.1\r\nHost: x", 23);
    EXPECT_EQ(error_of([&] { parse_header(bytes, 100); }),
              "what it sent is not this program's protocol (it begins with \"GET / "
              "HTTP/1.1\\x0d\\x0a\")");
    std::memcpy(bytes.data(), "\x16\x03\x01\x02\x7f\x80\xff\\ AAAAAAAAA", 16);
    EXPECT_EQ(
        error_of([&] { parse_header(bytes, 100); }),
        "what it sent is not this program's protocol (it begins with "
        "\"\\x16\\x03\\x01\\x02\\x7f\\x80\\xff\\ AAAAAAA\"): it speaks TLS; comm.tls is set there "
        "and not here");

    bytes = good;
    bytes[4] = std::byte{1};
    EXPECT_EQ(error_of([&] { parse_header(bytes, 100); }),
              "it speaks protocol version 1, this program 2: run the same build on every machine");

    // Any one damaged bit is noticed.
    for (size_t bit = 0; bit < 8 * header_bytes; ++bit) {
        bytes = good;
        bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
        EXPECT_NE(error_of([&] { parse_header(bytes, 100); }), "no error") << bit;
    }
}

TEST(Message, RefusesImpossibleClaims) {
    const auto parse = [](const Header& header, uint64_t cap) {
        return error_of([&] { parse_header(encode(header), cap); });
    };
    Header header = example_header();
    header.payload = uint64_t{1} << 63;
    EXPECT_EQ(parse(header, 1000),
              "it announced a push of 9223372036854775808 bytes, more than the 1000 allowed here");
    header.payload = 1001;
    EXPECT_NE(parse(header, 1000), "no error");
    header.payload = 1000;
    EXPECT_EQ(parse(header, 1000), "no error");

    header.range = {-1, 2};
    EXPECT_EQ(parse(header, 1000), "it sent a push for the impossible range -1 + 2");
    header.range = {INT64_MAX, INT64_MAX};
    EXPECT_NE(parse(header, 1000), "no error");

    header.kind = static_cast<MessageKind>(last_kind + 1);
    header.range = {0, 0};
    EXPECT_EQ(parse(header, 1000), "it sent a message of unknown kind 16");
    header.kind = MessageKind::call;
    header.range = {0, 1001};
    EXPECT_EQ(parse(header, 1000), "it sent a call whose name is longer than the message");
}

TEST(Hello, RoundTrip) {
    Hello hello{{}, 3, 1, 2, "node3", {{"model", "mlp"}, {"optim.lr", ""}}};
    EXPECT_EQ(parse_hello(encode(hello)), hello);
    hello.nonce.emplace().fill(std::byte{7});
    EXPECT_EQ(parse_hello(encode(hello)), hello);
    Welcome welcome{3, 4, {}};
    EXPECT_EQ(parse_welcome(encode(welcome)), welcome);
    welcome.proof.emplace().fill(std::byte{9});
    EXPECT_EQ(parse_welcome(encode(welcome)), welcome);
}

TEST(Hello, EveryShorterOrLongerPayloadIsRefused) {
    const auto good = encode(Hello{{}, -1, 0, 1, "n", {{"model", "mlp"}, {"seed", "1"}}});
    for (size_t size = 0; size < good.size(); ++size)
        EXPECT_EQ(error_of([&] { parse_hello(std::span(good).first(size)); }),
                  "it sent a hello that is malformed")
            << size;
    auto longer = good;
    longer.push_back({});
    EXPECT_NE(error_of([&] { parse_hello(longer); }), "no error");

    auto claims_much = good;
    put<uint32_t>(&claims_much[21], 0xffffffff);  // terms
    EXPECT_NE(error_of([&] { parse_hello(claims_much); }), "no error");
    auto long_key = good;
    put<uint32_t>(&long_key[25], 0x7fffffff);  // bytes of the first key
    EXPECT_NE(error_of([&] { parse_hello(long_key); }), "no error");
    auto method = good;
    put<uint32_t>(&method[0], 9);
    EXPECT_EQ(error_of([&] { parse_hello(method); }),
              "it wants authentication method 9, which this program does not know");
    EXPECT_NE(error_of([&] { parse_hello(encode(Hello{{}, 0, 2, 2, "", {}})); }), "no error");
    EXPECT_NE(error_of([&] { parse_welcome(encode(Welcome{4, 4, {}})); }), "no error");
}

TEST(Hello, DifferencesAreNamed) {
    const Terms ours = {{"model", "mlp"}, {"optim.lr", "0.1"}, {"seed", "1"}};
    EXPECT_EQ(difference(ours, "a", ours, "b"), std::nullopt);
    EXPECT_EQ(difference(ours, "server 0", {{"model", "mlp"}, {"optim.lr", "0.2"}, {"x", "1\n"}},
                         "worker 1"),
              "optim.lr is 0.1 on server 0 and 0.2 on worker 1; seed is 1 on server 0 and not set "
              "on worker 1; x is 1. on worker 1 and not set on server 0");
    Terms many;
    for (int i = 0; i < 9; ++i)
        many.emplace_back("key" + std::to_string(i), "1");
    EXPECT_TRUE(difference({}, "a", many, "b")->ends_with("; and 4 more"));
}

TEST(Hello, ModelTermCoversNamesAndShapes) {
    const auto term = [](const std::string& name, Shape shape) {
        TensorTable table;
        table.add(name, std::move(shape), true, {});
        return model_term("m", table);
    };
    EXPECT_EQ(term("w", {2, 3}), term("w", {2, 3}));
    EXPECT_TRUE(term("w", {2, 3}).starts_with("m, 6 parameters, digest "));
    EXPECT_NE(term("w", {2, 3}), term("w", {3, 2}));
    EXPECT_NE(term("w", {2, 3}), term("v", {2, 3}));
}

}  // namespace
}  // namespace trainer
