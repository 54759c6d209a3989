// The config: what it takes, what it says of what it does not take, and that it prints back.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "engine/error.h"
#include "engine/nearest.h"
#include "optim/variant.h"
#include "tools/trainer/allreduce.h"
#include "tools/trainer/cluster_plan.h"
#include "tools/trainer/config.h"

namespace trainer {
namespace {

using Overrides = std::vector<std::string>;

const std::string least = "model: {name: resnet20}\ndata: {dir: data/cifar10}\n";

/// The message about a config, or "" where it is taken.
std::string message_of(const std::string& text, const Overrides& overrides = {}) {
    try {
        parse_config(text, "x.yaml", overrides);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

/// The message about one override of an otherwise good config.
std::string message_of_set(const std::string& assignment) {
    return message_of(least, {assignment});
}

Config with(const Overrides& overrides) {
    return parse_config(least, "x.yaml", overrides);
}

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

TEST(Config, UnknownKeyNamesTheNearest) {
    EXPECT_EQ(message_of("model: {name: resnet20}\n"
                         "data: {dir: d}\n"
                         "\n"
                         "optim:\n"
                         "  lr: 0.1\n"
                         "  # of SGD\n"
                         "  momentm: 0.9\n"),
              "x.yaml:7: optim.momentm: unknown key; did you mean optim.momentum?");
    EXPECT_EQ(message_of_set("optim.momentm=0.9"),
              "--set: optim.momentm: unknown key; did you mean optim.momentum?");
    EXPECT_EQ(message_of_set("momentum=0.9"),
              "--set: momentum: unknown key; did you mean optim.momentum?");
    EXPECT_EQ(message_of(least + "optm: {lr: 1}"),
              "x.yaml:3: optm: unknown key; did you mean optim?");
    EXPECT_EQ(message_of(least + "optim: {lr: {max: 1}}"),
              "x.yaml:3: optim.lr: a map is of the wrong type; expected: a number, at least 0");
    EXPECT_EQ(message_of_set("optim.lr.max=1"),
              "--set: optim.lr.max: unknown key; did you mean optim.lr?");
    EXPECT_EQ(message_of(least + "[a, b]: 1"), "x.yaml:3: a key has to be a word");
}

TEST(Config, WrongTypes) {
    EXPECT_EQ(message_of(least + "optim:\n  lr: fast\n"),
              "x.yaml:4: optim.lr: fast is of the wrong type; expected: a number, at least 0");
    EXPECT_EQ(message_of(least + "optim:\n  lr: \"0.1\"\n"),
              "x.yaml:4: optim.lr: \"0.1\" is of the wrong type; expected: a number, at least 0");
    EXPECT_EQ(message_of_set("data.batch_size=2.5"),
              "--set: data.batch_size: 2.5 is of the wrong type; expected: an integer from 1 to "
              "1000000");
    EXPECT_EQ(message_of_set("data.shuffle=yes"),
              "--set: data.shuffle: yes is of the wrong type; expected: true or false");
    EXPECT_EQ(message_of_set("optim.schedule.milestones=80"),
              "--set: optim.schedule.milestones: 80 is of the wrong type; expected: a list of "
              "epochs, ascending");
    EXPECT_EQ(message_of_set("optim=0.1"),
              "--set: optim: 0.1 is of the wrong type; expected: a map of keys, e.g. {name: sgd}; "
              "{} for none");
    EXPECT_EQ(message_of("model:\n"),
              "x.yaml:1: model: nothing is of the wrong type; expected: a map of keys, e.g. "
              "{name: \"\"}; {} for none");
    EXPECT_EQ(message_of_set("model.init="),
              "--set: model.init: nothing is of the wrong type; expected: text");
    EXPECT_EQ(message_of_set("threads=many"),
              "--set: threads: many is of the wrong type; expected: auto, or an integer from 1 to "
              "1024");
}

TEST(Config, OutOfRange) {
    EXPECT_EQ(message_of("data:\n  dir: d\n  batch_size: 0\nmodel: {name: mlp}\n"),
              "x.yaml:3: data.batch_size: 0 is out of range; expected: an integer from 1 to "
              "1000000");
    EXPECT_EQ(message_of_set("optim.momentum=1.5"),
              "--set: optim.momentum: 1.5 is out of range; expected: a number, at least 0 and "
              "below 1");
    EXPECT_EQ(message_of_set("optim.momentum=1"),
              "--set: optim.momentum: 1 is out of range; expected: a number, at least 0 and below "
              "1");
    EXPECT_EQ(message_of_set("distributed.workers=0"),
              "--set: distributed.workers: 0 is out of range; expected: an integer from 1 to 4096");
    EXPECT_EQ(message_of_set("data.workers=0"),
              "--set: data.workers: 0 is out of range; expected: auto, or an integer from 1 to "
              "256");
    EXPECT_EQ(message_of_set("data.std=[0.5, 0.5, 0]"),
              "--set: data.std: [0.5, 0.5, 0] is out of range; expected: auto, or a list of one or "
              "three numbers, above 0, of pixels in [0, 1]");
    for (const char* bad : {"seed=-1",
                            "seed=9223372036854775808",
                            "threads=0",
                            "model.num_classes=0",
                            "data.augment.pad_crop=-1",
                            "train.epochs=0",
                            "train.max_steps=-1",
                            "train.label_smoothing=1",
                            "train.clip_grad_norm=-1",
                            "optim.lr=-0.1",
                            "optim.weight_decay=-1",
                            "optim.schedule.gamma=0",
                            "optim.schedule.warmup_epochs=-1",
                            "distributed.servers=0",
                            "distributed.delay_steps=0",
                            "distributed.local_steps=0",
                            "distributed.codec.threshold=0",
                            "distributed.codec.exact_every=-1",
                            "distributed.dc.m=1",
                            "comm.listen=9000",
                            "comm.listen=host:70000",
                            "comm.servers=[host:0]",
                            "comm.servers=[\"::1:9000\"]",
                            "checkpoint.keep=0",
                            "checkpoint.dir=''",
                            "log.every_steps=0",
                            "device=gpu",
                            "device=cuda:x"})
        EXPECT_NE(message_of_set(bad), "") << bad;
}

// With a lease that is longer the wrong one would give up: who waits for the lost one.
TEST(Config, TheLeaseIsShorterThanTheTimeout) {
    EXPECT_EQ(message_of_set("comm.lease=30s"),
              "--set: comm.lease: expected: less than comm.timeout, after which those who wait for "
              "someone lost would give up themselves");
    EXPECT_EQ(message_of_set("comm.lease=29s"), "");
    EXPECT_EQ(message_of_set("comm.lease=auto"), "");
    EXPECT_NE(message_of_set("comm.lease=1us"), "");
    const auto lease_of = [](const std::string& assignment) {
        return transport_options(parse_config(least, "x.yaml", {assignment}), {}).lease;
    };
    EXPECT_EQ(lease_of("comm.timeout=1h"), std::chrono::seconds(10));
    EXPECT_EQ(lease_of("comm.timeout=5s"), std::chrono::milliseconds(2500));
    EXPECT_EQ(lease_of("comm.lease=7s"), std::chrono::seconds(7));
}

TEST(Config, UnknownNames) {
    EXPECT_NE(message_of_set("model.name=resnet21").find("did you mean resnet20?"),
              std::string::npos);
    EXPECT_EQ(message_of_set("distributed.variant=ssdsdg"),
              "--set: distributed.variant: ssdsdg is not known; expected: ssgd | asgd | ssp | "
              "dcasgd | dcasgd_a | odsgd | ssdsgd | bitsgd | cdsgd | localsgd | postlocal; did you "
              "mean ssdsgd?");
    EXPECT_EQ(message_of(least + "optim:\n  schedule: {type: cosin}\n"),
              "x.yaml:4: optim.schedule.type: cosin is not known; expected: constant | step | poly "
              "| cosine | onecycle; did you mean cosine?");
    EXPECT_EQ(message_of_set("device=cud"),
              "--set: device: cud is not known; expected: auto | cpu | cuda | cuda:N; did you mean "
              "cuda?");
}

TEST(Config, NotYaml) {
    EXPECT_EQ(message_of("model: {name: resnet20}\ndata: [a, b\noptim: }\n"),
              "x.yaml:3: not YAML: end of sequence flow not found");
    EXPECT_EQ(message_of("model: {name: resnet20}\n\tdata: 1\n").substr(0, 19),
              "x.yaml:2: not YAML:");
    EXPECT_EQ(message_of("just words"),
              "x.yaml:1: no config, which is a map of keys: model: {name: resnet20}, …");
    EXPECT_EQ(message_of(least + "---\nseed: 2\n"),
              "x.yaml:3: not YAML: one document is expected, which ends before this");
    // A stray comma starts a document that yaml-cpp reads for ever.
    EXPECT_EQ(message_of(", model: {name: resnet20}\n"),
              "x.yaml:1: not YAML: one document is expected, which ends before this");
    EXPECT_EQ(message_of("model: {name: resnet20}}\n"), "x.yaml:1: not YAML: illegal flow end");
    EXPECT_EQ(message_of_set("comm.servers=[a:1],"),
              "--set comm.servers=[a:1],: the value is not YAML: one document is expected, which "
              "ends before this");
    EXPECT_EQ(message_of_set("optim={lr: 1").substr(0, 49),
              "--set optim={lr: 1: the value is not YAML: end of");
}

TEST(Config, DuplicateKeys) {
    EXPECT_EQ(message_of(least + "optim:\n  lr: 0.1\n  momentum: 0.9\n  lr: 0.2\n"),
              "x.yaml:6: optim.lr: given twice, first in line 4");
    EXPECT_EQ(message_of(least + "seed: 1\nmodel: {name: mlp}\n"),
              "x.yaml:4: model: given twice, first in line 1");
    EXPECT_EQ(message_of_set("optim={lr: 1, lr: 2}"), "--set: optim.lr: given twice");
}

TEST(Config, RequiredKeys) {
    EXPECT_EQ(message_of(""),
              "x.yaml: model.name: missing; say which model, e.g. model: {name: resnet20}");
    EXPECT_EQ(message_of("model: {name: resnet20}"),
              "x.yaml: data.dir: missing; say where cifar10 lies, e.g. data: {dir: data/cifar10}");
    EXPECT_EQ(message_of("model: {name: resnet20}\ndata: {dataset: synthetic}"), "");
    EXPECT_EQ(message_of("", {"model.name=mlp", "data.dir=d"}), "");
}

TEST(Config, SetMergesAndEmpties) {
    const std::string file = least + "optim: {lr: 0.5, momentum: 0.8, schedule: {type: cosine}}\n";
    const auto optim_with = [&](const Overrides& overrides) {
        return parse_config(file, "x.yaml", overrides).optim;
    };
    const Config::Optim merged = optim_with({"optim={lr: 0.25, schedule: {gamma: 0.5}}"});
    EXPECT_EQ(merged.lr, 0.25);
    EXPECT_EQ(merged.momentum, 0.8);
    EXPECT_EQ(merged.schedule.type, "cosine");
    EXPECT_EQ(merged.schedule.gamma, 0.5);

    const Config::Optim emptied = optim_with({"optim={}"});
    EXPECT_EQ(emptied.lr, 0.1);
    EXPECT_EQ(emptied.momentum, 0.9);
    EXPECT_EQ(emptied.schedule.type, "step");

    EXPECT_EQ(optim_with({"optim.lr=1", "optim.lr=2"}).lr, 2);
    EXPECT_EQ(optim_with({"optim.lr=1", "optim={schedule: {}}"}).schedule.type, "step");
    EXPECT_EQ(optim_with({"optim.lr=1", "optim={schedule: {}}"}).lr, 1);

    const Overrides slow = {"comm.emulate={bandwidth: 1Gbit, latency: 1ms}"};
    EXPECT_TRUE(with(slow).comm.emulate.latency.has_value());
    EXPECT_FALSE(with({slow[0], "comm.emulate={}"}).comm.emulate.latency.has_value());

    EXPECT_EQ(message_of(least, {"model={}"}),
              "x.yaml: model.name: missing; say which model, e.g. model: {name: resnet20}");
    EXPECT_EQ(message_of_set("optim.lr"), "--set optim.lr: expected: --set key=value");
    EXPECT_EQ(message_of_set("=1"), "--set =1: expected: --set key=value");
}

TEST(Config, KeysThatDoNotGoTogether) {
    EXPECT_EQ(message_of(least + "optim:\n  schedule:\n    milestones: [120, 80]\n"),
              "x.yaml:5: optim.schedule.milestones: out of order; each is an epoch after the one "
              "before it");
    EXPECT_EQ(message_of_set("data.dataset=cifar100"),
              "x.yaml: model.num_classes: 10 is too few for cifar100, which has 100 classes");
    EXPECT_EQ(message_of_set("data.mean=[0.5, 0.5]"),
              "--set: data.mean: a list of 2; expected: auto, or one number or three, a channel "
              "each");
    EXPECT_EQ(message_of_set("comm.tls.cert=c.pem"),
              "--set: comm.tls.cert: cert and key go together; the other one is missing");
    EXPECT_EQ(message_of_set("comm.tls={cert: c.pem, key: k.pem}"),
              "x.yaml: comm.tls.ca: missing; both ends show a certificate, of the authority in ca");
}

TEST(Config, BackupWorkersLeaveSomebodyToWaitFor) {
    EXPECT_EQ(message_of_set("distributed.backup_workers=1"),
              "--set: distributed.backup_workers: 1 of 1 worker leave none whose push a step waits "
              "for; take fewer");
    EXPECT_EQ(
        with({"distributed.backup_workers=1", "distributed.workers=2"}).distributed.backup_workers,
        1);
}

// Found by fuzzing: names and values were quoted as they were, line ends and all.
TEST(Config, MessagesAreOneLineWhateverTheyQuote) {
    EXPECT_EQ(message_of_set("comm.tls={\"a\\nb\": 1}").find('\n'), std::string::npos);
    EXPECT_EQ(message_of_set("device=\"a\\r\\n\\e[31mb\"").find_first_of("\r\n\x1b"),
              std::string::npos);
    EXPECT_EQ(message_of_set("no equals\nsign"), "--set no equals sign: expected: --set key=value");
    EXPECT_LT(message_of_set("seed=" + std::string(100000, 'x')).size(), 300U);
}

TEST(Config, KeysOfAChoiceNotTakenAreAllowed) {
    const Config config = with({"optim.schedule={type: constant, milestones: [1]}",
                                "distributed.local.alpha=3", "distributed.delay_steps=9"});
    EXPECT_NO_THROW(check_topology(config));
}

TEST(Config, WhatAllreduceCannotDoIsRefused) {
    const auto refusal = [](const std::string& assignment) -> std::string {
        try {
            check_topology(
                with({"distributed.topology=allreduce", "distributed.workers=4", assignment}));
        } catch (const UsageError& error) {
            return error.what();
        }
        return "";
    };
    for (const std::string variant : {"ssgd", "localsgd"})
        EXPECT_EQ(refusal("distributed.variant=" + variant), "");
    for (const std::string& variant : variant_names())
        if (variant != "ssgd" && variant != "localsgd") {
            EXPECT_EQ(refusal("distributed.variant=" + variant),
                      "distributed.variant: " + variant +
                          " needs servers, which topology allreduce has none of; take ssgd or "
                          "localsgd, or distributed.topology ps");
        }
    for (const std::string other : {"distributed.codec.name=fp16", "distributed.backup_workers=1",
                                    "distributed.on_worker_loss=continue"})
        EXPECT_NE(refusal(other).find("topology ps"), std::string::npos) << refusal(other);
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
