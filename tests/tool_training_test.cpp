// The program itself, run on tiny data: the same bits at every run, through kills and signals.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "engine/checkpoint.h"
#include "engine/random.h"
#include "tools/trainer/trainer.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Images of noise around a pattern of their class, and labels, as IDX files.
void write_idx(const fs::path& images, const fs::path& labels, int count, uint64_t seed) {
    const auto header = [](std::ofstream& file, std::initializer_list<int> extents, char type) {
        file.write("\0\0\x08", 3).put(type);
        for (int extent : extents)
            for (int shift : {24, 16, 8, 0})
                file.put(static_cast<char>(extent >> shift));
    };
    std::ofstream image_file(images, std::ios::binary), label_file(labels, std::ios::binary);
    header(image_file, {count, 28, 28}, 3);
    header(label_file, {count}, 1);
    for (int i = 0; i < count; ++i) {
        const uint64_t label = static_cast<uint64_t>(i) % 10;
        Random noise{seed, static_cast<uint64_t>(i)};
        for (uint64_t pixel = 0; pixel < 28 * 28; ++pixel) {
            const uint64_t pattern = Random{label, pixel / 28 / 7, pixel % 28 / 7}.below(160);
            image_file.put(static_cast<char>(pattern + noise.below(90)));
        }
        label_file.put(static_cast<char>(label));
    }
}

std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

struct Outcome {
    int code = -1;  ///< exit code, or 1000 + the signal that ended it
    std::string text;
};

class TrainingTest : public testing::Test {
  protected:
    TrainingTest() {
        std::string pattern = (fs::temp_directory_path() / "training_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        root_ = pattern;
        fs::create_directory(root_ / "data");
        write_idx(root_ / "data/train-images-idx3-ubyte", root_ / "data/train-labels-idx1-ubyte",
                  44, 1);
        write_idx(root_ / "data/t10k-images-idx3-ubyte", root_ / "data/t10k-labels-idx1-ubyte", 10,
                  2);
        write_config("model: {name: resnet20}\n");
    }
    ~TrainingTest() override { fs::remove_all(root_); }

    /// 11 steps an epoch, 3 epochs, a checkpoint at each step.
    void write_config(const std::string& model) {
        std::ofstream(root_ / "tiny.yaml")
            << model << "data: {dataset: mnist, dir: " << (root_ / "data").string()
            << ", batch_size: 4}\n"
            << "train: {epochs: 3}\n"
            << "threads: 1\n"
            << "optim: {lr: 0.02, schedule: {type: cosine, warmup_epochs: 1}}\n"
            << "log: {every_steps: 7}\n"
            << "checkpoint: {every_steps: 1, keep: 2}\n";
    }

    /// Starts the program in root_, with checkpoints and logs in runs/<run>.
    pid_t start(const std::string& run, std::vector<std::string> arguments) const {
        std::vector<std::string> first{TRAINER_BINARY_DIR "/tools/trainer/trainer", "--config",
                                       "tiny.yaml"};
        for (const char* key : {"checkpoint.dir", "log.dir"}) {
            first.push_back("--set");
            first.push_back(std::string(key).append("=runs/").append(run));
        }
        arguments.insert(arguments.begin(), first.begin(), first.end());
        std::vector<char*> raw;
        for (std::string& argument : arguments)
            raw.push_back(argument.data());
        raw.push_back(nullptr);
        fs::remove(root_ / "output");
        const pid_t child = fork();
        if (child == 0) {
            const int output = open((root_ / "output").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
            dup2(output, STDOUT_FILENO);
            dup2(output, STDERR_FILENO);
            if (chdir(root_.c_str()) == 0)
                execv(raw[0], raw.data());
            _exit(127);
        }
        return child;
    }

    Outcome wait_for(pid_t child) const {
        int status = 0;
        waitpid(child, &status, 0);
        return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status),
                contents(root_ / "output")};
    }

    Outcome run(const std::string& name, const std::vector<std::string>& arguments = {}) const {
        return wait_for(start(name, arguments));
    }

    /// Waits until the run has a checkpoint of at least that step.
    void await_step(const std::string& run, int64_t step) const {
        for (int i = 0; i < 6000 && latest(run) < step; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ASSERT_GE(latest(run), step);
    }

    fs::path dir(const std::string& run) const { return root_ / "runs" / run; }

    /// The step that `latest` points at; -1: none.
    int64_t latest(const std::string& run) const {
        std::error_code error;
        const std::string name = fs::read_symlink(dir(run) / "latest", error).string();
        return error ? -1 : std::stol(name.substr(5));
    }

    void expect_same_checkpoints(const std::string& one, const std::string& other) const {
        for (const char* link : {"latest", "best"}) {
            EXPECT_EQ(fs::read_symlink(dir(one) / link), fs::read_symlink(dir(other) / link));
            for (const char* file : {"model.safetensors", "state.safetensors"}) {
                const std::string bytes = contents(dir(one) / link / file);
                EXPECT_GT(bytes.size(), 100000u);
                EXPECT_TRUE(bytes == contents(dir(other) / link / file))
                    << one << " and " << other << ": " << link << "/" << file;
            }
        }
    }

    /// The records of one type, without what depends on time.
    std::vector<Json> records(const std::string& run, const std::string& type) const {
        std::vector<Json> result;
        std::ifstream file(dir(run) / "metrics.jsonl");
        for (std::string line; std::getline(file, line);) {
            Json record = Json::parse(line);
            for (const char* timing : {"images_per_s", "data_wait", "time"})
                record.erase(timing);
            if (record["type"] == type)
                result.push_back(record);
        }
        return result;
    }

    fs::path root_;
};

void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(TrainingTest, SameBitsAtAnyNumberOfLoaderThreads) {
    for (const char* workers : {"1", "2", "5"}) {
        const Outcome outcome = run(
            workers, {"--set", std::string("data.workers=").append(workers), "--set", "threads=2"});
        ASSERT_EQ(outcome.code, 0) << outcome.text;
    }
    expect_same_checkpoints("1", "2");
    expect_same_checkpoints("1", "5");
    for (const char* type : {"step", "epoch", "eval"}) {
        EXPECT_EQ(records("1", type), records("2", type));
        EXPECT_EQ(records("1", type), records("5", type));
    }
    const Outcome other = run("seed", {"--set", "seed=2"});
    ASSERT_EQ(other.code, 0) << other.text;
    EXPECT_NE(contents(dir("1") / "latest/model.safetensors"),
              contents(dir("seed") / "latest/model.safetensors"));
}

TEST_F(TrainingTest, WhatARunLeaves) {
    const Outcome outcome = run("a");
    ASSERT_EQ(outcome.code, 0) << outcome.text;
    expect_part(outcome.text, "269,722 parameters");
    expect_part(outcome.text, "44 training images, 10 test images");
    expect_part(outcome.text, "batch        4 (global), 11 steps an epoch, 3 epochs, 33 steps");

    std::ifstream file(dir("a") / "metrics.jsonl");
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    const Json header = Json::parse(line);
    EXPECT_EQ(header["type"], "header");
    EXPECT_EQ(header["schema_version"], 1);
    EXPECT_EQ(header["config"]["optim"]["lr"], 0.02);
    EXPECT_EQ(header["config"]["data"]["batch_size"], 4);
    EXPECT_TRUE(header["host"].contains("name"));
    EXPECT_TRUE(header["build"].contains("version"));
    const auto steps = records("a", "step");
    ASSERT_EQ(steps.size(), 4u);
    EXPECT_EQ(steps[1]["step"], 14);
    EXPECT_EQ(steps[1]["epoch"], 2);
    EXPECT_EQ(steps[1]["samples"], 28);
    const auto epochs = records("a", "epoch"), evals = records("a", "eval");
    ASSERT_EQ(epochs.size(), 3u);
    EXPECT_EQ(epochs[2]["samples"], 44);
    EXPECT_LT(epochs[2]["loss"], epochs[0]["loss"]);
    ASSERT_EQ(evals.size(), 3u);
    EXPECT_EQ(evals[2]["step"], 33);
    EXPECT_EQ(evals[2]["samples"], 10);

    // The same numbers in the text as in the records.
    char text[64];
    std::snprintf(text, sizeof text, "loss %.4f  top-1 %.2f %%", evals[2]["loss"].get<double>(),
                  100 * evals[2]["top1"].get<double>());
    expect_part(outcome.text, text);
    expect_part(contents(dir("a") / "trainer.log"), text);

    // What PyTorch's load_state_dict(strict=True) asks for, no more and no less.
    const Checkpoint checkpoint = Checkpoint::open(dir("a") / "latest");
    EXPECT_EQ(checkpoint.step, 33);
    std::set<std::string> names;
    for (const SafetensorsEntry& tensor : checkpoint.model.tensors())
        names.insert(tensor.name);
    EXPECT_EQ(names.size(), 21u + 5 * 19);  // 19 convolutions and norms, fc's two
    EXPECT_EQ(checkpoint.model.tensors().size(), names.size());
    for (const char* name : {"bn1.running_mean", "layer3.2.bn2.running_var",
                             "layer1.0.bn1.num_batches_tracked", "conv1.weight", "fc.bias"})
        EXPECT_TRUE(names.contains(name)) << name;
    const SafetensorsEntry* count = checkpoint.model.find("bn1.num_batches_tracked");
    EXPECT_EQ(count->dtype, "I64");
    EXPECT_EQ(count->shape, Shape{});
    int64_t tracked = 0;
    File::open_to_read(checkpoint.model.path()).read_at(count->offset, &tracked, 8);
    EXPECT_EQ(tracked, 33);
    EXPECT_EQ(checkpoint.value("epoch"), "3");
    EXPECT_EQ(checkpoint.value("cursor"), "0");
    EXPECT_EQ(checkpoint.value("seed"), "1");
    EXPECT_EQ(checkpoint.value("model"), "resnet20");
}

TEST_F(TrainingTest, KilledTenTimesAndResumed) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    const Outcome whole = run("whole");
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    ASSERT_EQ(whole.code, 0) << whole.text;
    int inside = 0;
    Random random{static_cast<uint64_t>(getpid())};
    for (int kills = 0; kills < 10;) {
        const pid_t child = start("killed", {});
        // Up to three checkpoints further and then anywhere in the next step: some kills before
        // the first one, most after a few.
        const auto target = latest("killed") + static_cast<int64_t>(random.below(4));
        const auto give_up = Clock::now() + std::chrono::seconds(60);
        while (latest("killed") < target && Clock::now() < give_up)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds * random.uniform() / 33));
        kill(child, SIGKILL);
        const Outcome outcome = wait_for(child);
        if (outcome.code == 0) {  // a machine that is suddenly faster: from the start again
            fs::remove_all(dir("killed"));
            continue;
        }
        ASSERT_EQ(outcome.code, 1000 + SIGKILL) << outcome.text;
        ++kills;
        inside += latest("killed") > 0 && latest("killed") < 33;
    }
    EXPECT_GT(inside, 0);
    const Outcome rest = run("killed");
    ASSERT_EQ(rest.code, 0) << rest.text;
    EXPECT_EQ(rest.text.find("warning"), std::string::npos) << rest.text;
    expect_same_checkpoints("whole", "killed");
    for (const auto& entry : fs::directory_iterator(dir("killed")))
        EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << entry.path();
    EXPECT_EQ(records("whole", "eval").back(), records("killed", "eval").back());
}

TEST_F(TrainingTest, SignalsStopAfterTheStepAndTheRunGoesOn) {
    ASSERT_EQ(run("whole", {"--set", "log.every_steps=2"}).code, 0);
    // No checkpoints in an epoch but those that the signals ask for.
    const std::vector<std::string> few{"--set", "checkpoint.every_steps=0", "--set",
                                       "log.every_steps=2"};
    int64_t before = 0;
    for (int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
        const pid_t child = start("stopped", few);
        for (int i = 0; i < 6000; ++i) {
            if (contents(root_ / "output").find("step ") != std::string::npos)
                break;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        kill(child, number);
        const Outcome outcome = wait_for(child);
        ASSERT_EQ(outcome.code, 75) << outcome.text;
        expect_part(outcome.text, std::string("stopped by signal ").append(std::to_string(number)));
        EXPECT_GE(latest("stopped"), before);
        before = latest("stopped");
    }
    EXPECT_GT(before, 0);
    ASSERT_EQ(run("stopped", few).code, 0);
    expect_same_checkpoints("whole", "stopped");
}

// Each step is in a record once the run has ended, and in as many as without the signal after that.
TEST_F(TrainingTest, ASignalLeavesARecordOfTheLastSteps) {
    const std::vector<std::string> seldom{"--set", "log.every_steps=30"};
    ASSERT_EQ(run("whole", seldom).code, 0);
    const pid_t child = start("stopped", seldom);
    await_step("stopped", 2);
    kill(child, SIGTERM);
    const Outcome outcome = wait_for(child);
    ASSERT_EQ(outcome.code, 75) << outcome.text;
    const auto before = records("stopped", "step");
    ASSERT_EQ(before.size(), 1u);
    EXPECT_EQ(before[0]["step"], latest("stopped"));
    EXPECT_EQ(before[0]["samples"], 4 * latest("stopped"));
    ASSERT_EQ(run("stopped", seldom).code, 0);
    EXPECT_EQ(records("stopped", "step").back(), records("whole", "step").back());
}

TEST_F(TrainingTest, ASecondSignalQuitsAtOnce) {
    const pid_t child = start("twice", {"--set", "train.epochs=100000"});
    await_step("twice", 2);
    kill(child, SIGSTOP);  // so that both are there before either is handled
    kill(child, SIGTERM);
    kill(child, SIGINT);
    kill(child, SIGCONT);
    const int code = wait_for(child).code;
    EXPECT_TRUE(code == 1000 + SIGTERM || code == 1000 + SIGINT) << code;
}

TEST_F(TrainingTest, EvalIsWhatTrainingLogged) {
    ASSERT_EQ(run("a").code, 0);
    const Json logged = records("a", "eval").back();
    const Outcome outcome = run("a", {"eval", "--checkpoint", "runs/a/latest"});
    ASSERT_EQ(outcome.code, 0) << outcome.text;
    expect_part(outcome.text, "the same as training logged, to the last bit");
    char text[64];
    std::snprintf(text, sizeof text, "loss %.9g  top-1 %.2f %%", logged["loss"].get<double>(),
                  100 * logged["top1"].get<double>());
    expect_part(outcome.text, text);
    const Outcome other =
        run("a", {"eval", "--checkpoint", "runs/a/latest", "--set", "model.name=resnet32"});
    EXPECT_EQ(other.code, 2);
    expect_part(other.text, "model.name: resnet20 → resnet32");
    const Outcome none = run("a", {"eval", "--checkpoint", "runs/a/step-12345"});
    EXPECT_EQ(none.code, 1);
    expect_part(none.text, "no checkpoint at 'runs/a/step-12345'");
    const Outcome all = run("a", {"eval", "--checkpoint", "runs/a"});
    EXPECT_EQ(all.code, 1);
    expect_part(all.text, "'runs/a' is no checkpoint but holds some; name one, as 'runs/a/latest'");
}

TEST_F(TrainingTest, AFinishedRunAndMoreEpochs) {
    const std::vector<std::string> constant{"--set", "optim.schedule.type=constant"};
    std::vector<std::string> two = constant, three = constant;
    for (std::string part : {"--set", "train.epochs=2"})
        two.push_back(part);
    for (std::string part : {"--set", "train.max_steps=27"})
        three.push_back(part);
    ASSERT_EQ(run("a", two).code, 0);
    const std::string before = contents(dir("a") / "metrics.jsonl");
    const Outcome again = run("a", two);
    EXPECT_EQ(again.code, 0);
    expect_part(again.text, "are done; a greater train.epochs goes on from here");
    EXPECT_EQ(contents(dir("a") / "metrics.jsonl"), before);
    const Outcome more = run("a", three);
    EXPECT_EQ(more.code, 0) << more.text;
    EXPECT_EQ(latest("a"), 27);
    expect_part(run("a", three).text, "are done; a greater train.max_steps goes on from here");
    ASSERT_EQ(run("b", three).code, 0);
    expect_same_checkpoints("a", "b");
}

TEST_F(TrainingTest, ACheckpointOfAnotherRunIsRefused) {
    ASSERT_EQ(run("a", {"--set", "train.max_steps=2"}).code, 0);
    const std::string before = contents(dir("a") / "latest/state.safetensors");
    const Outcome outcome = run("a", {"--set", "model.name=resnet32", "--set", "optim.lr=0.5",
                                      "--set", "train.epochs=9", "--set", "data.workers=3"});
    EXPECT_EQ(outcome.code, 2);
    expect_part(outcome.text,
                "the checkpoint 'runs/a/step-2' is of another run (model.name: resnet20 → "
                "resnet32, optim.lr: 0.02 → 0.5)");
    EXPECT_EQ(contents(dir("a") / "latest/state.safetensors"), before);

    const Outcome anew = run("a", {"--set", "optim.lr=0.5", "--set", "checkpoint.resume=never",
                                   "--set", "train.max_steps=1"});
    EXPECT_EQ(anew.code, 0) << anew.text;
    EXPECT_EQ(latest("a"), 1);
    EXPECT_EQ(contents(dir("a") / "previous-1/latest/state.safetensors"), before);
    EXPECT_TRUE(fs::exists(dir("a") / "metrics.1.jsonl"));
    EXPECT_EQ(records("a", "eval").size(), 1u);

    // From a path, in a directory of its own.
    const Outcome from = run(
        "b", {"--set", "checkpoint.resume=runs/a/previous-1/step-2", "--set", "train.max_steps=3"});
    EXPECT_EQ(from.code, 0) << from.text;
    expect_part(from.text, "resume       runs/a/previous-1/step-2: 2 steps done");
    ASSERT_EQ(run("c", {"--set", "train.max_steps=3"}).code, 0);
    EXPECT_EQ(latest("b"), 3);
}

TEST_F(TrainingTest, ADamagedCheckpointIsNamedAndTheOneBeforeUsed) {
    ASSERT_EQ(run("a", {"--set", "train.max_steps=13"}).code, 0);
    ASSERT_EQ(run("whole", {"--set", "train.max_steps=13"}).code, 0);
    fs::resize_file(dir("a") / "latest/model.safetensors", 5000);
    const Outcome outcome = run("a", {"--set", "train.max_steps=13"});
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    expect_part(outcome.text, "runs/a/step-13/model.safetensors': cut short");
    expect_part(outcome.text, "resume       runs/a/step-12: 12 steps done");
    EXPECT_EQ(contents(dir("a") / "latest/model.safetensors"),
              contents(dir("whole") / "latest/model.safetensors"));
}

TEST_F(TrainingTest, ALossThatIsNotFiniteStopsTheRun) {
    const std::string schedule = "optim.schedule={type: constant, warmup_epochs: 0}";
    const Outcome outcome = run(
        "a", {"--set", "optim.lr=1e30", "--set", schedule, "--set", "checkpoint.every_steps=40"});
    EXPECT_EQ(outcome.code, 1) << outcome.text;
    expect_part(outcome.text,
                "trainer: error: the loss of step 2 is not a number, first in layer '");
    expect_part(outcome.text, "the last checkpoint is runs/a/step-0\n");
    expect_part(contents(dir("a") / "trainer.log"), "error: the loss of step 2 is");
    // Weights that are not finite are never saved, even where no loss has shown them yet.
    const Outcome saving = run("b", {"--set", "optim.lr=1e18", "--set", schedule});
    EXPECT_EQ(saving.code, 1) << saving.text;
    expect_part(saving.text, "the last checkpoint is runs/b/step-");
    // All that is left is whole and finite.
    const Checkpoint checkpoint = Checkpoint::open(dir("b") / "latest");
    for (const SafetensorsEntry& tensor : checkpoint.model.tensors()) {
        if (tensor.dtype != "F32")
            continue;
        std::vector<float> values(static_cast<size_t>(element_count(tensor.shape)));
        checkpoint.model.read(tensor.name, tensor.shape, std::span<float>(values));
        EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float value) {
            return std::isfinite(value);
        })) << tensor.name;
    }
}

TEST_F(TrainingTest, WhatCannotBeRunIsSaidBeforeTraining) {
    std::ofstream(root_ / "runs") << "a file, where a directory would have to be";
    const Outcome logs = run("a");
    EXPECT_EQ(logs.code, 1);
    expect_part(logs.text, "set log.dir to a directory that can be written");
    const Outcome checkpoints = run("a", {"--set", "log.dir=logs"});
    EXPECT_EQ(checkpoints.code, 1);
    expect_part(checkpoints.text, "checkpoint.dir: 'runs/a' cannot be written (Not a directory)");
    fs::remove(root_ / "runs");
    const Outcome cuda = run("a", {"--set", "device=cuda:99"});  // why: tool_cuda_test
    EXPECT_EQ(cuda.code, 2);
    expect_part(cuda.text, "device: cuda:99: ");
    const Outcome batch = run("a", {"--set", "data.batch_size=45"});
    EXPECT_EQ(batch.code, 2);
    expect_part(batch.text, "batch");
    const Outcome huge =
        run("a", {"--set", "data.batch_size=1000000", "--set", "data.drop_last=false"});
    EXPECT_EQ(huge.code, 1);
    expect_part(huge.text, "a batch of 1000000 needs about ");
    expect_part(huge.text, " fits");
}

TEST_F(TrainingTest, StartsFromAModelOfAnotherHead) {
    ASSERT_EQ(run("a", {"--set", "train.max_steps=3"}).code, 0);
    const Outcome outcome =
        run("b", {"--set", "model={init: runs/a/latest/model.safetensors, num_classes: 12}",
                  "--set", "train.max_steps=1"});
    ASSERT_EQ(outcome.code, 0) << outcome.text;
    expect_part(outcome.text, "fc.weight is of another size there, and starts afresh");
    const Checkpoint from = Checkpoint::open(dir("a") / "latest");
    const Checkpoint to = Checkpoint::open(dir("b") / "step-0");
    std::vector<float> one(16 * 27), other(16 * 27);
    from.model.read("conv1.weight", {16, 3, 3, 3}, std::span<float>(one));
    to.model.read("conv1.weight", {16, 3, 3, 3}, std::span<float>(other));
    EXPECT_EQ(one, other);
    const Outcome wrong = run("c", {"--set",
                                    "model={name: resnet32, init: "
                                    "runs/a/latest/model.safetensors}"});
    EXPECT_EQ(wrong.code, 1);
    expect_part(wrong.text, "error: model.init: ");
    expect_part(wrong.text, "has no tensor 'layer1.3.conv1.weight'");
    const Outcome absent = run("d", {"--set", "model.init=nothing.safetensors"});
    EXPECT_EQ(absent.code, 1);
    expect_part(absent.text, "error: model.init: ");
}

TEST_F(TrainingTest, FrozenTensorsAreHeldStill) {
    const auto tensor = [&](int64_t step, const std::string& name, const Shape& shape) {
        const Checkpoint checkpoint = Checkpoint::open(dir("a") / ("step-" + std::to_string(step)));
        std::vector<float> values(static_cast<size_t>(element_count(shape)));
        checkpoint.model.read(name, shape, std::span<float>(values));
        return values;
    };
    ASSERT_EQ(run("a", {"--set", "model.freeze=[conv1, layer1.0.]", "--set", "train.max_steps=3",
                        "--set", "optim.schedule={type: constant, warmup_epochs: 0}", "--set",
                        "checkpoint.every_steps=1", "--set", "checkpoint.keep=9"})
                  .code,
              0);
    EXPECT_EQ(tensor(3, "conv1.weight", {16, 3, 3, 3}), tensor(1, "conv1.weight", {16, 3, 3, 3}));
    EXPECT_EQ(tensor(3, "layer1.0.bn2.bias", {16}), tensor(1, "layer1.0.bn2.bias", {16}));
    EXPECT_NE(tensor(3, "layer1.1.bn2.bias", {16}), tensor(1, "layer1.1.bn2.bias", {16}));
    const Outcome wrong = run("b", {"--set", "model.freeze=[layre1.]"});
    EXPECT_EQ(wrong.code, 2);
    expect_part(wrong.text, "model.freeze: no tensor's name begins with 'layre1.'");
}

TEST_F(TrainingTest, InDoubleTheSameThroughAResume) {
    const auto config_of = [&](const std::string& run, int64_t steps) {
        return load_config(
            (root_ / "tiny.yaml").string(),
            {"model.name=lenet5", "optim.schedule.type=constant", "train.clip_grad_norm=1",
             "data.drop_last=false", "train.max_steps=" + std::to_string(steps),
             "checkpoint.dir=" + dir(run).string(), "log.dir=" + dir(run).string()});
    };
    const TrainerOptions in_double{.reference = DType::f64};
    const Config half = config_of("a", 9), all = config_of("a", 23), whole = config_of("b", 23);
    EXPECT_EQ(Trainer(half, in_double).run(), ExitCode::done);
    Trainer resumed(all, in_double);
    EXPECT_EQ(resumed.state().step, 9);
    EXPECT_EQ(resumed.run(), ExitCode::done);
    Trainer straight(whole, in_double);
    EXPECT_EQ(straight.run(), ExitCode::done);
    EXPECT_EQ(resumed.state().evaluation, straight.state().evaluation);
    const auto one = resumed.parameters().slab<double>("weights");
    const auto other = straight.parameters().slab<double>("weights");
    EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size_bytes()), 0);
}

}  // namespace
}  // namespace trainer
