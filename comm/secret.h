// Secret: what the processes of a run share, and prove to each other without sending it.
//
// HMAC-SHA256 (RFC 2104) over numbers that both ends draw anew for each connection, so that nothing
// that was overheard is of use again. PROTOCOL.md has the exchange. Needs OpenSSL.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "comm/hello.h"

namespace trainer {

class Secret {
  public:
    /// The secret in a file, without a line's end behind it. Throws UsageError where the file
    /// cannot be read or may be read by others than its owner, where it holds fewer than 16 bytes,
    /// and in a build without OpenSSL.
    static std::shared_ptr<const Secret> read(const std::string& file);

    /// A number nobody can guess.
    static Nonce draw();

    /// What a worker sends for a server's challenge to the hello that it has sent.
    Proof of_worker(const Nonce& challenge, std::span<const std::byte> hello) const;
    /// What a server sends with its welcome.
    Proof of_server(const Nonce& hello, const Nonce& challenge, int32_t rank,
                    int32_t workers) const;

    /// Compares in a time that says nothing.
    static bool equal(const Proof& a, const Proof& b);

  private:
    explicit Secret(std::string key) : key_(std::move(key)) {}
    Proof code(std::span<const std::byte> message) const;

    std::string key_;
};

}  // namespace trainer
