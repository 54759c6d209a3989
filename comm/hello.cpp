#include "comm/hello.h"

#include <algorithm>
#include <cstdio>

#include "engine/error.h"

namespace trainer {
namespace {

constexpr uint32_t most_terms = 4096;
constexpr size_t most_differences = 5;

// Methods of authentication.
constexpr uint32_t no_authentication = 0, shared_secret = 1;
constexpr size_t longest_host = 255;

class Writer {
  public:
    template <typename T>
    void number(T value) {
        bytes_.resize(bytes_.size() + sizeof(T));
        put(bytes_.data() + bytes_.size() - sizeof(T), value);
    }
    void bytes(std::span<const std::byte> bytes) {
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    void text(const std::string& text) {
        number(static_cast<uint32_t>(text.size()));
        bytes(std::as_bytes(std::span(text)));
    }
    std::vector<std::byte> take() { return std::move(bytes_); }

  private:
    std::vector<std::byte> bytes_;
};

class Reader {
  public:
    Reader(std::span<const std::byte> bytes, const char* what) : bytes_(bytes), what_(what) {}

    template <typename T>
    T number() {
        return get<T>(take(sizeof(T)).data());
    }
    std::string text() {
        const auto bytes = take(number<uint32_t>());
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    std::array<std::byte, 32> bytes32() {
        std::array<std::byte, 32> bytes;
        std::ranges::copy(take(bytes.size()), bytes.begin());
        return bytes;
    }
    void end() const {
        if (!bytes_.empty())
            fail();
    }
    [[noreturn]] void fail() const {
        throw Error(std::string("it sent a ") + what_ + " that is malformed");
    }

  private:
    std::span<const std::byte> take(size_t count) {
        if (count > bytes_.size())
            fail();
        const auto front = bytes_.first(count);
        bytes_ = bytes_.subspan(count);
        return front;
    }

    std::span<const std::byte> bytes_;
    const char* what_;
};

const std::string* find(const Terms& terms, const std::string& key) {
    const auto found = std::find_if(terms.begin(), terms.end(),
                                    [&](const auto& term) { return term.first == key; });
    return found == terms.end() ? nullptr : &found->second;
}

}  // namespace

std::string model_term(const std::string& name, const TensorTable& table) {
    Writer writer;
    for (const TensorInfo& tensor : table.tensors()) {
        writer.text(tensor.name);
        writer.number(tensor.offset);
        writer.number(static_cast<uint32_t>(tensor.shape.size()));
        for (const int64_t extent : tensor.shape)
            writer.number(extent);
    }
    Crc32c crc;
    crc.add(writer.take());
    char digest[9];
    std::snprintf(digest, sizeof digest, "%08x", crc.value());
    return name + ", " + std::to_string(table.size()) + " parameters, digest " + digest;
}

std::vector<std::byte> encode(const Hello& hello) {
    Writer writer;
    writer.number(hello.nonce ? shared_secret : no_authentication);
    if (hello.nonce)
        writer.bytes(*hello.nonce);
    writer.number(hello.wished_rank);
    writer.number(hello.server);
    writer.number(hello.servers);
    writer.text(hello.host);
    writer.number(static_cast<uint32_t>(hello.terms.size()));
    for (const auto& [key, value] : hello.terms) {
        writer.text(key);
        writer.text(value);
    }
    return writer.take();
}

Hello parse_hello(std::span<const std::byte> bytes) {
    Reader reader(bytes, "hello");
    Hello hello;
    const auto method = reader.number<uint32_t>();
    if (method == shared_secret)
        hello.nonce = reader.bytes32();
    else if (method != no_authentication)
        throw Error("it wants authentication method " + std::to_string(method) +
                    ", which this program does not know");
    hello.wished_rank = reader.number<int32_t>();
    hello.server = reader.number<int32_t>();
    hello.servers = reader.number<int32_t>();
    hello.host = reader.text();
    const auto terms = reader.number<uint32_t>();
    if (hello.wished_rank < -1 || hello.server < 0 || hello.server >= hello.servers ||
        hello.host.size() > longest_host || terms > most_terms)
        reader.fail();
    for (uint32_t i = 0; i < terms; ++i) {
        std::string key = reader.text();
        std::string value = reader.text();
        hello.terms.emplace_back(std::move(key), std::move(value));
    }
    reader.end();
    return hello;
}

std::vector<std::byte> encode(const Welcome& welcome) {
    Writer writer;
    writer.number(welcome.rank);
    writer.number(welcome.workers);
    writer.number(welcome.proof ? shared_secret : no_authentication);
    if (welcome.proof)
        writer.bytes(*welcome.proof);
    return writer.take();
}

Welcome parse_welcome(std::span<const std::byte> bytes) {
    Reader reader(bytes, "welcome");
    Welcome welcome;
    welcome.rank = reader.number<int32_t>();
    welcome.workers = reader.number<int32_t>();
    const auto method = reader.number<uint32_t>();
    if (welcome.rank < 0 || welcome.rank >= welcome.workers || method > shared_secret)
        reader.fail();
    if (method == shared_secret)
        welcome.proof = reader.bytes32();
    reader.end();
    return welcome;
}

std::optional<std::string> difference(const Terms& ours, const std::string& here,
                                      const Terms& theirs, const std::string& there) {
    std::vector<std::string> differences;
    for (const auto& [key, value] : ours) {
        const std::string* other = find(theirs, key);
        if (other == nullptr)
            differences.push_back(key + " is " + value + " on " + here + " and not set on " +
                                  there);
        else if (*other != value)
            differences.push_back(key + " is " + value + " on " + here + " and " + *other + " on " +
                                  there);
    }
    for (const auto& [key, value] : theirs)
        if (find(ours, key) == nullptr)
            differences.push_back(key + " is " + value + " on " + there + " and not set on " +
                                  here);
    if (differences.empty())
        return std::nullopt;

    std::string text;
    for (size_t i = 0; i < std::min(differences.size(), most_differences); ++i)
        text += (i > 0 ? "; " : "") + differences[i];
    if (differences.size() > most_differences)
        text += "; and " + std::to_string(differences.size() - most_differences) + " more";
    return printable(std::as_bytes(std::span(text)));
}

}  // namespace trainer
