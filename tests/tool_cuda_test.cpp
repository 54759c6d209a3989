// The program and its CUDA engine: what it says where something is missing, before it does anything
// that takes time; and on a GPU, runs against those of the CPU.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/checkpoint.h"
#include "engine/cuda/plugin.h"
#include "models/models.h"
#include "tests/gpu.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

struct Outcome {
    int code = -1;
    std::string text;
};

const std::string plugin = TRAINER_BINARY_DIR "/tools/trainer/libengine_cuda.so";
const std::string fakes = TRAINER_BINARY_DIR "/tests/fakes";

class CudaProgram : public testing::Test {
  protected:
    CudaProgram() {
        std::string pattern = (fs::temp_directory_path() / "cuda_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        root_ = pattern;
        std::ofstream(root_ / "tiny.yaml")
            << "model: {name: linear}\n"
               "data: {dataset: synthetic, batch_size: 512, augment: {pad_crop: 0, flip: false}}\n"
               "train: {epochs: 1, max_steps: 4}\n"
               "log: {every_steps: 1}\n";
    }
    ~CudaProgram() override { fs::remove_all(root_); }

    /// Runs the program in a directory of its own, with `environment` before it; besides it is this
    /// process's, which why_no_gpu() has told where the plugin is.
    Outcome run(const std::string& environment, const std::string& arguments) const {
        const std::string command =
            "cd " + root_.string() + " && env " + environment + " " +
            TRAINER_BINARY_DIR "/tools/trainer/trainer --config tiny.yaml " + arguments + " 2>&1";
        Outcome outcome;
        FILE* const pipe = popen(command.c_str(), "r");
        check(pipe != nullptr, "no shell");
        std::array<char, 4096> part{};
        while (std::fgets(part.data(), static_cast<int>(part.size()), pipe) != nullptr)
            outcome.text += part.data();
        outcome.code = WEXITSTATUS(pclose(pipe));
        return outcome;
    }

    /// With a driver that has such GPUs.
    static std::string driver(const std::string& gpus, const std::string& more = "") {
        return "LD_LIBRARY_PATH=" + fakes + ":$LD_LIBRARY_PATH TRAINER_FAKE_GPUS=" + gpus + " " +
               more;
    }

    /// That the program refuses `device` at once, though its data are not there either.
    void expect_refusal(const std::string& environment, const std::string& device,
                        const std::string& why) const {
        const Outcome outcome =
            run(environment,
                "--set device=" + device + " --set data.dataset=cifar10 --set data.dir=nowhere");
        EXPECT_EQ(outcome.code, 2);
        const std::string expected = "trainer: error: device: " + device + ": " + why;
        EXPECT_EQ(outcome.text.substr(0, expected.size()), expected);
        EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
    }

    fs::path root_;
};

TEST_F(CudaProgram, SaysThatThereIsNoDriver) {
    if (has_cuda_device())
        GTEST_SKIP() << "this machine has a driver";
    expect_refusal("", "cuda",
                   "no NVIDIA driver is installed (libcuda.so.1 cannot be opened); install it, or "
                   "use device: cpu");
}

TEST_F(CudaProgram, SaysThatTheDriverFindsNoGpu) {
    expect_refusal(driver("90", "TRAINER_FAKE_ERROR=100"), "cuda",
                   "the NVIDIA driver finds no GPU that works (CUDA_ERROR_NO_DEVICE)");
    expect_refusal(driver("''"), "cuda", "the NVIDIA driver finds no GPU; use device: cpu");
}

TEST_F(CudaProgram, SaysThatThereIsNoSuchGpu) {
    expect_refusal(driver("90,90"), "cuda:2",
                   "this machine has no GPU 2: it has 2, counted from 0");
}

TEST_F(CudaProgram, SaysWhatIsWrongWithThePlugin) {
    expect_refusal(driver("90", "TRAINER_CUDA_ENGINE=/nowhere/engine.so"), "cuda:0",
                   "this build has no CUDA engine (/nowhere/engine.so is not there); build with "
                   "CUDA and cuDNN, or use device: cpu");
    const std::string text = (root_ / "tiny.yaml").string();
    expect_refusal(driver("90", "TRAINER_CUDA_ENGINE=" + text), "cuda",
                   "the CUDA engine cannot be opened: " + text + ": ");
    const std::string other = fakes + "/libcuda.so.1";
    expect_refusal(driver("90", "TRAINER_CUDA_ENGINE=" + other), "cuda",
                   other + " is no CUDA engine");
    const std::string old = fakes + "/libother_build.so";
    const uint32_t version = cuda::plugin_version;
    expect_refusal(driver("90", "TRAINER_CUDA_ENGINE=" + old), "cuda",
                   old + " is of another build of this program (interface " +
                       std::to_string(version + 1000) + ", expected " + std::to_string(version) +
                       "); build both from the same sources");
}

TEST_F(CudaProgram, SaysThatTheGpuIsTooOld) {
    if (!fs::exists(plugin))
        GTEST_SKIP() << "this build has no CUDA engine";
    expect_refusal(driver("52"), "cuda",
                   "GPU 0 has compute capability 5.2, the CUDA engine was built for ");
}

// The plugin and NVIDIA's libraries behind it are opened, and find that the driver is none.
TEST_F(CudaProgram, SaysWhatTheCudaRuntimeSays) {
    if (!fs::exists(plugin))
        GTEST_SKIP() << "this build has no CUDA engine";
    expect_refusal(driver("120"), "cuda", "the CUDA runtime cannot use GPU 0: ");
}

TEST_F(CudaProgram, AutoComputesOnTheCpuAndSaysWhy) {
    const Outcome outcome =
        run(driver("90", "TRAINER_CUDA_ENGINE=/nowhere/engine.so"), "--set device=auto");
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_EQ(outcome.text.rfind("trainer: device: auto: the CPU computes, since this build has no "
                                 "CUDA engine (/nowhere/engine.so is not there)",
                                 0),
              0U)
        << outcome.text;
    const Outcome quiet =
        run(driver("''"), "--set device=auto --set log.dir=b --set checkpoint.dir=b");
    EXPECT_EQ(quiet.code, 0) << quiet.text;
    EXPECT_EQ(quiet.text.find("device: auto"), std::string::npos) << quiet.text;
}

std::vector<float> weights_of(const fs::path& run) {
    const Network network = build_model("linear", {.num_classes = 10, .height = 32, .width = 32});
    const ParameterArena arena(network.parameters(), DType::f32, {std::string(slab::weights)});
    read_tensors(SafetensorsFile((run / "latest" / "model.safetensors").string()), arena,
                 slab::weights);
    const auto weights = arena.slab<float>(slab::weights);
    return {weights.begin(), weights.end()};
}

class CudaVariant : public CudaProgram, public testing::WithParamInterface<const char*> {};

// A whole cluster in one process, on a model that is linear, so that nothing amplifies rounding.
TEST_P(CudaVariant, GivesTheWeightsOfTheCpu) {
    TRAINER_NEEDS_GPU();
    const auto weights = [&](const std::string& device) {
        const std::string dir = std::string(GetParam()) + "_" + device;
        const Outcome outcome = run(
            "", "--set device=" + device + " --set distributed.variant=" + GetParam() +
                    " --set distributed.workers=2 --set distributed.servers=1 --set "
                    "distributed.warmup_steps=2 --set data.batch_size=64 --set train.max_steps=20 "
                    "--set log.dir=" +
                    dir + " --set checkpoint.dir=" + dir);
        EXPECT_EQ(outcome.code, 0) << outcome.text;
        return weights_of(root_ / dir);
    };
    const std::vector<float> cpu = weights("cpu"), gpu = weights("cuda");
    for (size_t i = 0; i < cpu.size(); ++i)
        ASSERT_NEAR(gpu[i], cpu[i], 1e-5) << "weight " << i;
}

INSTANTIATE_TEST_SUITE_P(Variants, CudaVariant, testing::Values("ssgd", "ssdsgd", "cdsgd"),
                         [](const auto& variant) { return std::string(variant.param); });

// What the device alone holds between steps, residuals and a local rule's slabs, is in checkpoints.
TEST_F(CudaProgram, GoesOnAsIfItHadNotStopped) {
    TRAINER_NEEDS_GPU();
    const auto weights = [&](const std::string& dir, const std::string& more) {
        const Outcome outcome =
            run("",
                "--set device=cuda --set distributed.variant=cdsgd --set distributed.workers=2 "
                "--set distributed.servers=1 --set distributed.warmup_steps=2 --set "
                "distributed.local.rule=momentum --set data.batch_size=64 --set log.dir=" +
                    dir + " --set checkpoint.dir=" + dir + more);
        EXPECT_EQ(outcome.code, 0) << outcome.text;
        return weights_of(root_ / dir);
    };
    const std::vector<float> whole = weights("whole", " --set train.max_steps=16");
    weights("parts", " --set train.max_steps=9");
    EXPECT_EQ(weights("parts", " --set train.max_steps=16 --set checkpoint.resume=auto"), whole);
}

TEST_F(CudaProgram, TrainsAloneAsTheCpuDoesAndTwiceTheSame) {
    TRAINER_NEEDS_GPU();
    const auto weights = [&](const std::string& device, const std::string& dir) {
        const Outcome outcome = run("", "--set device=" + device +
                                            " --set train.max_steps=16 --set "
                                            "log.dir=" +
                                            dir + " --set checkpoint.dir=" + dir);
        EXPECT_EQ(outcome.code, 0) << outcome.text;
        return weights_of(root_ / dir);
    };
    const std::vector<float> cpu = weights("cpu", "a"), gpu = weights("cuda", "b");
    EXPECT_EQ(gpu, weights("cuda", "c"));
    for (size_t i = 0; i < cpu.size(); ++i)
        ASSERT_NEAR(gpu[i], cpu[i], 1e-5) << "weight " << i;
}

// MiB that the program says it needs of the GPU's memory.
int64_t said_need(const std::string& text) {
    const std::string before = "memory       about ";
    const size_t at = text.find(before);
    return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + before.size());
}

// 9216 images of 3 KiB.
TEST_F(CudaProgram, CountsTheImagesThatTheGpuKeeps) {
    TRAINER_NEEDS_GPU();
    const auto train = [&](const std::string& environment, const std::string& keeps) {
        return run(environment, "--set device=cuda --set data.batch_size=8 --set log.dir=" + keeps +
                                    " --set checkpoint.dir=" + keeps +
                                    " --set train.max_steps=1 --set cuda.keep_images=" + keeps);
    };
    const Outcome with = train("", "true"), without = train("", "false");
    EXPECT_EQ(with.code, 0) << with.text;
    EXPECT_EQ(without.code, 0) << without.text;
    EXPECT_NEAR(said_need(with.text) - said_need(without.text), 27, 2) << with.text;
    if (std::getenv("TRAINER_FAKE_GPUS") == nullptr)
        return;
    const Outcome less = train("TRAINER_EMULATED_MIB=280", "true");
    EXPECT_EQ(less.code, 1);
    EXPECT_NE(less.text.find("; no batch fits; cuda.keep_images=false leaves 27 MiB of images in "
                             "the machine's memory"),
              std::string::npos)
        << less.text;
    EXPECT_EQ(train("TRAINER_EMULATED_MIB=280", "false").code, 0);
}

}  // namespace
}  // namespace trainer
