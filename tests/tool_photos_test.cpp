// Training on photographs: from class folders and from shards alike, with classes that a checkpoint
// remembers.
#include <gtest/gtest.h>

#include "data/jpeg.h"
#include "data/photo_source.h"
#include "tests/error_of.h"
#include "tests/photos.h"
#include "tools/conversion/convert.h"
#include "tools/trainer/cluster.h"
#include "tools/trainer/data_hint.h"
#include "tools/trainer/predict.h"
#include "tools/trainer/setup.h"
#include "tools/trainer/trainer.h"
#include "tools/trainer/training.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// Only red, green or blue left of an image, or all three.
Image tinted(int channel, Image image) {
    for (size_t i = 0; i < image.pixels.size(); ++i)
        if (channel < 3 && i % 3 != static_cast<size_t>(channel))
            image.pixels[i] /= 4;
    return image;
}

class PhotosTest : public testing::Test {
  protected:
    void SetUp() override {
        try {
            encode_png(waves(2, 2));
        } catch (const UsageError& error) {
            GTEST_SKIP() << error.what();
        }
        for (int i = 0; i < 16; ++i)
            write_bytes(root_ / "photos" / "train" / ("kind " + std::to_string(i % 4)) /
                            (std::to_string(i) + ".JPEG"),
                        encode_png(tinted(i % 4, waves(40 + 3 * i, 64 - i, 1.5 * i))));
        fs::create_directory_symlink("train", root_ / "photos" / "val");
    }

    /// A config of ResNet-20 on what `data` says, with logs and checkpoints in runs/<run>.
    Config config(const std::string& data, const std::string& run,
                  std::vector<std::string> overrides = {}) const {
        const std::string dir = (root_ / "runs" / run).string();
        return parse_config(
            "model: {name: resnet20, num_classes: 4}\n"
            "data: {dataset: folder, dir: \"" +
                data +
                "\", batch_size: 8, image_size: 32, workers: 2}\n"
                "train: {epochs: 2}\n"
                "threads: 1\n"
                "optim: {lr: 0.05, schedule: {type: constant}}\n"
                "log: {dir: \"" +
                dir +
                "\", every_steps: 1}\n"
                "checkpoint: {dir: \"" +
                dir + "\"}\n",
            "photos.yaml", overrides);
    }

    std::string photos() const { return (root_ / "photos").string(); }

    std::string packed() const {
        const fs::path to = root_ / "packed";
        if (!fs::exists(to)) {
            testing::internal::CaptureStdout();
            EXPECT_EQ(
                convert::pack({.from = photos(), .to = to, .threads = 2}, [] { return false; }), 0);
            testing::internal::GetCapturedStdout();
        }
        return to.string();
    }

    static std::vector<float> weights_after(const Config& config, RunState* state = nullptr) {
        Trainer trainer(config);
        EXPECT_EQ(trainer.run(), ExitCode::done);
        const auto weights = trainer.parameters().slab<float>(slab::weights);
        if (state != nullptr)
            *state = trainer.state();
        return {weights.begin(), weights.end()};
    }

    std::string log_of(const std::string& run) const {
        const std::vector<std::byte> log = read_bytes(root_ / "runs" / run / "trainer.log");
        return {reinterpret_cast<const char*>(log.data()), log.size()};
    }

    const TemporaryFolder root_;
};

TEST_F(PhotosTest, FolderAndShardsTrainTheSameModel) {
    const std::vector<float> from_folder = weights_after(config(photos(), "folder"));
    EXPECT_EQ(weights_after(config(packed(), "shards")), from_folder);
    EXPECT_NE(weights_after(config(photos(), "other", {"seed=2"})), from_folder);
    const std::vector<float> jitter =
        weights_after(config(photos(), "jitter", {"data.augment.color_jitter=[0.4, 0.4, 0.4]"}));
    EXPECT_NE(jitter, from_folder);
}

TEST_F(PhotosTest, OverfitsThem) {
    // The rate sinks, so that the statistics of batch normalization come to rest.
    const std::vector<std::string> how = {"train.epochs=20",
                                          "data.augment.random_crop=false",
                                          "train.eval_every_epochs=0",
                                          "checkpoint.every_epochs=0",
                                          "optim.lr=0.02",
                                          "optim.schedule.type=cosine"};
    RunState folder, shards;
    const std::vector<float> weights = weights_after(config(photos(), "a", how), &folder);
    EXPECT_EQ(folder.evaluation.samples, 16);
    EXPECT_EQ(folder.evaluation.top1, 16) << "of the training images, which val/ links to";
    EXPECT_EQ(weights_after(config(packed(), "b", how), &shards), weights);
    EXPECT_EQ(shards.evaluation, folder.evaluation);
}

TEST_F(PhotosTest, ACheckpointOfOtherClassesIsRefused) {
    weights_after(config(photos(), "run"));
    fs::rename(root_ / "photos" / "train" / "kind 2", root_ / "photos" / "train" / "sort 2");
    const Config longer = config(photos(), "run", {"train.epochs=3"});
    EXPECT_TRUE(contains(error_of([&] { Trainer trainer(longer); }),
                         "was trained on other classes: its class 2 is 'kind 2', that of the data "
                         "is 'kind 3'"));
    const std::string checkpoint = (root_ / "runs" / "run" / "latest").string();
    EXPECT_TRUE(contains(error_of([&] { run_evaluation(longer, checkpoint); }), "other classes"));
    fs::rename(root_ / "photos" / "train" / "sort 2", root_ / "photos" / "train" / "kind 2");
    EXPECT_EQ(error_of([&] { Trainer trainer(longer); }), "no error");
}

TEST_F(PhotosTest, TooFewClassesAreSaid) {
    EXPECT_TRUE(contains(
        error_of([&] { Trainer trainer(config(photos(), "few", {"model.num_classes=3"})); }),
        "model.num_classes: 3 is too few for folder, which has 4 classes"));
}

TEST_F(PhotosTest, ADamagedImageEndsTheRunOrIsSkippedAloud) {
    const fs::path bad = root_ / "photos" / "train" / "kind 1" / "5.JPEG";
    std::ofstream(bad, std::ios::trunc) << "no image";
    EXPECT_TRUE(contains(error_of([&] { weights_after(config(photos(), "fail")); }),
                         "is damaged: " + bad.string()));
    weights_after(config(photos(), "skip", {"data.on_corrupt=skip"}));
    EXPECT_TRUE(
        contains(log_of("skip"),
                 "warning: image 6 is damaged: " + bad.string() +
                     ": not an image that can be decoded; skipped, image 7 takes its place"));
}

TEST_F(PhotosTest, EvaluationCountsNoImageTwice) {
    const fs::path bad = root_ / "photos" / "train" / "kind 1" / "5.JPEG";
    std::ofstream(bad, std::ios::trunc) << "no image";
    RunState state;
    const std::vector<std::string> how = {"data.on_corrupt=skip", "train.epochs=1"};
    weights_after(config(photos(), "run", how), &state);
    EXPECT_EQ(state.evaluation.samples, 15);
    const std::string damaged =
        "image 6 is damaged: " + (root_ / "photos" / "val" / "kind 1" / "5.JPEG").string();
    EXPECT_TRUE(contains(log_of("run"), damaged + ": not an image that can be decoded; left out"));
    fs::remove(root_ / "photos" / "val");
    for (int kind = 0; kind < 4; ++kind)
        write_bytes(root_ / "photos" / "val" / ("kind " + std::to_string(kind)) / "a.JPEG", {});
    EXPECT_EQ(error_of([&] { weights_after(config(photos(), "none", how)); }),
              "none of the test images can be read");
}

TEST_F(PhotosTest, WorkersOfAClusterWarnInTheRunsLog) {
    fs::create_directories(root_ / "photos" / "train" / "kind 9");
    const fs::path bad = root_ / "photos" / "train" / "kind 1" / "5.JPEG";
    std::ofstream(bad, std::ios::trunc) << "no image";
    EXPECT_EQ(run_cluster_in_process(
                  config(photos(), "run",
                         {"data.on_corrupt=skip", "distributed.workers=2", "data.batch_size=4",
                          "model.num_classes=5", "train.epochs=1"})),
              ExitCode::done);
    const std::string log = log_of("run");
    EXPECT_TRUE(contains(log, "warning: 1 of 5 classes has no training images: 'kind 9'")) << log;
    const size_t first = log.find("warning: worker ");
    ASSERT_NE(first, std::string::npos) << log;
    EXPECT_TRUE(contains(log, ": image 6 is damaged: " + bad.string())) << log;
    EXPECT_TRUE(contains(log, "warning: worker 0: image 6 is damaged: " +
                                  (root_ / "photos" / "val" / "kind 1" / "5.JPEG").string() +
                                  ": not an image that can be decoded; left out"))
        << log;
}

TEST_F(PhotosTest, PredictSeesWhatEvaluationSees) {
    const fs::path turned = root_ / "photos" / "train" / "kind 2" / "turned.JPEG";
    try {
        write_bytes(turned, encode_jpeg(waves(90, 60), 90, 6));
    } catch (const UsageError& error) {
        GTEST_SKIP() << error.what();
    }
    for (const std::string set :
         {"data.resize=auto", "data.resize=50", "data.exif_orientation=false"}) {
        SCOPED_TRACE(set);
        const Config settings =
            config(photos(), set, {set, "train.max_steps=1", "train.eval_every_epochs=0"});
        weights_after(settings);
        const LoadedModel model = load_model((root_ / "runs" / set / "latest").string());
        const Dataset test = make_dataset(settings, Split::test);
        const PhotoSource source(test, {}, evaluation_loader(settings, test).normalization, 1);
        std::vector<float> seen(3 * 32 * 32);
        int32_t label = 0;
        std::vector<std::byte> file;
        for (int64_t i = 0; i < test.count; ++i) {
            source.load(0, i, seen.data(), label);
            test.photos.store->read(i, file);
            EXPECT_EQ(network_input(file, model.card), seen) << test.photos.store->name(i);
        }
    }
}

TEST(PhotosConfig, KeysAreChecked) {
    const auto message = [](const std::string& assignment) {
        return error_of([&] {
            parse_config("model: {name: resnet18}\ndata: {dataset: imagenet, dir: x}\n", "a.yaml",
                         {assignment});
        });
    };
    EXPECT_TRUE(
        contains(message("data.augment.scale=[0.5]"), "two numbers, the least and the most"));
    EXPECT_TRUE(contains(message("data.augment.scale=[0.5, 2]"), "out of range"));
    EXPECT_TRUE(contains(message("data.augment.ratio=[2, 1]"), "two numbers, the least"));
    EXPECT_TRUE(contains(message("data.augment.color_jitter=[1, 1, 1, 0, 1]"), "a list of 5"));
    EXPECT_TRUE(contains(message("data.resize=100"), "less than data.image_size, 224"));
    EXPECT_TRUE(contains(message("data.on_corrupt=ignore"), "fail"));
    EXPECT_TRUE(contains(message("data.split=1"), "out of range"));
    EXPECT_EQ(message("data.resize=320"), "no error");
}

TEST(DataHint, NamesTheBottleneck) {
    EXPECT_EQ(data_hint(0.05, {1, 1, 10}, 1, 8), "");
    EXPECT_EQ(
        data_hint(0.25, {0.1, 3, 1000}, 2, 8),
        "training waits for data 25 % of its time; decoding is the bottleneck (an image takes "
        "0.10 ms to read, 3.00 ms to decode): set data.workers to 8 (now 2)");
    EXPECT_TRUE(contains(data_hint(0.25, {0.1, 3, 1000}, 8, 8), "all 8 processors decode already"));
    EXPECT_TRUE(contains(data_hint(0.25, {9, 3, 1000}, 8, 8), "the disk is the bottleneck"));
    EXPECT_TRUE(contains(data_hint(0.25, {}, 2, 8), "more data.workers (2 now)"));
}

TEST(DataHint, LooksAtWhatIsNewSinceItLastLooked) {
    DataHint hint;
    EXPECT_EQ(hint.look(4, 4, {0.1, 9, 1000}, 2, 8), "") << "too short a time";
    EXPECT_TRUE(contains(hint.look(10, 2, {0.1, 3, 1000}, 2, 8), "waits for data 20 %"));
    EXPECT_EQ(hint.look(20, 2.5, {0.2, 6, 2000}, 2, 8), "");
    const std::string said = hint.look(30, 7.5, {8.2, 7, 3000}, 2, 8);
    EXPECT_TRUE(contains(said,
                         "waits for data 50 % of its time; the disk is the bottleneck (an "
                         "image takes 8.00 ms to read, 1.00 ms to decode)"))
        << said;
}

/// ResNet-18 on the sample of real photographs: the same first steps from both.
TEST(SamplePhotos, FolderAndShardsAreTheSameToResNet18) {
    if (sample_photos().empty())
        GTEST_SKIP() << no_sample_photos;
#ifndef TRAINER_HAS_ONEDNN
    GTEST_SKIP() << "without oneDNN this takes minutes";
#endif
    const TemporaryFolder root;
    fs::create_directories(root / "photos");
    fs::create_directory_symlink(sample_photos() / "train", root / "photos" / "train");
    fs::create_directory_symlink("train", root / "photos" / "val");
    testing::internal::CaptureStdout();
    ASSERT_EQ(convert::pack({.from = root / "photos", .to = root / "packed", .threads = 2},
                            [] { return false; }),
              0);
    testing::internal::GetCapturedStdout();
    std::vector<std::vector<float>> weights;
    for (const std::string data : {"photos", "packed"}) {
        const std::string dir = (root / ("runs " + data)).string();
        const Config config = parse_config(
            "model: {name: resnet18, num_classes: 100}\n"
            "data: {dataset: imagenet, dir: \"" +
                (root / data).string() +
                "\", batch_size: 4, image_size: 64}\n"
                "train: {epochs: 1, max_steps: 2}\n"
                "threads: 1\n"  // a second Trainer finds this thread bound to one processor
                "log: {dir: \"" +
                dir + "\"}\ncheckpoint: {dir: \"" + dir + "\"}\n",
            "sample.yaml");
        Trainer trainer(config);
        EXPECT_EQ(trainer.run(), ExitCode::done);
        const auto slab = trainer.parameters().slab<float>(slab::weights);
        weights.emplace_back(slab.begin(), slab.end());
    }
    EXPECT_EQ(weights[0], weights[1]);
}

}  // namespace
}  // namespace trainer
