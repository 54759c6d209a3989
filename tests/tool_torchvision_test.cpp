// torchvision's state dicts load here, and our checkpoints there, at ImageNet's size, with the same
// logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/executor.h"
#include "models/models.h"
#include "tests/python.h"
#include "tools/trainer/run_state.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

class TorchvisionTest : public testing::TestWithParam<const char*> {
  protected:
    TorchvisionTest() {
        std::string pattern = (fs::temp_directory_path() / "torchvision_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        folder_ = pattern;
    }
    ~TorchvisionTest() override { fs::remove_all(folder_); }

    std::vector<float> floats(const std::string& name, size_t count) const {
        std::vector<float> values(count);
        std::ifstream file(folder_ / name, std::ios::binary);
        file.read(reinterpret_cast<char*>(values.data()),
                  static_cast<std::streamsize>(count * sizeof(float)));
        check(bool(file), "a file of so many numbers");
        return values;
    }

    PythonResult python(const std::string& what) const {
        return run_python("torchvision_test.py",
                          what + " '" + folder_.string() + "' " + GetParam());
    }

    fs::path folder_;
};

TEST_P(TorchvisionTest, SameLogitsBothWays) {
#ifndef TRAINER_HAS_ONEDNN
    GTEST_SKIP() << "without oneDNN this takes minutes";
#endif
    const std::string name = GetParam();
    const PythonResult made = python("make");
    if (made.code == python_skipped)
        GTEST_SKIP() << made.output;
    ASSERT_EQ(made.code, 0) << made.output;

    constexpr int64_t count = 2;
    const Network network = build_model(name, usual_options(name));
    const auto backend = make_cpu_backend({.threads = 2, .pin = false});
    const std::vector<std::string> slabs{std::string(slab::weights)};
    ParameterArena parameters(network.parameters(), DType::f32, slabs);
    ParameterArena statistics(network.statistics(), DType::f32, slabs);
    const InitResult loaded = read_model(SafetensorsFile(folder_ / (name + ".safetensors")),
                                         network, parameters, statistics);
    EXPECT_TRUE(loaded.fresh.empty());

    const auto images = floats(name + ".images", count * 3 * 224 * 224);
    const std::vector<int32_t> labels(count, 0);
    Executor executor(network, *backend, parameters, statistics,
                      {.batch = count, .training = false});
    executor.evaluate({.images = images.data(), .labels = labels.data(), .batch = count});
    const std::vector<float> ours = executor.logits();
    const auto theirs = floats(name + ".logits", ours.size());
    double largest = 0, error = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
        largest = std::max<double>(largest, std::abs(theirs[i]));
        error = std::max<double>(error, std::abs(theirs[i] - ours[i]));
    }
    EXPECT_GT(largest, 0.1) << "logits that say nothing";
    EXPECT_LE(error, 1e-4 * std::max(1.0, largest));

    CheckpointContents contents;
    const int64_t step = 7;
    append_model(contents, parameters, statistics, step);
    write_safetensors(folder_ / (name + ".ours.safetensors"), contents.model, {});
    std::ofstream(folder_ / (name + ".ours.logits"), std::ios::binary)
        .write(reinterpret_cast<const char*>(ours.data()),
               static_cast<std::streamsize>(ours.size() * sizeof(float)));
    const PythonResult checked = python("check");
    EXPECT_EQ(checked.code, 0) << checked.output;
    std::cout << checked.output;
}

INSTANTIATE_TEST_SUITE_P(Models, TorchvisionTest, testing::Values("resnet50", "vgg16_bn"),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace trainer
