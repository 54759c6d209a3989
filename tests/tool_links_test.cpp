// Workers whose link to the servers is cut, who come too late or too early, and what is said then.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <list>
#include <mutex>

#include "tests/faults_helpers.h"

namespace trainer {
namespace {

using namespace testing_faults;

/// 127.0.0.1:PORT as the system takes it.
sockaddr_in socket_address(const std::string& address) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    return to;
}

/// A network between a worker and one server, which can be cut.
class Network {
  public:
    explicit Network(std::string server)
        : server_(std::move(server)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in here = socket_address(":0");
        socklen_t size = sizeof here;
        auto* const raw = reinterpret_cast<sockaddr*>(&here);
        check(::bind(listener_, raw, size) == 0 && ::listen(listener_, 8) == 0 &&
                  ::getsockname(listener_, raw, &size) == 0,
              "a port to listen on");
        address_ = "127.0.0.1:" + std::to_string(ntohs(here.sin_port));
        thread_ = std::thread([this] { run(); });
    }
    ~Network() {
        over_ = true;
        thread_.join();
        drop();
        ::close(listener_);
    }
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;

    const std::string& address() const { return address_; }

    /// Ends the connections that there are; new ones are let through.
    void reset() {
        const std::lock_guard lock(mutex_);
        drop();
    }
    /// While it is held nothing arrives, and nobody is told.
    void hold(bool held) { held_ = held; }

  private:
    struct Pair {
        int worker, server;
    };

    void run() {
        while (!over_) {
            if (held_) {
                std::this_thread::sleep_for(5ms);
                continue;
            }
            std::vector<pollfd> ready{{listener_, POLLIN, 0}};
            const auto watch = [&] {
                for (const Pair& pair : pairs_)
                    for (const int fd : {pair.worker, pair.server})
                        ready.push_back({fd, POLLIN, 0});
            };
            {
                const std::lock_guard lock(mutex_);
                watch();
            }
            ::poll(ready.data(), ready.size(), 5);
            const std::lock_guard lock(mutex_);
            if (ready[0].revents != 0)
                accept_one();
            for (auto pair = pairs_.begin(); pair != pairs_.end();)
                if (move(pair->worker, pair->server) && move(pair->server, pair->worker)) {
                    ++pair;
                } else {
                    end(*pair);
                    pair = pairs_.erase(pair);
                }
        }
    }
    void accept_one() {
        const Pair pair{::accept(listener_, nullptr, nullptr), ::socket(AF_INET, SOCK_STREAM, 0)};
        const sockaddr_in to = socket_address(server_);
        const int at_once = 1;
        for (const int fd : {pair.worker, pair.server})
            ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
        if (::connect(pair.server, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0)
            pairs_.push_back(pair);
        else
            end(pair);
    }
    /// What has arrived; false at the connection's end.
    static bool move(int from, int to) {
        char bytes[16384];
        const ssize_t count = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
        if (count < 0)
            return errno == EAGAIN;
        for (ssize_t at = 0; at < count;) {
            const ssize_t sent =
                ::send(to, bytes + at, static_cast<size_t>(count - at), MSG_NOSIGNAL);
            if (sent <= 0)
                return false;
            at += sent;
        }
        return count > 0;
    }
    static void end(const Pair& pair) {
        ::close(pair.worker);
        ::close(pair.server);
    }
    void drop() {
        for (const Pair& pair : pairs_)
            end(pair);
        pairs_.clear();
    }

    const std::string server_;
    const int listener_;
    std::string address_;
    std::mutex mutex_;
    std::list<Pair> pairs_;  // under the mutex
    std::atomic<bool> over_{false}, held_{false};
    std::thread thread_;
};

class LinksTest : public FaultsTest {
  protected:
    /// A worker that reaches that server through a network.
    Process worker_through(const Network& network, size_t server, const std::string& run,
                           int rank) {
        const std::string direct = std::exchange(addresses_[server], network.address());
        Process process = worker(run, rank);
        addresses_[server] = direct;
        return process;
    }
    void await_log(const std::string& run, const std::string& part) const {
        for (int i = 0; i < 6000 * patience && log(run).find(part) == std::string::npos; ++i)
            std::this_thread::sleep_for(5ms);
        expect_part(log(run), part);
    }
};

size_t count_of(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
        ++count;
    return count;
}

// --- links that are cut ---

// All others went back to the last checkpoint for it.
TEST_F(LinksTest, AWorkerThatLosesItsLinkIsTheOnlyOneToLoseAnything) {
    shared_ = {"distributed.on_worker_loss=continue", "train.max_steps=0"};
    start("run", 2, 3, 1);
    Network network(addresses_[1]);
    workers_.push_back(worker_through(network, 1, "run", 2));
    await_step("run", 10);
    network.reset();
    await_log("run", "were lost with worker 2");
    expect_all_done();
    expect_part(log("run"), " 3 of 3 workers: 0, 1, 2;");
    expect_part(workers_[2].text(), "again        server 1 at " + network.address() + " is lost");
    EXPECT_EQ(log("run").find("goes back to its last checkpoint"), std::string::npos);
    EXPECT_EQ(workers_[0].text().find("again  "), std::string::npos);
}

TEST_F(LinksTest, WhatStopsForLessThanTheLeaseChangesNothing) {
    EXPECT_EQ(program("whole", {}, {"distributed.workers=2", "comm.emulate={}"}).wait(), 0);
    start("run", 2, 2, 1);
    shared_ = {"distributed.servers=2", "distributed.workers=2"};
    Network network(addresses_[1]);
    workers_.push_back(worker_through(network, 1, "run", 1));
    for (const int step : {10, 30}) {
        await_step("run", step);
        network.hold(true);
        std::this_thread::sleep_for(800ms);  // the lease is 2 s
        network.hold(false);
    }
    expect_all_done();
    expect_same("whole", "run");
    EXPECT_EQ(log("run").find("lost"), std::string::npos);
}

TEST_F(LinksTest, WhatStopsForLongerIsTakenForALossAndTheWorkerComesBack) {
    shared_ = {"distributed.on_worker_loss=continue", "train.max_steps=0", "comm.lease=1s"};
    start("run", 2, 2, 1);
    Network network(addresses_[1]);
    workers_.push_back(worker_through(network, 1, "run", 1));
    await_step("run", 10);
    network.hold(true);
    await_log("run", " 1 of 2 workers: 0;");
    network.hold(false);
    await_log("run", " 2 of 2 workers: 0, 1;");
    expect_all_done();
    expect_part(workers_[1].text(), "it has given no sign of life for 1.00 s");
}

// --- coming early and late ---

// It was refused, and ended, where nobody had seen yet that the one before it was lost.
TEST_F(LinksTest, AWorkerWaitsUntilItsForerunnerIsSeenToBeLost) {
    shared_ = {"distributed.on_worker_loss=continue", "train.max_steps=0", "comm.lease=6s"};
    start("run", 2, 2);
    await_step("run", 10);
    workers_[1].send(SIGSTOP);
    Process forerunner = std::exchange(workers_[1], worker("run", 1, {"log.dir=another"}));
    expect_all_done();
    expect_part(workers_[1].text(), "waits        server 0 at " + addresses_[0] +
                                        " refused: rank 1 is taken by worker 1 on ");
    expect_part(log("run"), " 2 of 2 workers: 0, 1;");
}

// It ended with exit code 1.
TEST_F(LinksTest, AWorkerThatComesTooLateIsNotAtFault) {
    shared_ = {"distributed.on_worker_loss=continue", "train.max_steps=4",
               "checkpoint.every_steps=1", "comm.emulate.step_time=2s"};
    start("run", 2, 2);
    await_step("run", 1);
    workers_[1].send(SIGKILL);
    EXPECT_EQ(workers_[1].wait(), 1000 + SIGKILL);
    await_step("run", 3);  // the last step is under way
    workers_[1] = worker("run", 1);
    expect_all_done();
    expect_part(workers_[1].text(), "comes too late: the run is all but done without it");
    expect_part(log("run"), "comes too late to take part");
}

// Such an address was called until comm.timeout was over.
TEST_F(LinksTest, PortZeroIsNoServers) {
    addresses_ = {"127.0.0.1:0"};
    Process process = worker("run", 0);
    EXPECT_EQ(process.wait(), 2);
    expect_part(process.text(), "comm.servers: 127.0.0.1:0: port 0 is for a server that takes any");
}

// Its children went on by themselves.
TEST_F(LinksTest, WhatALauncherThatIsKilledHasStartedStops) {
    if (std::system("command -v setpriv >/dev/null 2>&1") != 0)
        GTEST_SKIP() << "setpriv (util-linux) is not here";
    Process launcher(root_,
                     {"/usr/bin/env", "TRAINER=" TRAINER_BINARY_DIR "/tools/trainer/trainer",
                      "TMPDIR=" + root_.string(), TRAINER_SOURCE_DIR "/tools/launch_local.sh", "-s",
                      "2", "-n", "2", "--config", "tiny.yaml", "--set", "train.max_steps=0",
                      "--set", "checkpoint.dir=run", "--set", "log.dir=run"},
                     root_ / "launcher");
    await_step("run", 10);
    launcher.send(SIGKILL);
    EXPECT_EQ(launcher.wait(), 1000 + SIGKILL);
    await_log("run", ", checkpoint written to run; the same command goes on from there");
}

// --- what is said of a failure ---

TEST_F(LinksTest, TheCauseOfAFailureIsSaidOnceAndComesFirst) {
    shared_ = {"model.name=mlp", "optim.lr=1.0e+30", "optim.schedule.type=constant"};
    start("run", 2, 2);
    for (Process& process : workers_)
        EXPECT_EQ(process.wait(), 1);
    for (Process& process : servers_) {
        EXPECT_EQ(process.wait(), 1);
        const std::string text = process.text();
        EXPECT_EQ(count_of(text, "the loss of step "), 1U) << text;
        EXPECT_EQ(count_of(text, " is lost"), 0U) << text;
        EXPECT_EQ(count_of(text, "start the run again"), 0U) << text;
    }
    const auto said = [&](const Process& process) {
        return process.text().find("trainer: error: the loss of step ") != std::string::npos;
    };
    EXPECT_TRUE(said(workers_[0]) || said(workers_[1])) << workers_[0].text() << workers_[1].text();
    expect_part(contents(root_ / "run" / "trainer-server0.log"), "failed       worker ");
}

}  // namespace
}  // namespace trainer
