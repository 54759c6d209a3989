// What the config says of what it does not take.
#include <gtest/gtest.h>

#include "optim/variant.h"
#include "tests/config_messages.h"
#include "tools/trainer/allreduce.h"
#include "tools/trainer/cluster_plan.h"

namespace trainer {
namespace {

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

}  // namespace
}  // namespace trainer
