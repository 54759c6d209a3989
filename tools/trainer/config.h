// Config: everything a run depends on, filled from YAML and from --set.
//
// The struct mirrors the tree of keys that users write, with every default. config_keys.cpp has
// one row a key, from which reading, printing, messages and --help are made.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

/// Durations of the config, written `30s`, `500ms`, `50us`, `2m`.
using Duration = std::chrono::nanoseconds;

/// Keys whose value is one of a few words hold that word; config_keys.cpp lists the words. An
/// empty optional is `auto`, but for comm.emulate, where it is a key that isn't there.
struct Config {
    uint64_t seed = 1;
    std::string device = "auto";     ///< auto | cpu | cuda | cuda:N
    std::string precision = "fp32";  ///< fp32 | bf16
    bool deterministic = true;
    std::optional<int> threads;  ///< computing threads of one worker

    struct Cpu {
        bool winograd = true;  ///< fp32 convolutions of 3x3 by Winograd's F(4x4, 3x3)
    } cpu;

    struct Worker {
        int gpus = 1;  ///< that compute its batch together, from `device` on
    } worker;

    struct Cuda {
        bool tf32 = false;        ///< fp32 on tensor cores, products of 10-bit mantissas
        bool graphs = true;       ///< records steps as CUDA graphs
        bool keep_images = true;  ///< those of data sets in memory, augmented there
    } cuda;

    struct Model {
        std::string name;  ///< required
        int num_classes = 10;
        std::string init;  ///< a model.safetensors to start from; empty: drawn from the seed
        std::vector<std::string> freeze;  ///< tensors whose names start so are held still
        bool zero_last_gamma = false;     ///< ResNets: blocks begin as the identity
    } model;

    struct Data {
        std::string dataset = "cifar10";
        std::string dir;      ///< required, but for synthetic
        int batch_size = 32;  ///< of one worker
        bool shuffle = true;
        bool drop_last = true;
        /// Of each channel, of pixels in [0, 1]; one number stands for every channel.
        std::optional<std::vector<double>> mean, std;
        struct Augment {
            int pad_crop = 4;
            bool flip = true;
            int cutout = 0;
            // Of photographs (imagenet and folder), besides flip.
            bool random_crop = true;                      ///< else the middle, as in evaluation
            std::vector<double> scale = {0.08, 1};        ///< of a crop's area
            std::vector<double> ratio = {0.75, 4.0 / 3};  ///< width by height
            std::vector<double> color_jitter;             ///< brightness, contrast, saturation, hue
        } augment;
        // Of photographs.
        int image_size = 224;       ///< side of the network's input
        std::optional<int> resize;  ///< shorter side in evaluation; auto: 256 for each 224
        bool exif_orientation = true;
        std::string on_corrupt = "fail";  ///< fail | skip
        std::string val_labels;           ///< of a flat val/; empty: where it usually is
        double split = 0;                 ///< share held out for testing, without val/
        std::optional<int> workers;       ///< decoding threads
    } data;

    struct Train {
        int epochs = 160;
        int eval_every_epochs = 1;  ///< 0: at the end only
        int64_t max_steps = 0;      ///< global steps to stop after; 0: no limit
        double label_smoothing = 0;
        double clip_grad_norm = 0;  ///< 0: no clipping
    } train;

    struct Optim {
        std::string name = "sgd";  ///< sgd | nesterov | lars
        double lr = 0.1;
        double momentum = 0.9;
        double weight_decay = 1.0e-4;
        bool decay_bn_bias = true;
        struct Schedule {
            std::string type = "step";  ///< constant | step | poly | cosine | onecycle
            std::vector<double> milestones = {80, 120};  ///< epochs
            double gamma = 0.1;
            double power = 2;
            double final_lr = 0;
            double warmup_epochs = 0;
        } schedule;
    } optim;

    struct Distributed {
        std::string variant = "ssgd";
        std::string topology = "ps";  ///< ps | allreduce
        int workers = 1;
        int servers = 1;
        int64_t warmup_steps = 0;  ///< T_w
        int delay_steps = 5;       ///< k
        int staleness = 3;         ///< s of ssp
        int local_steps = 8;       ///< H of localsgd
        int max_inflight = 2;
        int backup_workers = 0;                ///< b: a step closes with the first N - b pushes
        std::string on_worker_loss = "abort";  ///< abort | continue
        bool scale_lr_on_loss = false;
        struct Local {
            std::string rule = "auto";  ///< auto | adopt | sgd | dc | glu | momentum
            std::optional<double> lr;
            double alpha = 2.0;
            double beta = 0.5;
            double lambda_dc = 0.04;
            bool seeded = false;
        } local;
        struct DelayCompensation {
            double lambda = 0.04;
            double lambda0 = 2.0;
            double m = 0.95;
        } dc;
        struct Codec {
            std::string name = "auto";  ///< auto | raw | fp16 | bf16 | 2bit
            std::optional<double> threshold;
            std::optional<int> exact_every;  ///< 0: never
            bool flush_on_exact = false;
        } codec;
    } distributed;

    struct Comm {
        std::string transport = "auto";  ///< auto | inproc | tcp
        std::string listen = "127.0.0.1:0";
        std::vector<std::string> servers;  ///< host:port each
        std::string interface;
        Duration timeout = std::chrono::seconds(30);
        /// Without a sign of life; nullopt: 10 s, or half of timeout where that is less.
        std::optional<Duration> lease;
        struct Tls {
            std::string cert, key, ca;  ///< files; empty: not there
        } tls;
        std::string secret_file;
        struct Emulate {
            std::optional<int64_t> bandwidth;  ///< bits a second
            std::optional<Duration> latency;
            std::optional<Duration> step_time;
        } emulate;
    } comm;

    struct Checkpoint {
        std::string dir = "runs/NAME";  ///< NAME replaced by Config::name
        int every_epochs = 1;           ///< 0: none but the last
        int64_t every_steps = 0;        ///< 0: none
        int keep = 3;                   ///< newest ones, besides latest and best
        std::string resume = "auto";    ///< auto | never | a path
    } checkpoint;

    struct Log {
        std::string dir = "runs/NAME";
        int every_steps = 50;
        bool tensorboard = false;
    } log;

    // What isn't a key.
    std::string name;                 ///< stem of the config's file name, e.g. "resnet20"
    std::string file;                 ///< where it was found, e.g. "configs/resnet20.yaml"
    bool insecure = false;            ///< --insecure: listen to others without TLS or a secret
    bool profile = false;             ///< --profile: time every operation, and say so at the end
    std::optional<int> metrics_port;  ///< --metrics-port: serve numbers to Prometheus; 0: any port
};

/// The file that `name` means: as given, else in configs/ here, else in the configs/ beside or
/// above this program. Throws UsageError that names the nearest config where there is none.
std::string find_config(const std::string& name);

/// The config in `file` (a path), changed by each of `overrides` ("key=value", as of --set) in
/// turn, and checked. Throws UsageError, one line, for whatever is wrong with it.
Config load_config(const std::string& file, const std::vector<std::string>& overrides = {});

/// The same of a text; `file` is its name in messages, and its stem the config's name.
Config parse_config(const std::string& text, const std::string& file,
                    const std::vector<std::string>& overrides = {});

/// The config in force, as YAML that load_config reads back to the same config.
std::string print_config(const Config& config);

/// A key of the config and its value, both as one writes them.
using ConfigEntry = std::pair<std::string, std::string>;

/// Every key in the order of print_config; keys that aren't there (comm.emulate's) are left out.
std::vector<ConfigEntry> flat(const Config& config);

/// Those of flat() that decide what a run computes: two runs of the same entries compute the
/// same. What a resume or a hello compares.
std::vector<ConfigEntry> flat_result(const Config& config);

/// One line a key for --help: the key, its default and what it takes.
std::string describe_keys();

}  // namespace trainer
