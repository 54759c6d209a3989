// What strangers may do to a server: connections that say hello, prove or do not prove the secret,
// and go on as members, with any bytes in any order.
//
// Nothing may crash or run away; nobody takes part without a welcome or takes another's rank, and
// where there is a secret who does not prove it neither takes part nor hears of the settings.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstring>
#include <map>
#include <set>

#include "comm/server_endpoint.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace trainer;
using namespace trainer::fuzz;

constexpr int workers = 3;
const Terms terms{{"model", "mlp"}, {"optim.lr", "sesame"}};

/// A server's end of a connection whose other end is the input.
class FedConnection final : public Connection {
  public:
    void send(Header header, Parts payload, Completion done) override {
        std::string bytes;
        for (const auto part : payload)
            bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
        expect(bytes.size() == header.payload);
        parse_header(encode(header), UINT64_MAX);
        if (header.kind == MessageKind::challenge)
            std::memcpy(challenge.data(), bytes.data(), challenge.size());
        if (header.kind == MessageKind::welcome)
            welcomed = true;
        if (!proven)
            heard += bytes;
        done(!over);
    }
    void close(const std::string& reason) override {
        over = true;
        why = reason;
    }
    void allow_payload(uint64_t bytes) override { cap = bytes; }
    std::string peer() const override { return "the input"; }

    /// As a socket's connection does with a whole message.
    void feed(Header header, std::span<const std::byte> payload) {
        if (over)
            return end();
        try {
            header.payload = payload.size();
            const Header parsed = parse_header(encode(header), cap);
            std::span<std::byte> destination;
            if (!payload.empty()) {
                destination = receiver->destination(parsed);
                expect(destination.size() == payload.size());
                std::ranges::copy(payload, destination.begin());
            }
            receiver->received(parsed, destination);
        } catch (const Error& error) {
            close(error.what());
        }
        if (over)
            end();
    }
    void end() {
        over = true;
        if (const auto once = std::exchange(receiver, nullptr))
            once->lost(why);
    }

    std::shared_ptr<Receiver> receiver;
    Nonce challenge{};
    uint64_t cap = stranger_frame_cap;
    bool over = false, welcomed = false, proven = false;
    std::string why, heard;  // heard: before the proof
};

class FedTransport final : public Transport {
  public:
    Listening listen(const std::string&, Accept accept_connections) override {
        accept = std::move(accept_connections);
        return {"here:1", "here:1"};
    }
    std::shared_ptr<Connection> connect(const std::string&, const std::string&,
                                        std::shared_ptr<Receiver>, Clock::time_point) override {
        std::abort();
    }
    EventLoop& loop() override {
        static EventLoop loop("fuzz");  // its timers, of ten seconds, find that all has gone
        return loop;
    }

    Accept accept;
};

/// Takes what is the server's to take, and sees to it that it comes from members.
class Handler final : public ServerHandler {
  public:
    void joined(int worker) override {
        expect(worker >= 0 && worker < workers && members.insert(worker).second);
    }
    void push(int worker, int64_t, Range range, uint8_t, PooledBytes) override {
        expect(members.contains(worker) && range.first >= 0 && range.end() <= 100);
    }
    void pull(const Request& request) override {
        expect(members.contains(request.worker));
        static const std::vector<std::byte> model(400);
        endpoint->answer(request,
                         std::span(model).subspan(4 * static_cast<size_t>(request.range.first),
                                                  4 * static_cast<size_t>(request.range.count)),
                         nullptr);
    }
    void call(const Request& request, const std::string& name, PooledBytes body) override {
        expect(members.contains(request.worker));
        if (name == "fails")
            throw Error("it was asked to fail");
        endpoint->reply(request, body.bytes());
    }
    void note(int worker, int64_t step, const std::string& name, PooledBytes body) override {
        expect(members.contains(worker));
        endpoint->note(worker, step, name, body.bytes());
    }
    void left(int worker) override { expect(members.erase(worker) == 1); }
    void lost(int worker, const std::string&, const std::string&) override {
        expect(members.erase(worker) == 1);
    }

    ServerEndpoint* endpoint = nullptr;
    std::set<int> members;
};

std::shared_ptr<const Secret> the_secret() {
#ifdef TRAINER_HAVE_OPENSSL
    const MemoryFile file("secret");
    const std::string text = "a secret that is long enough";
    file.fill({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    return Secret::read(file.path());
#else
    return nullptr;
#endif
}

std::vector<std::byte> bytes_of(FuzzedDataProvider& input, size_t most) {
    const auto size = input.ConsumeIntegralInRange<size_t>(0, most);
    return input.ConsumeBytes<std::byte>(size);
}

Hello hello_of(FuzzedDataProvider& input) {
    Hello hello{.wished_rank = input.ConsumeIntegralInRange<int32_t>(-1, workers),
                .server = input.ConsumeIntegralInRange<int32_t>(0, 1),
                .servers = input.ConsumeIntegralInRange<int32_t>(1, 2),
                .host = input.ConsumeRandomLengthString(16),
                .terms = terms};
    if (input.ConsumeBool())
        hello.nonce = Nonce{};
    if (input.ConsumeIntegralInRange(0, 7) == 0)
        hello.terms.emplace_back(input.ConsumeRandomLengthString(8),
                                 input.ConsumeRandomLengthString(8));
    return hello;
}

/// The input against one server.
struct Drama {
    explicit Drama(FuzzedDataProvider& the_input) : input(the_input) {
        static const std::shared_ptr<const Secret> known = the_secret();
        if (input.ConsumeBool())
            secret = known;
        ServerOptions options;
        options.workers = workers;
        options.cuts = {0, 60, 100};
        options.terms = terms;
        options.secret = secret;
        options.rejoin = input.ConsumeBool();
        auto fed = std::make_unique<FedTransport>();
        transport = fed.get();
        endpoint.emplace(std::move(fed), std::move(options), handler);
        handler.endpoint = &*endpoint;
    }

    FedConnection& some_connection() {
        const auto which = input.ConsumeIntegralInRange<size_t>(0, 5);
        auto& connection = connections[which];
        if (connection == nullptr || connection->over) {
            if (connection != nullptr)
                finish(*connection);
            connection = std::make_shared<FedConnection>();
            connection->receiver = transport->accept(connection);
            introductions[which].clear();
        }
        last = which;
        return *connection;
    }

    void act() {
        FedConnection& connection = some_connection();
        Header header;
        switch (input.ConsumeIntegralInRange(0, 4)) {
            case 0:
                header.kind = MessageKind::hello;
                return connection.feed(header, introductions[last] = encode(hello_of(input)));
            case 1: {
                if (secret == nullptr)
                    return;
                const Proof proof = secret->of_worker(connection.challenge, introductions[last]);
                header.kind = MessageKind::proof;
                connection.proven = true;
                return connection.feed(header, proof);
            }
            case 2:
                return connection.end();
            default:
                header.kind = static_cast<MessageKind>(input.ConsumeIntegralInRange(0, 16));
                header.codec = input.ConsumeIntegral<uint8_t>();
                header.worker = input.ConsumeIntegralInRange(-2, workers);
                header.step = input.ConsumeIntegral<int8_t>();
                header.range = {input.ConsumeIntegralInRange(-1, 110),
                                input.ConsumeIntegralInRange(-1, 110)};
                return connection.feed(header, bytes_of(input, 300));
        }
    }

    void finish(FedConnection& connection) const {
        connection.end();
        if (secret != nullptr && !connection.proven) {
            expect(!connection.welcomed);
            expect(connection.heard.find("sesame") == std::string::npos);
        }
    }

    FuzzedDataProvider& input;
    std::shared_ptr<const Secret> secret;
    Handler handler;
    FedTransport* transport = nullptr;
    std::map<size_t, std::shared_ptr<FedConnection>> connections;
    std::map<size_t, std::vector<std::byte>> introductions;  // the hello that each has sent
    size_t last = 0;
    std::optional<ServerEndpoint> endpoint;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FuzzedDataProvider input(data, size);
    Drama drama(input);
    for (int acts = 0; acts < 100 && input.remaining_bytes() > 0; ++acts)
        drama.act();
    for (const auto& [which, connection] : drama.connections)
        drama.finish(*connection);
    try_parse([&] { drama.endpoint->wait_finished(std::chrono::milliseconds(0)); });
    return 0;
}
