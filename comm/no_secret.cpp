// Secret in a build without OpenSSL: there is none.
#include "comm/secret.h"
#include "engine/error.h"

namespace trainer {

std::shared_ptr<const Secret> Secret::read(const std::string& /*file*/) {
    throw UsageError(
        "comm.secret_file: this build has no OpenSSL; install libssl-dev and configure again");
}

Nonce Secret::draw() {
    throw Error("this build has no OpenSSL");
}

Proof Secret::of_worker(const Nonce& /*challenge*/, std::span<const std::byte> /*hello*/) const {
    return {};
}

Proof Secret::of_server(const Nonce& /*hello*/, const Nonce& /*challenge*/, int32_t /*rank*/,
                        int32_t /*workers*/) const {
    return {};
}

bool Secret::equal(const Proof& /*a*/, const Proof& /*b*/) {
    return false;
}

}  // namespace trainer
