// The config: what it takes, what it says of what it does not take, and that it prints back.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "engine/nearest.h"
#include "tests/config_messages.h"
#include "tools/trainer/allreduce.h"
#include "tools/trainer/config.h"

namespace trainer {
namespace {

TEST(Nearest, CountsEdits) {
    EXPECT_EQ(edit_distance("", ""), 0u);
    EXPECT_EQ(edit_distance("", "abc"), 3u);
    EXPECT_EQ(edit_distance("momentm", "momentum"), 1u);
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
    EXPECT_EQ(edit_distance("ssdsdg", "ssdsgd"), 1u);  // a swap
    EXPECT_EQ(nearest_name("resnet21", std::vector<std::string>{"vgg11", "resnet20", "resnet32"}),
              "resnet20");
    EXPECT_EQ(nearest_name("x", {}), "");
}

TEST(Config, DefaultsAreTheListed) {
    const Config config = parse_config(least, "configs/mine.yaml");
    EXPECT_EQ(config.name, "mine");
    EXPECT_EQ(config.file, "configs/mine.yaml");
    const std::string expected = R"(seed: 1
device: auto
precision: fp32
deterministic: true
threads: auto
cpu:
  winograd: true
worker:
  gpus: 1
cuda:
  tf32: false
  graphs: true
  keep_images: true
model:
  name: resnet20
  num_classes: 10
  init: ""
  freeze: []
  zero_last_gamma: false
data:
  dataset: cifar10
  dir: data/cifar10
  batch_size: 32
  shuffle: true
  drop_last: true
  mean: auto
  std: auto
  augment:
    pad_crop: 4
    flip: true
    cutout: 0
    random_crop: true
    scale: [0.08, 1]
    ratio: [0.75, 1.3333333333333333]
    color_jitter: []
  image_size: 224
  resize: auto
  exif_orientation: true
  on_corrupt: fail
  val_labels: ""
  split: 0
  workers: auto
train:
  epochs: 160
  eval_every_epochs: 1
  max_steps: 0
  label_smoothing: 0
  clip_grad_norm: 0
optim:
  name: sgd
  lr: 0.1
  momentum: 0.9
  weight_decay: 1e-04
  decay_bn_bias: true
  schedule:
    type: step
    milestones: [80, 120]
    gamma: 0.1
    power: 2
    final_lr: 0
    warmup_epochs: 0
distributed:
  variant: ssgd
  topology: ps
  workers: 1
  servers: 1
  warmup_steps: 0
  delay_steps: 5
  staleness: 3
  local_steps: 8
  max_inflight: 2
  backup_workers: 0
  on_worker_loss: abort
  scale_lr_on_loss: false
  local:
    rule: auto
    lr: auto
    alpha: 2
    beta: 0.5
    lambda_dc: 0.04
    seeded: false
  dc:
    lambda: 0.04
    lambda0: 2
    m: 0.95
  codec:
    name: auto
    threshold: auto
    exact_every: auto
    flush_on_exact: false
comm:
  transport: auto
  listen: "127.0.0.1:0"
  servers: []
  interface: ""
  timeout: 30s
  lease: auto
  tls: {}
  secret_file: ""
  emulate: {}
checkpoint:
  dir: runs/mine
  every_epochs: 1
  every_steps: 0
  keep: 3
  resume: auto
log:
  dir: runs/mine
  every_steps: 50
  tensorboard: false
)";
    EXPECT_EQ(print_config(config), expected);
}

// Every key away from its default, in every form of value.
const std::string everything = R"(
seed: 9223372036854775807
device: cuda:3
precision: bf16
deterministic: false
threads: 7
cpu: {winograd: false}
worker: {gpus: 2}
cuda: {tf32: true, graphs: false, keep_images: false}
model: {name: vgg16_bn, num_classes: 1000, init: "a dir/model #1: \"x\".safetensors",
        freeze: [features.0., "classifier"], zero_last_gamma: true}
data:
  dataset: imagenet
  dir: /data/image net
  batch_size: 256
  shuffle: false
  drop_last: false
  mean: [0.5, .25, 1e-3]
  std: [0.3333333333333333]
  augment: {pad_crop: 2, flip: false, cutout: 16, random_crop: false, scale: [0.2, 0.9],
            ratio: [1, 2], color_jitter: [0.4, 0.3]}
  image_size: 160
  resize: 180
  exif_orientation: false
  on_corrupt: skip
  val_labels: val.txt
  split: 0.25
  workers: 3
train: {epochs: 3, eval_every_epochs: 2, max_steps: 5000000000, label_smoothing: 0.1, clip_grad_norm: 5}
optim:
  name: lars
  lr: 2e-5
  momentum: 0
  weight_decay: 5.0e-4
  decay_bn_bias: false
  schedule: {type: poly, milestones: [1, 2.5, 30], gamma: 0.2, power: 1.5, final_lr: 1e-9, warmup_epochs: 0.5}
distributed:
  variant: ssdsgd
  topology: allreduce
  workers: 4
  servers: 2
  warmup_steps: 100
  delay_steps: 10
  staleness: 0
  local_steps: 16
  max_inflight: 3
  backup_workers: 1
  on_worker_loss: continue
  scale_lr_on_loss: true
  local: {rule: momentum, lr: 0.05, alpha: 1, beta: -0.9, lambda_dc: 0, seeded: true}
  dc: {lambda: 0.1, lambda0: 1, m: 0}
  codec: {name: 2bit, threshold: 0.03, exact_every: 0, flush_on_exact: true}
comm:
  transport: tcp
  listen: "[::1]:9000"
  servers: ["node1:9000", "[fe80::1]:9001"]
  interface: eth0
  timeout: 1500ms
  lease: 500ms
  tls: {cert: c.pem, key: k.pem, ca: ca.pem}
  secret_file: "null"
  emulate: {bandwidth: 1.5Gbit, latency: 50us, step_time: 0.06s}
checkpoint: {dir: "runs/été", every_epochs: 0, every_steps: 100, keep: 1, resume: never}
log: {dir: "~", every_steps: 1, tensorboard: true}
)";

TEST(Config, EveryKeyIsReadAndPrintsBack) {
    const Config config = parse_config(everything, "x.yaml");
    EXPECT_EQ(config.seed, 9223372036854775807u);
    EXPECT_EQ(config.threads, 7);
    EXPECT_EQ(config.model.init, "a dir/model #1: \"x\".safetensors");
    EXPECT_EQ(config.model.freeze, (std::vector<std::string>{"features.0.", "classifier"}));
    EXPECT_TRUE(config.model.zero_last_gamma);
    EXPECT_EQ(config.data.mean, (std::vector<double>{0.5, 0.25, 0.001}));
    EXPECT_EQ(config.data.std, std::vector<double>{1.0 / 3});
    EXPECT_EQ(config.train.max_steps, 5000000000);
    EXPECT_EQ(config.optim.lr, 2e-5);
    EXPECT_EQ(config.optim.schedule.milestones, (std::vector<double>{1, 2.5, 30}));
    EXPECT_EQ(config.distributed.codec.exact_every, 0);
    EXPECT_EQ(config.comm.servers, (std::vector<std::string>{"node1:9000", "[fe80::1]:9001"}));
    EXPECT_EQ(config.comm.timeout, std::chrono::milliseconds(1500));
    EXPECT_EQ(config.comm.emulate.bandwidth, 1'500'000'000);
    EXPECT_EQ(config.comm.emulate.latency, std::chrono::microseconds(50));
    EXPECT_EQ(config.comm.emulate.step_time, std::chrono::milliseconds(60));
    EXPECT_EQ(config.log.dir, "~");

    const std::string printed = print_config(config);
    const Config again = parse_config(printed, "other.yaml");
    EXPECT_EQ(print_config(again), printed);
    EXPECT_EQ(flat(again), flat(config));

    // None of it is a default's: a key that was forgotten by the reader would show.
    std::map<std::string, std::string> defaults;
    for (const auto& [key, value] : flat(parse_config(least, "y.yaml")))
        defaults[key] = value;
    for (const auto& [key, value] : flat(config))
        EXPECT_NE(value, defaults[key]) << key;
}

TEST(Config, WhatDecidesTheResult) {
    const auto value_of = [](const Config& config, const std::string& wanted) -> std::string {
        for (const auto& [key, value] : flat_result(config))
            if (key == wanted)
                return value;
        return "(none)";
    };
    const Config config = with({"optim.lr=0.25", "log.dir=elsewhere"});
    EXPECT_EQ(value_of(config, "optim.lr"), "0.25");
    EXPECT_EQ(value_of(config, "data.batch_size"), "32");
    for (const char* key : {"log.dir", "checkpoint.dir", "data.dir", "data.workers", "threads",
                            "comm.listen", "checkpoint.resume"})
        EXPECT_EQ(value_of(config, key), "(none)") << key;
    EXPECT_EQ(flat_result(config), flat_result(with({"optim.lr=2.5e-1", "log.every_steps=3"})));
}

TEST(Config, NumbersAsPeopleWriteThem) {
    EXPECT_EQ(with({"optim.lr=2e-5"}).optim.lr, 2e-5);
    EXPECT_EQ(with({"optim.lr=1.0e-4"}).optim.lr, 1e-4);
    EXPECT_EQ(with({"optim.lr=.1"}).optim.lr, 0.1);
    EXPECT_EQ(with({"optim.lr=+1E1"}).optim.lr, 10);
    EXPECT_EQ(with({"optim.lr=3"}).optim.lr, 3);
    for (const char* bad : {"fast", "\"0.1\"", "0x10", ".inf", "nan", "1e", "0.1.2", "[0.1]", "",
                            "~", "1_000", "!!float 1"})
        EXPECT_NE(message_of_set(std::string("optim.lr=") + bad).find("is of the wrong type"),
                  std::string::npos)
            << bad;
    EXPECT_EQ(message_of_set("optim.lr=1e999"),
              "--set: optim.lr: 1e999 is out of range; expected: a number, at least 0");
}

TEST(Config, DurationsAndBandwidths) {
    using namespace std::chrono_literals;
    EXPECT_EQ(with({"comm.timeout=30s"}).comm.timeout, 30s);
    EXPECT_EQ(with({"comm.timeout=500ms"}).comm.timeout, 500ms);
    EXPECT_EQ(with({"comm.timeout=50us"}).comm.timeout, 50us);
    EXPECT_EQ(with({"comm.timeout=2m"}).comm.timeout, 2min);
    EXPECT_EQ(with({"comm.timeout=1.5h"}).comm.timeout, 90min);
    EXPECT_EQ(with({"comm.emulate.bandwidth=10Gbit"}).comm.emulate.bandwidth, 10'000'000'000);
    EXPECT_EQ(with({"comm.emulate.bandwidth=100Mbit"}).comm.emulate.bandwidth, 100'000'000);
    EXPECT_EQ(message_of_set("comm.timeout=30"),
              "--set: comm.timeout: 30 is of the wrong type; expected: a duration such as 30s, "
              "500ms, 50us, 2m, above 0s");
    EXPECT_EQ(message_of_set("comm.timeout=0s"),
              "--set: comm.timeout: 0s is out of range; expected: a duration such as 30s, 500ms, "
              "50us, 2m, above 0s");
    EXPECT_EQ(message_of_set("comm.emulate.bandwidth=10GB"),
              "--set: comm.emulate.bandwidth: 10GB is of the wrong type; expected: a bandwidth "
              "such as 10Gbit or 100Mbit (a second)");
    for (const char* bad : {"s", "1e30h", "--1s", "1 s", "auto", "5days"})
        EXPECT_NE(message_of_set(std::string("comm.timeout=") + bad), "") << bad;
}

TEST(Config, IsFoundInConfigs) {
    const std::filesystem::path here = std::filesystem::temp_directory_path() / "trainer_find";
    std::filesystem::remove_all(here);
    std::filesystem::create_directories(here / "configs");
    std::ofstream(here / "configs" / "only_here.yaml") << least;
    std::ofstream(here / "direct.yaml") << least;
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(here);

    EXPECT_EQ(find_config("direct.yaml"), "direct.yaml");
    EXPECT_EQ(find_config("only_here.yaml"), "configs/only_here.yaml");
    EXPECT_EQ(load_config(find_config("only_here.yaml")).checkpoint.dir, "runs/only_here");
    try {
        find_config("only_hree.yaml");
        ADD_FAILURE() << "found";
    } catch (const UsageError& error) {
        EXPECT_EQ(std::string(error.what()),
                  "only_hree.yaml: no such config file, neither here nor in configs/; did you mean "
                  "only_here.yaml?");
    }
    try {
        find_config("configs");
        ADD_FAILURE() << "found";
    } catch (const UsageError& error) {
        EXPECT_EQ(std::string(error.what()), "configs: a folder, not a config file");
    }
    std::filesystem::current_path(before);
    std::filesystem::remove_all(here);
}

TEST(Config, ComesThroughAPipe) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const std::string text = least;
    ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(ends[1]);
    const std::string name = "/dev/fd/" + std::to_string(ends[0]);  // as the shell's <(...) is
    EXPECT_EQ(find_config(name), name);
    EXPECT_EQ(load_config(name).model.name, parse_config(least, "least.yaml").model.name);
    close(ends[0]);
}

TEST(Config, EveryConfigOfTheProjectIsTaken) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(TRAINER_SOURCE_DIR "/configs")) {
        SCOPED_TRACE(entry.path());
        const Config config = load_config(entry.path().string());
        EXPECT_NO_THROW(check_topology(config));
        ++count;
    }
    EXPECT_GE(count, 4);
}

}  // namespace
}  // namespace trainer
