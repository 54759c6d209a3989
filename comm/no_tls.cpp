// TLS in a build without OpenSSL: there is none.
#include "comm/tls.h"
#include "engine/error.h"

namespace trainer {

class TlsContext {};

std::shared_ptr<TlsContext> make_tls_context(const TlsOptions& /*options*/) {
    throw UsageError("comm.tls: this build has no OpenSSL; install libssl-dev and configure again");
}

std::unique_ptr<TlsStream> make_tls_stream(TlsContext& /*context*/, int /*socket*/,
                                           bool /*accepted*/) {
    throw Error("this build has no OpenSSL");
}

}  // namespace trainer
