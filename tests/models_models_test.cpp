// Models: names and shapes of tensors, parameter counts, multiply-adds, and what is refused.
#include "models/models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

namespace trainer {
namespace {

using Tensors = std::map<std::string, Shape>;

Tensors tensors_of(const Network& network) {
    Tensors result;
    for (const TensorTable* table : {&network.parameters(), &network.statistics()})
        for (const TensorInfo& tensor : table->tensors())
            result[tensor.name] = tensor.shape;
    return result;
}

// As torchvision's models, or twins of the small ones written in PyTorch, have them; tensors count
// the running statistics, multiply-adds are as PyTorch's FlopCounterMode has them.
struct Count {
    const char* name;
    int64_t parameters;
    size_t tensors;
    int64_t multiply_adds;  // 0: not held
};

const Count counts[] = {
    {"linear", 7850, 2, 7840},
    {"mlp", 235146, 6, 234752},
    {"lenet5", 61706, 10, 416520},
    {"resnet20", 269722, 97, 40551040},
    {"resnet32", 464154, 157, 68862592},
    {"resnet44", 658586, 217, 97174144},
    {"resnet56", 853018, 277, 125485696},
    {"resnet110", 1727962, 547, 252887680},
    {"resnet18", 11689512, 102, 1814073344},
    {"resnet34", 21797672, 182, 0},
    {"resnet50", 25557032, 267, 4089184256},
    {"resnet101", 44549160, 522, 0},
    {"resnet152", 60192808, 777, 0},
    {"vgg11", 132863336, 22, 0},
    {"vgg11_bn", 132868840, 54, 7609090048},
    {"vgg13", 133047848, 26, 0},
    {"vgg13_bn", 133053736, 66, 0},
    {"vgg16", 138357544, 32, 15470264320},
    {"vgg16_bn", 138365992, 84, 0},
    {"vgg19", 143667240, 38, 0},
    {"vgg19_bn", 143678248, 102, 0},
};

TEST(Models, HaveTheirSizes) {
    for (const Count& count : counts) {
        const Network network = build_model(count.name, usual_options(count.name));
        EXPECT_EQ(network.parameters().size(), count.parameters) << count.name;
        EXPECT_EQ(tensors_of(network).size(), count.tensors) << count.name;
        if (count.multiply_adds > 0) {
            EXPECT_EQ(network.multiply_adds(), count.multiply_adds) << count.name;
        }
    }
}

TEST(Models, TheTableIsAllOfThem) {
    std::vector<std::string> expected;
    for (const Count& count : counts)
        expected.emplace_back(count.name);
    EXPECT_EQ(model_names(), expected);
}

TEST(Models, HaveTorchvisionsTensors) {
    std::ifstream file(TRAINER_SOURCE_DIR "/tests/golden/torchvision_tensors.txt");
    std::map<std::string, Tensors> expected;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string model, name;
        words >> model >> name;
        Shape& shape = expected[model][name];
        for (int64_t extent; words >> extent;)
            shape.push_back(extent);
    }
    ASSERT_EQ(expected.size(), 4u);
    for (const auto& [model, tensors] : expected)
        EXPECT_EQ(tensors_of(build_model(model, usual_options(model))), tensors) << model;
}

TEST(Models, ResNet20HasItsTensorsInOrder) {
    const Network network = build_model("resnet20", {.num_classes = 100});
    const auto& tensors = network.parameters().tensors();
    std::vector<std::string> expected{"conv1.weight", "bn1.weight", "bn1.bias"};
    for (const char* layer : {"layer1.", "layer2.", "layer3."})
        for (const char* block : {"0.", "1.", "2."})
            for (const char* tensor : {"conv1.weight", "bn1.weight", "bn1.bias", "conv2.weight",
                                       "bn2.weight", "bn2.bias"})
                expected.push_back(std::string(layer) + block + tensor);
    expected.insert(expected.end(), {"fc.weight", "fc.bias"});
    ASSERT_EQ(tensors.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(tensors[i].name, expected[i]);
    EXPECT_EQ(tensors[0].shape, (Shape{16, 3, 3, 3}));
    EXPECT_EQ(network.parameters().find("layer2.0.conv1.weight")->shape, (Shape{32, 16, 3, 3}));
    EXPECT_EQ(network.parameters().find("layer3.2.conv2.weight")->shape, (Shape{64, 64, 3, 3}));
    EXPECT_EQ(network.parameters().find("fc.weight")->shape, (Shape{100, 64}));
}

TEST(Models, ResNetsHalveTheImage) {
    const Network cifar = build_model("resnet20", {});
    Shape last;
    for (const Node& node : cifar.nodes())
        if (node.kind == Kind::convolution)
            last = node.shape;
    EXPECT_EQ(last, (Shape{64, 8, 8}));
    const Network imagenet = build_model("resnet50", {.height = 64, .width = 96});
    for (const Node& node : imagenet.nodes()) {
        if (node.kind == Kind::convolution)
            last = node.shape;
        // v1.5: a bottleneck's stride is its 3x3 convolution's.
        if (node.name == "layer2.0.conv1" || node.name == "layer2.0.conv2") {
            EXPECT_EQ(node.stride, node.name == "layer2.0.conv2" ? 2 : 1) << node.name;
        }
    }
    EXPECT_EQ(last, (Shape{2048, 2, 3}));
}

TEST(Models, ZeroLastGammaIsThatOfEachBlock) {
    struct Case {
        const char* model;
        const char* last;
        int blocks;
    };
    for (const Case& c : {Case{"resnet20", ".bn2.weight", 9}, Case{"resnet18", ".bn2.weight", 8},
                          Case{"resnet50", ".bn3.weight", 16}}) {
        for (const bool zero : {false, true}) {
            const Network network = build_model(c.model, {.zero_last_gamma = zero});
            int zeros = 0;
            for (const TensorInfo& tensor : network.parameters().tensors()) {
                if (tensor.shape.size() != 1 || !tensor.name.ends_with(".weight"))
                    continue;
                const bool last = tensor.name.ends_with(c.last);
                EXPECT_EQ(tensor.init.value, zero && last ? 0 : 1) << tensor.name;
                zeros += tensor.init.value == 0;
            }
            EXPECT_EQ(zeros, zero ? c.blocks : 0) << c.model;
        }
    }
}

TEST(Models, VggOfSmallImagesHasOneClassifierLayer) {
    const Network network = build_model("vgg16", {});
    EXPECT_EQ(network.parameters().size(), 14714688 + 512 * 10 + 10);
    EXPECT_EQ(network.parameters().find("classifier.weight")->shape, (Shape{10, 512}));
    EXPECT_EQ(network.parameters().find("classifier.0.weight"), nullptr);
    const Network larger = build_model("vgg16", {.height = 64, .width = 96});
    EXPECT_EQ(larger.parameters().find("classifier.weight")->shape, (Shape{10, 512 * 2 * 3}));
}

TEST(Models, LeNet5TakesMnistAndCifar) {
    for (const ModelOptions& options : {ModelOptions{.channels = 1, .height = 28, .width = 28},
                                        ModelOptions{.channels = 1, .height = 32, .width = 32}})
        EXPECT_EQ(build_model("lenet5", options).parameters().size(), 61706);
    const Network color = build_model("lenet5", {});
    EXPECT_EQ(color.parameters().find("conv1.weight")->shape, (Shape{6, 3, 5, 5}));
    EXPECT_EQ(
        build_model("lenet5", {.height = 16, .width = 16}).parameters().find("fc1.weight")->shape,
        (Shape{120, 16}));
}

TEST(Models, EveryModelTakesCifarImagesAndAnyClasses) {
    for (const std::string& name : model_names()) {
        const Network network = build_model(name, {.num_classes = 17});
        EXPECT_EQ(network.classes(), 17) << name;
        EXPECT_EQ(network.node(network.output()).shape, (Shape{17})) << name;
    }
}

void expect_refused(std::string_view name, const ModelOptions& options, const std::string& words) {
    try {
        build_model(name, options);
        ADD_FAILURE() << name << " was built";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
}

TEST(Models, UnknownNamesAreRefusedWithTheNearest) {
    expect_refused("resnet21", {}, "unknown model 'resnet21'; did you mean 'resnet20'?");
    expect_refused("vgg16bn", {}, "'vgg16_bn'");
    expect_refused("lenet", {}, "'lenet5'");
    expect_refused("", {}, "unknown model ''");
    EXPECT_THROW(usual_options("resnet"), UsageError);
}

TEST(Models, ImagesThatDoNotFitAreRefused) {
    expect_refused("lenet5", {.height = 15, .width = 28}, "16x16, not 15x28");
    expect_refused("vgg11", {.height = 32, .width = 31}, "not 32x31");
    expect_refused("vgg11", {.height = 256, .width = 224}, "not 256x224");
    expect_refused("linear", {.num_classes = 0}, "at least one class");
    expect_refused("resnet20", {.channels = 0}, "at least one");
}

}  // namespace
}  // namespace trainer
