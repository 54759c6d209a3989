// Processes that die, hang, come back or do not belong to the run, on tiny data.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>

#include "tests/faults_helpers.h"

namespace trainer {
namespace {

using namespace testing_faults;

// --- deaths that end the run ---

TEST_F(FaultsTest, AWorkerThatHangsIsNamedWithItsLastSignOfLife) {
    start("run", 2, 2);
    await_step("run", 10);
    workers_[1].send(SIGSTOP);
    const auto begin = Clock::now();
    EXPECT_EQ(servers_[0].wait(), 1);
    EXPECT_EQ(workers_[0].wait(), 1);
    EXPECT_EQ(servers_[1].wait(), 1);
    EXPECT_LT(Clock::now() - begin, 10s);
    for (const std::string& text : {servers_[0].text(), workers_[0].text()}) {
        expect_part(text, "worker 1 on ");
        expect_part(text, " is lost after step ");
        expect_part(text, "it has given no sign of life for 2.00 s, the last at ");
    }
}

TEST_F(FaultsTest, AServerThatHangsIsNoticed) {
    shared_.push_back("comm.timeout=" + std::to_string(14 * patience) + "s");
    start("run", 2, 2);
    await_step("run", 10);
    servers_[0].send(SIGSTOP);
    const auto begin = Clock::now();
    EXPECT_EQ(workers_[0].wait(), 1);
    EXPECT_EQ(workers_[1].wait(), 1);
    EXPECT_EQ(servers_[1].wait(), 1);
    EXPECT_LT(Clock::now() - begin, 30s * patience);
    expect_part(workers_[0].text(), "server 0 at " + addresses_[0]);
    expect_part(workers_[0].text(), "no sign of life for 2.00 s, the last at ");
}

// --- deaths that do not ---

TEST_F(FaultsTest, OthersGoOnAndOneWhoComesBackTakesPart) {
    for (const std::string variant : {"ssgd", "asgd", "ssdsgd", "localsgd"}) {
        SCOPED_TRACE(variant);
        shared_ = {"distributed.on_worker_loss=continue",
                   "distributed.variant=" + variant,
                   "train.max_steps=0",
                   "train.epochs=4",
                   "distributed.delay_steps=3",
                   "distributed.local_steps=4"};
        addresses_.clear();
        servers_.clear();
        workers_.clear();
        start(variant, 2, 3);
        await_step(variant, 10);
        workers_[1].send(SIGKILL);
        EXPECT_EQ(workers_[1].wait(), 1000 + SIGKILL);
        for (int i = 0;
             i < 4000 * patience && log(variant).find(" 2 of 3 workers") == std::string::npos; ++i)
            std::this_thread::sleep_for(5ms);
        workers_[1] = worker(variant, 1);
        expect_all_done();
        const std::string text = log(variant);
        expect_part(text, "worker 1 on ");
        expect_part(text, "were lost with worker 1");
        expect_part(text, " 2 of 3 workers: 0, 2;");
        expect_part(text, " 3 of 3 workers: 0, 1, 2;");
        expect_part(text, "epoch 4/4  training");
        if (text.find("no samples were lost") == std::string::npos)  // it had pushed all it had
            expect_part(text, "samples, with workers");
    }
}

TEST_F(FaultsTest, TheWorkerThatEvaluatesMayBeLostToo) {
    shared_ = {"distributed.on_worker_loss=continue", "train.max_steps=0", "train.epochs=4",
               "train.eval_every_epochs=1"};
    start("run", 2, 2);
    await_step("run", 10);
    workers_[0].send(SIGKILL);
    EXPECT_EQ(workers_[0].wait(), 1000 + SIGKILL);
    EXPECT_EQ(workers_[1].wait(), 0) << workers_[1].text();
    EXPECT_EQ(servers_[0].wait(), 0) << servers_[0].text();
    EXPECT_EQ(servers_[1].wait(), 0) << servers_[1].text();
    expect_part(log("run"), "epoch 4/4  test");
}

TEST_F(FaultsTest, AKilledServerComesBackAndNothingIsLost) {
    for (const std::string variant : {"ssgd", "cdsgd"}) {
        SCOPED_TRACE(variant);
        shared_ = {"distributed.variant=" + variant, "distributed.delay_steps=3"};
        addresses_.clear();
        servers_.clear();
        workers_.clear();
        Arguments alone = shared_;
        alone.insert(alone.end(), {"distributed.workers=2", "comm.emulate={}"});
        EXPECT_EQ(program(variant + "-whole", {}, alone).wait(), 0);
        start(variant, 2, 2);
        for (const size_t victim : {0, 1, 0}) {
            await_step(variant, victim == 0 ? 10 : 25);
            servers_[victim].send(SIGKILL);
            EXPECT_EQ(servers_[victim].wait(), 1000 + SIGKILL);
            servers_[victim] = server(variant, victim);
            std::this_thread::sleep_for(500ms);
        }
        expect_all_done();
        expect_same(variant + "-whole", variant);
        expect_part(workers_[0].text(), "again        server ");
    }
}

// Its threads were counted again, on the processor that its first lane had been bound to.
TEST_F(FaultsTest, AWorkerThatBeginsAgainHasTheThreadsItHad) {
    start("run", 1, 1, 1);
    workers_.push_back(worker("run", 0, {"threads=auto"}));
    await_step("run", 10);
    servers_[0].send(SIGKILL);
    servers_[0].wait();
    servers_[0] = server("run", 0);
    expect_all_done();
    const std::string text = workers_[0].text();
    const size_t again = text.find("again        server ");
    ASSERT_NE(again, std::string::npos) << text;
    const auto device = [](const std::string& part) {
        const size_t at = part.find("device       ");
        return at == std::string::npos ? part : part.substr(at, part.find('\n', at) - at);
    };
    EXPECT_EQ(device(text.substr(0, again)), device(text.substr(again)));
}

// It joined first, and took the run with it when it could not write.
TEST_F(FaultsTest, AWorkerThatCannotWriteItsLogDoesNotJoin) {
    start("run", 1, 2, 1);
    Process wrong = worker("run", 1, {"log.dir=tiny.yaml/x"});
    EXPECT_EQ(wrong.wait(), 1);
    expect_part(wrong.text(), "log.dir: 'tiny.yaml/x' cannot be made (Not a directory)");
    workers_.push_back(worker("run", 1));
    expect_all_done();
}

TEST_F(FaultsTest, APreemptedWorkerLeavesAlone) {
    shared_.push_back("distributed.on_worker_loss=continue");
    start("run", 1, 3);
    await_step("run", 10);
    workers_[2].send(SIGTERM);
    EXPECT_EQ(workers_[2].wait(), 75) << workers_[2].text();
    EXPECT_EQ(workers_[0].wait(), 0) << workers_[0].text();
    EXPECT_EQ(workers_[1].wait(), 0) << workers_[1].text();
    EXPECT_EQ(servers_[0].wait(), 0) << servers_[0].text();
    expect_part(log("run"), " 2 of 3 workers: 0, 1;");
    EXPECT_EQ(log("run").find("were lost"), std::string::npos);
}

TEST_F(FaultsTest, ASignalToServer0StopsAllWithACheckpoint) {
    shared_.push_back("distributed.on_worker_loss=continue");
    start("run", 2, 2);
    await_step("run", 10);
    servers_[0].send(SIGTERM);
    for (Process& process : workers_)
        EXPECT_EQ(process.wait(), 75) << process.text();
    for (Process& process : servers_)
        EXPECT_EQ(process.wait(), 75) << process.text();
    expect_part(log("run"), "stopped by signal 15 after step ");
}

TEST_F(FaultsTest, BackupWorkersDoNotWaitForAStraggler) {
    shared_ = {"distributed.backup_workers=1", "distributed.servers=1", "distributed.workers=3",
               "checkpoint.every_steps=0", "train.max_steps=50"};
    servers_.push_back(server("run", 0));
    const auto begin = Clock::now();
    workers_.push_back(worker("run", 0));
    workers_.push_back(worker("run", 1));
    workers_.push_back(worker("run", 2, {"comm.emulate.step_time=400ms"}));
    expect_all_done();
    EXPECT_LT(Clock::now() - begin, 15s);  // 50 steps of 400 ms are 20 s
    expect_part(log("run"), "pushes came after their step was closed");
    expect_part(log("run"), "slowest      worker 2");
    expect_part(workers_[2].text(), "steps were closed without this worker");
}

// --- strangers ---

TEST_F(FaultsTest, OnlyWhoKnowsTheSecretTakesPart) {
#ifndef TRAINER_HAVE_OPENSSL
    GTEST_SKIP() << "built without OpenSSL";
#endif
    write_secret("secret", "correct horse battery staple");
    write_secret("other", "incorrect horse battery staple");
    shared_ = {"comm.secret_file=secret", "train.max_steps=10", "distributed.workers=2",
               "comm.timeout=60s"};
    servers_.push_back(server("run", 0));
    workers_.push_back(worker("run", 0));
    Process wrong = worker("wrong", 1, {"comm.secret_file=other"});
    EXPECT_EQ(wrong.wait(), 1);
    expect_part(wrong.text(), "its secret is not this server's");
    Process none = worker("none", 1, {"comm.secret_file=\"\""});
    EXPECT_EQ(none.wait(), 1);
    expect_part(none.text(), "this server wants the run's secret");
    workers_.push_back(worker("run", 1));
    expect_all_done();

    // And a server that does not know it is not taken for one that does.
    addresses_.clear();
    Process impostor = server("impostor", 0, {"comm.secret_file=\"\""});
    Process deceived = worker("deceived", 0);
    EXPECT_EQ(deceived.wait(), 1);
    expect_part(deceived.text(), "comm.secret_file");

    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
        const std::string name = entry.path().filename();
        if (entry.is_regular_file() && name != "secret" && name != "other") {
            EXPECT_EQ(contents(entry.path()).find("horse battery"), std::string::npos) << name;
        }
    }
}

TEST_F(FaultsTest, SecretsThatAreNoneAreRefused) {
#ifndef TRAINER_HAVE_OPENSSL
    GTEST_SKIP() << "built without OpenSSL";
#endif
    write_secret("short", "hunter2");
    write_secret("open", "a secret that all can read");
    chmod((root_ / "open").c_str(), 0644);
    const auto refusal = [&](const std::string& file) {
        Process process = program("run", {"--role=server"}, {"comm.secret_file=" + file});
        EXPECT_EQ(process.wait(), 2);
        return process.text();
    };
    expect_part(refusal("short"), "holds fewer than 16 bytes");
    expect_part(refusal("open"), "others than its owner may use");
    expect_part(refusal("none"), "cannot be read");
}

TEST_F(FaultsTest, AServerListensToOtherMachinesOnlyWithASecret) {
    Process open_to_all = program("run", {"--role=server", "--listen=0.0.0.0:0"}, {});
    EXPECT_EQ(open_to_all.wait(), 2);
    expect_part(open_to_all.text(), "is open to other machines");
    Process knows = program("run", {"--role=server", "--listen=0.0.0.0:0", "--insecure"},
                            {"comm.timeout=200ms", "comm.lease=auto"});
    EXPECT_EQ(knows.wait(), 1);
    expect_part(knows.text(), "workers have not come");
}

TEST_F(FaultsTest, CertificatesThatAreNoneAreNamed) {
#ifndef TRAINER_HAVE_OPENSSL
    GTEST_SKIP() << "built without OpenSSL";
#endif
    std::ofstream(root_ / "text.pem") << "no certificate\n";
    const auto refusal = [&](const std::string& cert) {
        Process process = program("run", {"--role=server"},
                                  {"comm.tls={cert: " + cert + ", key: k.pem, ca: c.pem}"});
        EXPECT_EQ(process.wait(), 2);
        return process.text();
    };
    expect_part(refusal("none.pem"),
                "comm.tls.cert: 'none.pem' cannot be used: No such file or directory");
    expect_part(refusal("."), "comm.tls.cert: '.' cannot be used: it is a folder");
    expect_part(refusal("text.pem"),
                "comm.tls.cert: 'text.pem' cannot be used: it holds no certificate in PEM form (");
}

/// Makes certificates with the program openssl.
class CertificatesTest : public FaultsTest {
  protected:
    void SetUp() override {
#ifndef TRAINER_HAVE_OPENSSL
        GTEST_SKIP() << "built without OpenSSL";
#endif
        if (std::system("openssl version >/dev/null 2>&1") != 0)
            GTEST_SKIP() << "the program openssl is not here to make certificates";
    }

    void run(const std::string& command) const {
        ASSERT_EQ(
            std::system(("cd " + root_.string() + " && " + command + " >/dev/null 2>&1").c_str()),
            0)
            << command;
    }
    /// CA.pem and CA.key of an authority.
    void make_authority(const std::string& ca) const {
        run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "
            "/CN=" +
            ca + " -keyout " + ca + ".key -out " + ca + ".pem");
    }
    /// NAME.pem and NAME.key, signed by the authority.
    void make_certificate(const std::string& name, const std::string& ca, int days = 2) const {
        run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=node "
            "-keyout " +
            name + ".key -out node.csr");
        run("openssl x509 -req -in node.csr -days " + std::to_string(days) + " -CA " + ca +
            ".pem -CAkey " + ca + ".key -CAcreateserial -out " + name + ".pem");
    }
    static std::string tls(const std::string& cert, const std::string& key, const std::string& ca) {
        return "comm.tls={cert: " + cert + ".pem, key: " + key + ".key, ca: " + ca + ".pem}";
    }
    /// What a server says of settings that it cannot use.
    std::string refusal(const std::string& settings) {
        Process process = program("run", {"--role=server", "--listen=127.0.0.1:0"}, {settings});
        EXPECT_EQ(process.wait(), 2);
        return process.text();
    }
};

TEST_F(CertificatesTest, KeysThatDoNotServeAreNamed) {
    make_authority("ca");
    make_certificate("node", "ca");
    make_certificate("other", "ca");
    run("openssl genrsa -out rsa.key 2048");
    run("openssl ec -in node.key -aes256 -passout pass:secret -out locked.key");
    for (const std::string other : {"other", "rsa"})
        expect_part(refusal(tls("node", other, "ca")),
                    "comm.tls.key: '" + other +
                        ".key' is not the key of the certificate in comm.tls.cert, 'node.pem'\n");
    expect_part(refusal(tls("node", "locked", "ca")),
                "comm.tls.key: 'locked.key' is encrypted; give one without a pass phrase\n");
}

TEST_F(CertificatesTest, AnExpiredOneOfItsOwnIsRefused) {
    make_authority("ca");
    make_certificate("old", "ca", 0);
    const std::string text = refusal(tls("old", "old", "ca"));
    expect_part(text, "comm.tls.cert: 'old.pem' has expired at 20");
    expect_part(text, " UTC: give one that is in date");
}

TEST_F(CertificatesTest, TlsIsForThoseOfOneAuthority) {
    for (const std::string ca : {"ours", "theirs"}) {
        make_authority(ca);
        make_certificate(ca + "-node", ca);
    }
    const auto of = [](const std::string& ca) { return tls(ca + "-node", ca + "-node", ca); };
    EXPECT_EQ(program("whole", {}, {"distributed.workers=2"}).wait(), 0);
    shared_ = {of("ours"), "comm.timeout=60s"};
    start("run", 2, 2, 1);
    Process stranger = worker("stranger", 1, {of("theirs")});
    EXPECT_EQ(stranger.wait(), 1);
    expect_part(stranger.text(), "TLS: its certificate is not accepted here (");
    expect_part(stranger.text(),
                "): it must be signed by the authority in comm.tls.ca, 'theirs.pem', and be in "
                "date)");
    // This one takes the server's, but its own is of others.
    Process half = worker("half", 1, {tls("theirs-node", "theirs-node", "ours")});
    EXPECT_EQ(half.wait(), 1);
    expect_part(half.text(),
                "alert unknown ca (it does not accept the certificate in comm.tls.cert here, "
                "'theirs-node.pem': that must be signed by the authority in its comm.tls.ca, and "
                "be in date)");
    Process plain = worker("plain", 1, {"comm.tls={}", "comm.timeout=4s"});
    EXPECT_EQ(plain.wait(), 1);
    expect_part(plain.text(), "; if it wants TLS, set comm.tls");
    expect_part(servers_[0].text(),
                "came to nothing: TLS: wrong version number (the other side does not speak TLS: "
                "comm.tls is set here and not there)");
    workers_.push_back(worker("run", 1));
    expect_all_done();
    expect_same("whole", "run");
}

TEST_F(CertificatesTest, AWorkerWithTlsAndAServerWithoutAreTold) {
    make_authority("ca");
    make_certificate("node", "ca");
    start("run", 1, 1, 1);
    Process other = worker("other", 0, {tls("node", "node", "ca")});
    EXPECT_EQ(other.wait(), 1);
    expect_part(other.text(),
                "TLS: wrong version number (the other side does not speak TLS: comm.tls is set "
                "here and not there)");
    expect_part(servers_[0].text(), ": it speaks TLS; comm.tls is set there and not here\n");
    workers_.push_back(worker("run", 0));
    expect_all_done();
}

/// Connects to 127.0.0.1:PORT; -1 where that fails.
int connect_to(const std::string& address) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0)
        return fd;
    ::close(fd);
    return -1;
}

TEST_F(FaultsTest, IdleGarbageAndDrippingConnectionsDoNotDisturb) {
    EXPECT_EQ(program("whole", {}, {"distributed.workers=2"}).wait(), 0);
    start("run", 1, 2);
    await_step("run", 0);
    std::vector<int> open;
    const std::string garbage(4000, 'x');
    for (int i = 0; i < 200; ++i) {
        const int fd = connect_to(addresses_[0]);
        ASSERT_GE(fd, 0);
        open.push_back(fd);
        if (i % 4 == 0) {
            EXPECT_GT(::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
        }
    }
    const int dripping = connect_to(addresses_[0]);
    std::atomic<bool> over{false};
    std::thread drip([&] {
        for (const char byte : std::string("TRNR\2\0\1\0", 8)) {
            for (int i = 0; i < 20 && !over; ++i)
                std::this_thread::sleep_for(50ms);
            if (over || ::send(dripping, &byte, 1, MSG_NOSIGNAL) != 1)
                return;
        }
    });
    expect_all_done();
    over = true;
    drip.join();
    for (const int fd : open)
        ::close(fd);
    ::close(dripping);
    expect_same("whole", "run");
}

}  // namespace
}  // namespace trainer
