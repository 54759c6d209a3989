#include "comm/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>  // Boost 1.74's Asio forgets it
// (the order matters to Asio's headers)
#include <boost/asio/ssl/context.hpp>
#include <cerrno>
#include <filesystem>

#include "engine/error.h"

namespace trainer {

namespace ssl = boost::asio::ssl;

namespace {

/// Throws where the file that `key` names cannot be read, or where OpenSSL has found an error in
/// it.
void check_file(const std::string& key, const std::string& file,
                const boost::system::error_code& error) {
    const auto refuse = [&](const std::string& why) {
        throw UsageError("comm.tls." + key + ": '" + file + "' cannot be used: " + why);
    };
    std::error_code unknown;
    if (std::filesystem::is_directory(file, unknown))
        refuse("it is a folder");
    errno = 0;
    if (!std::ifstream(file))
        refuse(std::strerror(errno));
    if (error)
        refuse("it holds no " + std::string(key == "key" ? "private key" : "certificate") +
               " in PEM form (" + error.message() + ")");
}

}  // namespace

class TlsContext {
  public:
    explicit TlsContext(const TlsOptions& options)
        : context(ssl::context::tls), cert(options.cert), ca(options.ca) {
        boost::system::error_code error;
        context.use_certificate_chain_file(options.cert, error);
        check_file("cert", options.cert, error);
        check_dates();
        use_key(options);
        context.load_verify_file(options.ca, error);
        check_file("ca", options.ca, error);
        context.set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
        SSL_CTX* const native = context.native_handle();
        SSL_CTX_set_min_proto_version(native, TLS1_3_VERSION);
        SSL_CTX_set_options(native, SSL_OP_IGNORE_UNEXPECTED_EOF);
        SSL_CTX_set_mode(native,
                         SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_num_tickets(native, 0);
        ERR_clear_error();
    }

    ssl::context context;
    const std::string cert, ca;  // file names, for messages

  private:
    /// Of the own certificate; the other ends would refuse it without a word here.
    void check_dates() {
        const X509* const own = SSL_CTX_get0_certificate(context.native_handle());
        const auto refuse_where = [&](bool wrong, const char* why, const ASN1_TIME* date) {
            std::tm time{};
            std::array<char, 32> text{};
            if (!wrong || ASN1_TIME_to_tm(date, &time) != 1)
                return;
            std::strftime(text.data(), text.size(), "%F %T UTC", &time);
            throw UsageError(
                "comm.tls.cert: '" + cert + "' " + why + " " + text.data() +
                ": give one that is in date, and see that this machine's clock is right");
        };
        const ASN1_TIME* const begin = X509_get0_notBefore(own);
        const ASN1_TIME* const end = X509_get0_notAfter(own);
        refuse_where(X509_cmp_current_time(begin) > 0, "is not valid before", begin);
        refuse_where(X509_cmp_current_time(end) < 0, "has expired at", end);
    }

    /// After the certificate.
    void use_key(const TlsOptions& options) {
        bool encrypted = false;
        context.set_password_callback([&](size_t, ssl::context::password_purpose) {
            encrypted = true;  // asks nobody: a run has no terminal
            return std::string();
        });
        boost::system::error_code error;
        context.use_private_key_file(options.key, ssl::context::pem, error);
        context.set_password_callback(
            [](size_t, ssl::context::password_purpose) { return std::string(); });
        const auto refuse = [&](const std::string& why) {
            throw UsageError("comm.tls.key: '" + options.key + "' " + why);
        };
        if (error && encrypted)
            refuse("is encrypted; give one without a pass phrase");
        const bool mismatch = error && ERR_GET_LIB(error.value()) == ERR_LIB_X509;
        if (!mismatch)
            check_file("key", options.key, error);
        if (mismatch || SSL_CTX_check_private_key(context.native_handle()) != 1)
            refuse("is not the key of the certificate in comm.tls.cert, '" + options.cert + "'");
    }
};

namespace {

class OpenSslStream final : public TlsStream {
  public:
    OpenSslStream(TlsContext& context, int socket, bool accepted)
        : ssl_(SSL_new(context.context.native_handle())), cert_(context.cert), ca_(context.ca) {
        check(ssl_ != nullptr && SSL_set_fd(ssl_, socket) == 1, "a TLS connection");
        if (accepted)
            SSL_set_accept_state(ssl_);
        else
            SSL_set_connect_state(ssl_);
    }
    ~OpenSslStream() override { SSL_free(ssl_); }

    Progress handshake() override {
        ERR_clear_error();
        const int result = SSL_do_handshake(ssl_);
        if (result == 1)
            return Progress::done;
        switch (SSL_get_error(ssl_, result)) {
            case SSL_ERROR_WANT_READ:
                return Progress::wants_read;
            case SSL_ERROR_WANT_WRITE:
                return Progress::wants_write;
            default:
                throw Error("TLS: " + reason());
        }
    }

    ssize_t read(std::span<std::byte> target) override {
        ERR_clear_error();
        size_t count = 0;
        const int result = SSL_read_ex(ssl_, target.data(), target.size(), &count);
        return outcome(result, count);
    }

    ssize_t write(std::span<const std::byte> bytes) override {
        ERR_clear_error();
        size_t count = 0;
        const int result = SSL_write_ex(ssl_, bytes.data(), bytes.size(), &count);
        return outcome(result, count);
    }

    const std::string& error() const override { return error_; }

  private:
    ssize_t outcome(int result, size_t count) {
        if (result == 1)
            return static_cast<ssize_t>(count);
        const int system_error = errno;
        switch (SSL_get_error(ssl_, result)) {
            case SSL_ERROR_WANT_READ:
            case SSL_ERROR_WANT_WRITE:
                errno = EAGAIN;
                return -1;
            case SSL_ERROR_ZERO_RETURN:
                return 0;
            case SSL_ERROR_SYSCALL:
                if (system_error == 0)
                    return 0;
                errno = system_error;
                return -1;
            default:
                error_ = "TLS: " + reason();
                errno = EPROTO;
                return -1;
        }
    }

    std::string reason() const {
        if (const long verdict = SSL_get_verify_result(ssl_); verdict != X509_V_OK)
            return std::string("its certificate is not accepted here (") +
                   X509_verify_cert_error_string(verdict) +
                   "): it must be signed by the authority in comm.tls.ca, '" + ca_ +
                   "', and be in date";
        const unsigned long code = ERR_get_error();
        const char* const text = code == 0 ? nullptr : ERR_reason_error_string(code);
        return text == nullptr ? "the other end broke off the handshake" : text + advice(code);
    }

    /// What to do, where OpenSSL's words do not say it.
    std::string advice(unsigned long code) const {
        if (ERR_GET_LIB(code) != ERR_LIB_SSL)
            return "";
        switch (ERR_GET_REASON(code)) {
            case SSL_R_WRONG_VERSION_NUMBER:
            case SSL_R_HTTP_REQUEST:
            case SSL_R_PACKET_LENGTH_TOO_LONG:
                return " (the other side does not speak TLS: comm.tls is set here and not there)";
            case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
            case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
            case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
            case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
            case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
                return " (it does not accept the certificate in comm.tls.cert here, '" + cert_ +
                       "': that must be signed by the authority in its comm.tls.ca, and be in "
                       "date)";
            default:
                return "";
        }
    }

    SSL* const ssl_;
    const std::string cert_, ca_;
    std::string error_;
};

}  // namespace

std::shared_ptr<TlsContext> make_tls_context(const TlsOptions& options) {
    return std::make_shared<TlsContext>(options);
}

std::unique_ptr<TlsStream> make_tls_stream(TlsContext& context, int socket, bool accepted) {
    return std::make_unique<OpenSslStream>(context, socket, accepted);
}

}  // namespace trainer
