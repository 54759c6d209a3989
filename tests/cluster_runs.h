// Runs of the program on tiny data, within one process and as clusters of processes, and what they
// leave.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/checkpoint.h"
#include "tests/patience.h"

namespace trainer::testing_cluster {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

inline std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

struct Outcome {
    int code = -1;  ///< exit code, or 1000 + the signal that ended it
    std::string text;
};

/// A run under way; what it says goes to a file.
struct Running {
    pid_t child = -1;
    fs::path output;
};

class ClusterTest : public testing::Test {
  protected:
    ClusterTest() {
        std::string pattern = (fs::temp_directory_path() / "cluster_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        root_ = pattern;
        write_config("linear");
    }
    ~ClusterTest() override { fs::remove_all(root_); }

    /// A global step takes 512 of the 8192 synthetic images, whatever the number of workers.
    void write_config(const std::string& model) {
        std::ofstream(root_ / "tiny.yaml") << "model: {name: " << model << "}\n"
                                           << "data: {dataset: synthetic, workers: 1}\n"
                                           << "train: {epochs: 1, max_steps: 12}\n"
                                           << "threads: 1\n"
                                           << "optim: {lr: 0.02, schedule: {type: cosine}}\n"
                                           << "log: {every_steps: 5}\n"
                                           << "comm: {timeout: " << 20 * patience << "s}\n"
                                           << "checkpoint: {every_steps: 4, keep: 9}\n";
    }

    static void set(Arguments& arguments, const std::string& assignment) {
        arguments.push_back("--set");
        arguments.push_back(assignment);
    }

    /// The config, with outputs in runs/<run> and a global batch of 512.
    static Arguments config_of(const std::string& run, int workers, const Arguments& more = {}) {
        Arguments arguments{"--config", "tiny.yaml"};
        set(arguments, "checkpoint.dir=runs/" + run);
        set(arguments, "log.dir=runs/" + run);
        set(arguments, "data.batch_size=" + std::to_string(512 / workers));
        set(arguments, "distributed.workers=" + std::to_string(workers));
        for (const std::string& assignment : more)
            set(arguments, assignment);
        return arguments;
    }

    static std::string program() { return TRAINER_BINARY_DIR "/tools/trainer/trainer"; }

    Running start(Arguments arguments) const {
        static int count = 0;
        Running running{.child = -1, .output = root_ / ("output" + std::to_string(++count))};
        std::vector<char*> raw;
        for (std::string& argument : arguments)
            raw.push_back(argument.data());
        raw.push_back(nullptr);
        running.child = fork();
        if (running.child == 0) {
            const int output = open(running.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
            dup2(output, STDOUT_FILENO);
            dup2(output, STDERR_FILENO);
            setenv("TRAINER", program().c_str(), 1);
            if (chdir(root_.c_str()) == 0)
                execv(raw[0], raw.data());
            _exit(127);
        }
        return running;
    }

    static Outcome wait_for(const Running& running) {
        int status = 0;
        waitpid(running.child, &status, 0);
        return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status),
                contents(running.output)};
    }

    Running start_inprocess(const std::string& run, int workers, const Arguments& more) const {
        Arguments arguments = config_of(run, workers, more);
        arguments.insert(arguments.begin(), program());
        return start(arguments);
    }

    Running start_processes(const std::string& run, int servers, int workers,
                            const Arguments& more) const {
        Arguments arguments = config_of(run, workers, more);
        const Arguments first{TRAINER_SOURCE_DIR "/tools/launch_local.sh", "-s",
                              std::to_string(servers), "-n", std::to_string(workers)};
        arguments.insert(arguments.begin(), first.begin(), first.end());
        return start(arguments);
    }

    void expect_done(const Running& running) const {
        const Outcome outcome = wait_for(running);
        EXPECT_EQ(outcome.code, 0) << outcome.text;
    }

    fs::path dir(const std::string& run) const { return root_ / "runs" / run; }

    std::string model(const std::string& run, int64_t step = 12) const {
        return contents(dir(run) / ("step-" + std::to_string(step)) / "model.safetensors");
    }

    void expect_same(const std::string& one, const std::string& other, bool state = true) const {
        EXPECT_GT(model(one).size(), 10000u) << one;
        EXPECT_TRUE(model(one) == model(other)) << one << " and " << other;
        if (state) {
            EXPECT_TRUE(contents(dir(one) / "step-12/state.safetensors") ==
                        contents(dir(other) / "step-12/state.safetensors"))
                << one << " and " << other;
        }
    }

    std::vector<float> weights(const std::string& run, int64_t step) const {
        const Checkpoint checkpoint = Checkpoint::open(dir(run) / ("step-" + std::to_string(step)));
        std::vector<float> result;
        for (const SafetensorsEntry& tensor : checkpoint.model.tensors())
            if (tensor.dtype == "F32") {
                std::vector<float> values(static_cast<size_t>(element_count(tensor.shape)));
                checkpoint.model.read(tensor.name, tensor.shape, std::span(values));
                result.insert(result.end(), values.begin(), values.end());
            }
        return result;
    }

    std::vector<Json> records(const std::string& run, const std::string& type) const {
        std::vector<Json> result;
        std::ifstream file(dir(run) / "metrics.jsonl");
        for (std::string line; std::getline(file, line);)
            if (Json record = Json::parse(line); record["type"] == type)
                result.push_back(record);
        return result;
    }

    void await_step(const std::string& run, int64_t step) const {
        const fs::path file = dir(run) / ("step-" + std::to_string(step)) / "state.safetensors";
        for (int i = 0; i < 6000 * patience && !fs::exists(file); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ASSERT_TRUE(fs::exists(file)) << file;
    }

    fs::path root_;
};

}  // namespace trainer::testing_cluster
