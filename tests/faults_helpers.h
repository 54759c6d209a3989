// What the tests of clusters under faults share: real processes of the program on tiny data.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "tests/patience.h"

namespace trainer::testing_faults {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Arguments = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

inline std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

class Process {
  public:
    Process(const fs::path& directory, Arguments arguments, fs::path output)
        : output_(std::move(output)) {
        std::vector<char*> raw;
        for (std::string& argument : arguments)
            raw.push_back(argument.data());
        raw.push_back(nullptr);
        child_ = fork();
        if (child_ == 0) {
            const int file = open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
            dup2(file, STDOUT_FILENO);
            dup2(file, STDERR_FILENO);
            if (chdir(directory.c_str()) == 0)
                execv(raw[0], raw.data());
            _exit(127);
        }
    }
    ~Process() {
        if (child_ > 0) {
            send(SIGKILL);
            wait();
        }
    }
    Process(Process&& other) noexcept
        : child_(std::exchange(other.child_, -1)), output_(std::move(other.output_)) {}
    Process& operator=(Process&& other) noexcept {
        std::swap(child_, other.child_);
        std::swap(output_, other.output_);
        return *this;
    }

    void send(int signal) const { kill(child_, signal); }

    /// Its exit code, or 1000 + the signal that ended it; -1 where it is still there.
    int wait(std::chrono::seconds limit = 60s * patience) {
        const auto deadline = Clock::now() + limit;
        for (int status = 0; Clock::now() < deadline; std::this_thread::sleep_for(5ms))
            if (waitpid(child_, &status, WNOHANG) == child_) {
                child_ = -1;
                return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
            }
        ADD_FAILURE() << "it hangs: " << text();
        return -1;
    }
    std::string text() const { return contents(output_); }

  private:
    pid_t child_ = -1;
    fs::path output_;
};

class FaultsTest : public testing::Test {
  protected:
    static constexpr int steps = 60;

    FaultsTest() {
        std::string pattern = (fs::temp_directory_path() / "faults_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        root_ = pattern;
        std::ofstream(root_ / "tiny.yaml")
            << "model: {name: linear}\n"
            << "data: {dataset: synthetic, batch_size: 128, workers: 1}\n"
            << "train: {epochs: 9, max_steps: " << steps << ", eval_every_epochs: 0}\n"
            << "threads: 1\n"
            << "optim: {lr: 0.02, schedule: {type: cosine}}\n"
            << "comm: {timeout: " << 20 * patience << "s, lease: 2s, emulate: {step_time: 20ms}}\n"
            << "checkpoint: {every_steps: 5, every_epochs: 0, keep: 99}\n";
    }
    ~FaultsTest() override { fs::remove_all(root_); }

    Process program(const std::string& run, const Arguments& options,
                    const Arguments& assignments) {
        Arguments all{TRAINER_BINARY_DIR "/tools/trainer/trainer", "--config", "tiny.yaml"};
        all.insert(all.end(), options.begin(), options.end());
        all.insert(all.end(), {"--set", "checkpoint.dir=" + run, "--set", "log.dir=" + run});
        for (const std::string& assignment : shared_) {
            all.emplace_back("--set");
            all.push_back(assignment);
        }
        for (const std::string& assignment : assignments) {
            all.emplace_back("--set");
            all.push_back(assignment);
        }
        return {root_, all, root_ / ("output" + std::to_string(++started_))};
    }

    /// Starts a server; at port 0 it waits until it listens and remembers where.
    Process server(const std::string& run, size_t index, const Arguments& assignments = {}) {
        addresses_.resize(std::max(addresses_.size(), index + 1));
        const bool known = !addresses_[index].empty();
        Process process = program(run,
                                  {"--role=server", "--rank=" + std::to_string(index),
                                   "--listen=" + (known ? addresses_[index] : "127.0.0.1:0")},
                                  assignments);
        const std::string mark = "others call it ";
        for (int i = 0; i < 4000 * patience && addresses_[index].empty(); ++i) {
            std::this_thread::sleep_for(5ms);
            const std::string text = process.text();
            const size_t at = text.find(mark), end = text.find('\n', at);
            if (at != std::string::npos && end != std::string::npos)
                addresses_[index] = text.substr(at + mark.size(), end - at - mark.size());
        }
        return process;
    }
    Process worker(const std::string& run, int rank, const Arguments& assignments = {}) {
        std::string list;
        for (const std::string& address : addresses_)
            list += (list.empty() ? "" : ",") + address;
        return program(run,
                       {"--role=worker", "--rank=" + std::to_string(rank), "--servers=" + list},
                       assignments);
    }

    /// All processes of a run with the settings in shared_.
    void start(const std::string& run, size_t servers, int workers, int late = 0) {
        shared_.push_back("distributed.servers=" + std::to_string(servers));
        shared_.push_back("distributed.workers=" + std::to_string(workers));
        for (size_t i = 0; i < servers; ++i)
            servers_.push_back(server(run, i));
        for (int i = 0; i < workers - late; ++i)
            workers_.push_back(worker(run, i));
    }
    void expect_all_done() {
        for (Process& process : workers_)
            EXPECT_EQ(process.wait(), 0) << process.text();
        for (Process& process : servers_)
            EXPECT_EQ(process.wait(), 0) << process.text();
    }

    void await_step(const std::string& run, int step) const {
        const fs::path file = root_ / run / ("step-" + std::to_string(step)) / "state.safetensors";
        for (int i = 0; i < 6000 * patience && !fs::exists(file); ++i)
            std::this_thread::sleep_for(5ms);
        ASSERT_TRUE(fs::exists(file)) << file;
    }
    std::string log(const std::string& run) const { return contents(root_ / run / "trainer.log"); }
    std::string result(const std::string& run, const char* file) const {
        return contents(root_ / run / ("step-" + std::to_string(steps)) / file);
    }
    void expect_same(const std::string& one, const std::string& other) const {
        for (const char* file : {"model.safetensors", "state.safetensors"}) {
            EXPECT_GT(result(one, file).size(), 10000u);
            EXPECT_TRUE(result(one, file) == result(other, file)) << file;
        }
    }
    void write_secret(const std::string& name, const std::string& text) const {
        std::ofstream(root_ / name) << text << "\n";
        chmod((root_ / name).c_str(), 0600);
    }

    fs::path root_;
    Arguments shared_;
    std::vector<std::string> addresses_;
    std::vector<Process> servers_, workers_;
    int started_ = 0;
};

}  // namespace trainer::testing_faults
