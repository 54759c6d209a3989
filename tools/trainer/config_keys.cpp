#include "tools/trainer/config_keys.h"

#include "models/models.h"
#include "optim/variant.h"

namespace trainer {
namespace {

using enum Effect;

template <typename T>
Key key(std::string path, T& field, ValueKind<T> kind, Effect effect, std::string about) {
    return {
        .path = std::move(path),
        .read = [&field, read = kind.read](const YAML::Node& node) { return read(node, field); },
        .print = [&field, print = kind.print] { return print(field); },
        .reset = [&field, initial = field] { field = initial; },
        .takes = kind.takes,
        .words = kind.words,
        .about = std::move(about),
        .effect = effect};
}

void append(std::vector<Key>& keys, std::vector<Key> more) {
    keys.insert(keys.end(), more.begin(), more.end());
}

std::vector<Key> run_and_model_keys(Config& c) {
    return {
        key("seed", c.seed, seed_integer(), result, "of everything drawn at random"),
        key("device", c.device, device_name(), run, "what computes"),
        key("precision", c.precision, one_of({"fp32", "bf16"}), result, "of activations"),
        key("deterministic", c.deterministic, boolean(), run, "same bits at every run"),
        key("threads", c.threads, automatic(integer(1, 1024)), run,
            "computing threads of one worker"),
        key("cpu.winograd", c.cpu.winograd, boolean(), result,
            "fp32 convolutions in fewer products: faster"),
        key("worker.gpus", c.worker.gpus, integer(1, 16), run,
            "GPUs of one worker, from device on, that share its batch"),
        key("cuda.tf32", c.cuda.tf32, boolean(), run, "fp32 of 10-bit mantissas: faster"),
        key("cuda.graphs", c.cuda.graphs, boolean(), run, "records steps, and replays them"),
        key("cuda.keep_images", c.cuda.keep_images, boolean(), run,
            "small data sets stay on the GPU"),
        key("model.name", c.model.name, one_of(model_names()), result, "required"),
        key("model.num_classes", c.model.num_classes, integer(1, 1'000'000), result, ""),
        key("model.init", c.model.init, text(true), result, "a model.safetensors to start from"),
        key("model.freeze", c.model.freeze,
            list_of(text(false), "a list of beginnings of tensor names"), result,
            "tensors that are held still"),
        key("model.zero_last_gamma", c.model.zero_last_gamma, boolean(), result,
            "ResNets: every block begins as the identity"),
    };
}

std::vector<Key> data_keys(Config& c) {
    auto& data = c.data;
    const auto per_channel = [](Limits limits) {
        const std::string takes =
            "a list of one or three numbers" + limits.text() + ", of pixels in [0, 1]";
        return automatic(list_of(number(limits), takes));
    };
    return {
        key("data.dataset", data.dataset,
            one_of({"cifar10", "cifar100", "fashion_mnist", "mnist", "imagenet", "folder",
                    "synthetic"}),
            result, ""),
        key("data.dir", data.dir, text(true), run, "required, but for synthetic"),
        key("data.batch_size", data.batch_size, integer(1, 1'000'000), result, "of one worker"),
        key("data.shuffle", data.shuffle, boolean(), result, ""),
        key("data.drop_last", data.drop_last, boolean(), result,
            "the part of an epoch that fills no batch"),
        key("data.mean", data.mean, per_channel({}), result, "of each channel"),
        key("data.std", data.std, per_channel({.low = 0, .above = true}), result,
            "of each channel"),
        key("data.augment.pad_crop", data.augment.pad_crop, integer(0, 64), result,
            "pixels of padding before a random crop"),
        key("data.augment.flip", data.augment.flip, boolean(), result, "left and right"),
        key("data.augment.cutout", data.augment.cutout, integer(0, 1024), result,
            "edge of a square that is blanked"),
        key("data.augment.random_crop", data.augment.random_crop, boolean(), result,
            "photographs: a part of random size and shape, resized"),
        key("data.augment.scale", data.augment.scale,
            list_of(number({.low = 0, .high = 1, .above = true}), "a list of two numbers"), result,
            "photographs: the crop's share of the area, least and most"),
        key("data.augment.ratio", data.augment.ratio,
            list_of(number({.low = 0, .above = true}), "a list of two numbers"), result,
            "photographs: the crop's width by height, least and most"),
        key("data.augment.color_jitter", data.augment.color_jitter,
            list_of(number({.low = 0}), "a list of up to four numbers"), result,
            "photographs: brightness, contrast, saturation, hue"),
        key("data.image_size", data.image_size, integer(16, 4096), result,
            "photographs: side of what the network sees"),
        key("data.resize", data.resize, automatic(integer(16, 8192)), result,
            "photographs: shorter side in evaluation; auto: 256 for 224"),
        key("data.exif_orientation", data.exif_orientation, boolean(), result,
            "photographs are turned as the camera noted"),
        key("data.on_corrupt", data.on_corrupt, one_of({"fail", "skip"}), run,
            "what a damaged photograph does"),
        key("data.val_labels", data.val_labels, text(true), run,
            "file with the classes of a val/ without class folders"),
        key("data.split", data.split, number({.low = 0, .high = 1, .below = true}), result,
            "folder without val/: share of the images to test with"),
        key("data.workers", data.workers, automatic(integer(1, 256)), run, "decoding threads"),
    };
}

std::vector<Key> training_keys(Config& c) {
    auto& schedule = c.optim.schedule;
    return {
        key("train.epochs", c.train.epochs, integer(1), result, ""),
        key("train.eval_every_epochs", c.train.eval_every_epochs, integer(0), run,
            "0: at the end only"),
        key("train.max_steps", c.train.max_steps, long_integer(0), result,
            "stop after so many global steps; 0: no limit"),
        key("train.label_smoothing", c.train.label_smoothing,
            number({.low = 0, .high = 1, .below = true}), result, ""),
        key("train.clip_grad_norm", c.train.clip_grad_norm, number({.low = 0}), result,
            "0: no clipping"),
        key("optim.name", c.optim.name, one_of({"sgd", "nesterov", "lars"}), result, ""),
        key("optim.lr", c.optim.lr, number({.low = 0}), result, "the largest learning rate"),
        key("optim.momentum", c.optim.momentum, number({.low = 0, .high = 1, .below = true}),
            result, ""),
        key("optim.weight_decay", c.optim.weight_decay, number({.low = 0}), result, ""),
        key("optim.decay_bn_bias", c.optim.decay_bn_bias, boolean(), result,
            "whether batch norm and biases decay too"),
        key("optim.schedule.type", schedule.type,
            one_of({"constant", "step", "poly", "cosine", "onecycle"}), result, ""),
        key("optim.schedule.milestones", schedule.milestones,
            list_of(number({.low = 0}), "a list of epochs, ascending"), result,
            "of step, in epochs"),
        key("optim.schedule.gamma", schedule.gamma, number({.low = 0, .above = true}), result,
            "of step: factor at each milestone"),
        key("optim.schedule.power", schedule.power, number({.low = 0, .above = true}), result,
            "of poly"),
        key("optim.schedule.final_lr", schedule.final_lr, number({.low = 0}), result,
            "of poly, cosine, onecycle"),
        key("optim.schedule.warmup_epochs", schedule.warmup_epochs, number({.low = 0}), result,
            "linear, from near 0"),
    };
}

std::vector<Key> distributed_keys(Config& c) {
    auto& distributed = c.distributed;
    auto& local = distributed.local;
    auto& codec = distributed.codec;
    return {
        key("distributed.variant", distributed.variant, one_of(variant_names()), result, ""),
        key("distributed.topology", distributed.topology, one_of({"ps", "allreduce"}), result,
            "ps: servers; allreduce: none, for ssgd and localsgd"),
        key("distributed.workers", distributed.workers, integer(1, 4096), result, ""),
        key("distributed.servers", distributed.servers, integer(1, 4096), run, ""),
        key("distributed.warmup_steps", distributed.warmup_steps, long_integer(0), result,
            "T_w: S-SGD before"),
        key("distributed.delay_steps", distributed.delay_steps, integer(1), result,
            "k: steps from pull to pull"),
        key("distributed.staleness", distributed.staleness, integer(0), result, "s of ssp"),
        key("distributed.local_steps", distributed.local_steps, integer(1), result,
            "H of localsgd"),
        key("distributed.max_inflight", distributed.max_inflight, integer(1, 1024), run,
            "steps whose pushes may be under way"),
        key("distributed.backup_workers", distributed.backup_workers, integer(0, 4095), run,
            "b: a step closes with the first N - b pushes"),
        key("distributed.on_worker_loss", distributed.on_worker_loss, one_of({"abort", "continue"}),
            run, "continue: with those who are left"),
        key("distributed.scale_lr_on_loss", distributed.scale_lr_on_loss, boolean(), run,
            "the rate times the share of workers left"),
        key("distributed.local.rule", local.rule,
            one_of({"auto", "adopt", "sgd", "dc", "glu", "momentum"}), result,
            "auto: the variant's own"),
        key("distributed.local.lr", local.lr, automatic(number({.low = 0})), result,
            "auto: the schedule's"),
        key("distributed.local.alpha", local.alpha, number({}), result, "of glu"),
        key("distributed.local.beta", local.beta, number({}), result, "of glu"),
        key("distributed.local.lambda_dc", local.lambda_dc, number({.low = 0}), result, "of dc"),
        key("distributed.local.seeded", local.seeded, boolean(), result, "of momentum"),
        key("distributed.dc.lambda", distributed.dc.lambda, number({.low = 0}), result,
            "of dcasgd"),
        key("distributed.dc.lambda0", distributed.dc.lambda0, number({.low = 0}), result,
            "of dcasgd_a"),
        key("distributed.dc.m", distributed.dc.m, number({.low = 0, .high = 1, .below = true}),
            result, "of dcasgd_a"),
        key("distributed.codec.name", codec.name, one_of({"auto", "raw", "fp16", "bf16", "2bit"}),
            result, "auto: the variant's own"),
        key("distributed.codec.threshold", codec.threshold,
            automatic(number({.low = 0, .above = true})), result, "of 2bit"),
        key("distributed.codec.exact_every", codec.exact_every, automatic(integer(0)), result,
            "c: every c-th push is exact; 0: none"),
        key("distributed.codec.flush_on_exact", codec.flush_on_exact, boolean(), result,
            "an exact push takes the residual along"),
    };
}

std::vector<Key> comm_keys(Config& c) {
    auto& comm = c.comm;
    return {
        key("comm.transport", comm.transport, one_of({"auto", "inproc", "tcp"}), run,
            "auto: inproc without a role"),
        key("comm.listen", comm.listen, address(0), run, "port 0: any free one"),
        key("comm.servers", comm.servers,
            list_of(address(1), "a list of HOST:PORT or [IPV6]:PORT, ports from 1 to 65535"), run,
            ""),
        key("comm.interface", comm.interface, text(true), run, "network interface"),
        key("comm.timeout", comm.timeout, duration(Duration(1)), run, ""),
        key("comm.lease", comm.lease, automatic(duration(std::chrono::milliseconds(10))), run,
            "who gives no sign of life for so long is lost; auto: 10s, or half of comm.timeout"),
        key("comm.tls.cert", comm.tls.cert, maybe_file(), run, "file"),
        key("comm.tls.key", comm.tls.key, maybe_file(), run, "file"),
        key("comm.tls.ca", comm.tls.ca, maybe_file(), run, "file"),
        key("comm.secret_file", comm.secret_file, text(true), run, ""),
        key("comm.emulate.bandwidth", comm.emulate.bandwidth, maybe(bandwidth()), run,
            "of every link"),
        key("comm.emulate.latency", comm.emulate.latency, maybe(duration(Duration(0))), run,
            "of every link"),
        key("comm.emulate.step_time", comm.emulate.step_time, maybe(duration(Duration(0))), run,
            "of forward and backward"),
    };
}

std::vector<Key> output_keys(Config& c) {
    return {
        key("checkpoint.dir", c.checkpoint.dir, text(false), run, "NAME: the config's"),
        key("checkpoint.every_epochs", c.checkpoint.every_epochs, integer(0), run, "0: none"),
        key("checkpoint.every_steps", c.checkpoint.every_steps, long_integer(0), run, "0: none"),
        key("checkpoint.keep", c.checkpoint.keep, integer(1), run, "besides latest and best"),
        key("checkpoint.resume", c.checkpoint.resume, text(false), run, "auto | never | a path"),
        key("log.dir", c.log.dir, text(false), run, "NAME: the config's"),
        key("log.every_steps", c.log.every_steps, integer(1), run, ""),
        key("log.tensorboard", c.log.tensorboard, boolean(), run, ""),
    };
}

}  // namespace

std::vector<Key> keys_of(Config& config) {
    std::vector<Key> keys = run_and_model_keys(config);
    append(keys, data_keys(config));
    append(keys, training_keys(config));
    append(keys, distributed_keys(config));
    append(keys, comm_keys(config));
    append(keys, output_keys(config));
    return keys;
}

}  // namespace trainer
