#include "comm/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include "engine/error.h"

namespace trainer {
namespace {

constexpr size_t fewest_bytes = 16;

/// A text and its zero byte, so that no message of one kind is one of another.
std::vector<std::byte> labelled(std::string_view label) {
    std::vector<std::byte> bytes(label.size() + 1);
    std::ranges::copy(std::as_bytes(std::span(label)), bytes.begin());
    return bytes;
}

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

std::shared_ptr<const Secret> Secret::read(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    struct stat status {};
    if (!stream || ::stat(file.c_str(), &status) != 0)
        throw UsageError("comm.secret_file: '" + file + "' cannot be read");
    if (S_ISDIR(status.st_mode))
        throw UsageError("comm.secret_file: '" + file + "' is a folder; name the file in it");
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        throw UsageError("comm.secret_file: others than its owner may use '" + file +
                         "'; do chmod 600 " + file);
    std::string key{std::istreambuf_iterator<char>(stream), {}};
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r'))
        key.pop_back();
    if (key.size() < fewest_bytes)
        throw UsageError("comm.secret_file: '" + file + "' holds fewer than " +
                         std::to_string(fewest_bytes) +
                         " bytes, which can be guessed; take e.g. openssl rand -hex 32");
    return std::shared_ptr<const Secret>(new Secret(std::move(key)));
}

Nonce Secret::draw() {
    Nonce nonce;
    if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()),
                   static_cast<int>(nonce.size())) != 1)
        throw Error("the system has no random numbers to prove the secret with");
    return nonce;
}

Proof Secret::code(std::span<const std::byte> message) const {
    Proof proof;
    unsigned int size = 0;
    if (HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(),
             reinterpret_cast<unsigned char*>(proof.data()), &size) == nullptr ||
        size != proof.size())
        throw Error("OpenSSL cannot compute HMAC-SHA256 here");
    return proof;
}

Proof Secret::of_worker(const Nonce& challenge, std::span<const std::byte> hello) const {
    std::vector<std::byte> message = labelled("trainer worker");
    append(message, challenge);
    append(message, hello);
    return code(message);
}

Proof Secret::of_server(const Nonce& hello, const Nonce& challenge, int32_t rank,
                        int32_t workers) const {
    std::vector<std::byte> message = labelled("trainer server");
    append(message, hello);
    append(message, challenge);
    std::array<std::byte, 8> numbers;
    put<int32_t>(numbers.data(), rank);
    put<int32_t>(numbers.data() + 4, workers);
    append(message, numbers);
    return code(message);
}

bool Secret::equal(const Proof& a, const Proof& b) {
    return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace trainer
