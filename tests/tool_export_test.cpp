// Exported models, against our own logits in onnxruntime: every family of models, on real images.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/augment.h"
#include "data/dataset.h"
#include "engine/executor.h"
#include "engine/random.h"
#include "models/models.h"
#include "tests/python.h"
#include "tools/trainer/onnx_export.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> weights_only{std::string(slab::weights)};

/// 256 test images of CIFAR-10 where it is there, else of what synthetic makes up.
Dataset images() {
    const char* const places[] = {TRAINER_SOURCE_DIR "/data/cifar10", std::getenv("TRAINER_DATA")};
    for (const char* place : places) {
        const std::string dir = place == nullptr ? "/nonexistent" : place;
        for (const char* below : {"/", "/cifar10/", "/cifar-10-batches-bin/"})
            if (fs::exists(dir + below + "test_batch.bin") ||
                fs::exists(dir + below + "cifar-10-batches-bin/test_batch.bin"))
                return load_dataset({"cifar10", dir + below, Split::test, {}});
    }
    return load_dataset({"synthetic", "", Split::test, {}});
}

class ExportTest : public testing::Test {
  protected:
    ExportTest() {
        std::string pattern = (fs::temp_directory_path() / "export_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        folder_ = pattern;
    }
    ~ExportTest() override { fs::remove_all(folder_); }

    void write(const std::string& name, const void* data, size_t bytes) const {
        std::ofstream(folder_ / name, std::ios::binary)
            .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    }

    fs::path folder_;
};

/// A network with values such as training leaves: batch norm's scales and shifts are drawn, its
/// running statistics are those of the images.
struct Model {
    Model(Network net, const std::vector<float>& batch, int64_t count)
        : network(std::move(net)),
          backend(make_cpu_backend({.threads = 2, .pin = false})),
          parameters(network.parameters(), DType::f32,
                     {std::string(slab::weights), std::string(slab::gradients)}),
          statistics(network.statistics(), DType::f32, weights_only) {
        initialize_weights(parameters, 3);
        initialize_weights(statistics, 3);
        uint64_t number = 0;
        for (const Node& node : network.nodes())
            if (node.kind == Kind::batch_norm)
                for (size_t i = 0; i < 2; ++i)
                    for (float& value : parameters.tensor<float>(
                             slab::weights, parameters.table()[node.parameters[i]]))
                        value = (i == 0 ? 0.75f : -0.25f) +
                                0.5f * static_cast<float>(Random{7, number++}.uniform());
        if (network.statistics().tensors().empty())
            return;
        Executor executor(network, *backend, parameters, statistics, {.batch = count});
        const std::vector<int32_t> labels(static_cast<size_t>(count), 0);
        for (int pass = 0; pass < 15; ++pass)
            executor.train({.images = batch.data(), .labels = labels.data(), .batch = count});
    }

    std::vector<float> logits(const std::vector<float>& batch, int64_t count) {
        Executor executor(network, *backend, parameters, statistics,
                          {.batch = count, .training = false});
        const std::vector<int32_t> labels(static_cast<size_t>(count), 0);
        executor.evaluate({.images = batch.data(), .labels = labels.data(), .batch = count});
        return executor.logits();
    }

    Network network;
    std::unique_ptr<Backend> backend;
    ParameterArena parameters, statistics;
};

/// Every kind of layer in places where the models have none: odd sizes, a convolution that two
/// layers read, batch norm after pooling, dropout, a shortcut that only adds channels.
Network odd_network() {
    Network net;
    NodeId x = net.input(3, 32, 32);
    x = net.convolution("a", x, {.out_channels = 5, .kernel = 5, .stride = 3, .bias = true});
    const NodeId shared = x;
    x = net.batch_norm("b", x, {.relu = true, .residual = shared});
    x = net.pad_shortcut(x, 9, 1);
    x = net.max_pool(x, 3, 2, 1);
    const NodeId pooled = net.batch_norm("c", x, {});
    x = net.convolution("d", pooled, {.out_channels = 9});
    x = net.batch_norm("e", x, {.relu = true, .residual = pooled});
    x = net.dropout("f", net.relu(net.linear("g", x, 33)), 0.5);
    net.linear("h", x, 7);
    return net;
}

/// Models that are checked together.
struct Family {
    const char* name;
    std::vector<const char*> models;
};

class FamilyTest : public ExportTest, public testing::WithParamInterface<Family> {};

TEST_P(FamilyTest, LogitsInOnnxruntimeAreOurs) {
#if !defined(TRAINER_HAS_ONEDNN) || !defined(TRAINER_HAS_PROTOBUF)
    GTEST_SKIP() << "this build writes no ONNX, or without oneDNN this takes minutes";
#endif
    const Dataset data = images();
    constexpr int64_t count = 256, calibration = 16;
    const Normalization normalization{{0.49, 0.48, 0.45}, {0.25, 0.24, 0.26}};
    const Normalizer normalizer(normalization, 3);
    std::vector<float> batch(static_cast<size_t>(count * data.image_bytes()));
    for (int64_t i = 0; i < count; ++i)
        apply_transform({}, normalizer, data.image(i), 3, 32, 32,
                        batch.data() + i * data.image_bytes());

    nlohmann::json cases = nlohmann::json::array();
    const auto add = [&](const std::string& name, Model& model, bool folded, bool uint8) {
        OnnxOptions options{.fold_batch_norm = folded, .normalization = {}, .metadata = {}};
        if (uint8)
            options.normalization = normalization;
        const std::string title = name + (folded ? "_folded" : "") + (uint8 ? "_uint8" : "");
        export_onnx(model.network, model.parameters, model.statistics, options,
                    folder_ / (title + ".onnx"));
        const std::vector<float> logits = model.logits(batch, count);
        write(title + ".logits", logits.data(), logits.size() * sizeof(float));
        if (uint8)
            write(title + ".images", data.image(0),
                  static_cast<size_t>(count * data.image_bytes()));
        else
            write(title + ".images", batch.data(), batch.size() * sizeof(float));
        const float largest =
            std::abs(*std::max_element(logits.begin(), logits.end(),
                                       [](float a, float b) { return std::abs(a) < std::abs(b); }));
        cases.push_back({{"name", title},
                         {"shape", {3, 32, 32}},
                         {"type", uint8 ? "uint8" : "float32"},
                         {"classes", model.network.classes()},
                         {"count", count},
                         {"folded", folded && name != "odd"},
                         {"tolerance", 1e-4 * std::max(1.0f, largest)}});
    };
    const ModelOptions small{.num_classes = 10, .channels = 3, .height = 32, .width = 32};
    for (const std::string name : GetParam().models) {
        Model model(name == "odd" ? odd_network() : build_model(name, small), batch, calibration);
        add(name, model, false, false);
        if (!model.network.statistics().tensors().empty())
            add(name, model, true, true);
    }

    std::ofstream(folder_ / "cases.json") << cases;
    const PythonResult result = run_python("onnx_test.py", "'" + folder_.string() + "'");
    if (result.code == python_skipped)
        GTEST_SKIP() << result.output;
    EXPECT_EQ(result.code, 0) << result.output;
    std::cout << result.output;
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest,
                         testing::Values(Family{"small", {"linear", "mlp", "lenet5", "odd"}},
                                         Family{"resnet", {"resnet20", "resnet18"}},
                                         Family{"bottleneck", {"resnet50"}},
                                         Family{"vgg", {"vgg11", "vgg16_bn"}}),
                         [](const auto& family) { return std::string(family.param.name); });

TEST_F(ExportTest, AFileThatCannotBeWrittenIsAnError) {
#ifndef TRAINER_HAS_PROTOBUF
    GTEST_SKIP() << "this build writes no ONNX";
#endif
    Network net;
    net.linear("fc", net.input(1, 2, 2), 3);
    const ParameterArena parameters(net.parameters(), DType::f32, weights_only);
    const ParameterArena statistics(net.statistics(), DType::f32, weights_only);
    EXPECT_THROW(export_onnx(net, parameters, statistics, {}, folder_ / "no/such/place.onnx"),
                 Error);
    export_onnx(net, parameters, statistics, {}, folder_ / "fc.onnx");
    EXPECT_GT(fs::file_size(folder_ / "fc.onnx"), 100u);
    EXPECT_FALSE(fs::exists(folder_ / "fc.onnx.part"));
}

}  // namespace
}  // namespace trainer
