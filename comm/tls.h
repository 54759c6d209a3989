// TLS 1.3 between the processes of a run: both ends show a certificate of one authority. Needs
// OpenSSL.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>

namespace trainer {

/// Files in PEM.
struct TlsOptions {
    std::string cert;  ///< this process's certificate, with the chain that leads to the authority
    std::string key;   ///< its private key
    std::string ca;    ///< the authority's certificate; who has one of it belongs to the run
};

/// What all connections of a process share.
class TlsContext;

/// Throws UsageError for files that do not serve, and in a build without OpenSSL.
std::shared_ptr<TlsContext> make_tls_context(const TlsOptions& options);

/// One connection's encryption over a socket that does not block. Used by one thread.
class TlsStream {
  public:
    virtual ~TlsStream() = default;

    enum class Progress { done, wants_read, wants_write };
    /// Goes on with the handshake; throws Error where the other end is not to be trusted.
    virtual Progress handshake() = 0;

    /// As read(2) and write(2) do: bytes moved, 0 at the end, or -1 and errno, EAGAIN where it is
    /// to be tried again, with the same bytes first.
    virtual ssize_t read(std::span<std::byte> target) = 0;
    virtual ssize_t write(std::span<const std::byte> bytes) = 0;

    /// What went wrong last, where errno is EPROTO.
    virtual const std::string& error() const = 0;
};

/// `accepted`: the other end has called this one.
std::unique_ptr<TlsStream> make_tls_stream(TlsContext& context, int socket, bool accepted);

}  // namespace trainer
