// How fast photographs become samples: loader speed|memory|first_batch
//
//   loader speed FOLDER [--seconds 2] [--rounds 5] [--python PYTHON]
//     images/s of one thread for decode, RandomResizedCrop to 224, flip and normalise, out of
//     memory: ours, OpenCV's imdecode with cv::resize, and, where PYTHON has them, torchvision with
//     Pillow (tools/bench/peer_torchvision.py). Measured in turn, round by round; medians. Seconds
//     are those that the thread had a processor, so that other programs count less.
//   loader memory FOLDER [--epochs 10] [--threads 2]
//     resident memory after each epoch of the loader over the folder.
//   loader first_batch DIRECTORY [--images 1000000]
//     seconds from opening shards of so many tiny images to the first batch; they are made in
//     DIRECTORY where they are not there.
#include "data/loader.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>

#include "data/folder.h"
#include "data/jpeg.h"
#include "data/photo_source.h"
#include "data/shards.h"
#include "engine/error.h"

#ifdef TRAINER_BENCH_OPENCV
#include <opencv2/core/utility.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#endif

namespace trainer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t size = 224;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Time that this thread has had a processor.
double processor_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Files in memory.
class MemoryStore : public ImageStore {
  public:
    explicit MemoryStore(const ImageStore& store) : files_(static_cast<size_t>(store.count())) {
        for (size_t i = 0; i < files_.size(); ++i)
            store.read(static_cast<int64_t>(i), files_[i]);
    }
    int64_t count() const override { return std::ssize(files_); }
    std::string name(int64_t index) const override { return std::to_string(index); }
    void read(int64_t index, std::vector<std::byte>& bytes) const override { bytes = file(index); }
    void read_ahead(std::span<const int32_t>) const override {}
    const std::vector<std::byte>& file(int64_t index) const {
        return files_[static_cast<size_t>(index)];
    }

  private:
    std::vector<std::vector<std::byte>> files_;
};

PhotoAugmentOptions recipe() {
    return {.crop = true, .flip = true};
}

#ifdef TRAINER_BENCH_OPENCV

/// The same with OpenCV: all of the image decoded, then the crop resized, in memory that it keeps.
class OpenCvPeer {
  public:
    void load(const std::vector<std::byte>& file, int64_t epoch, int64_t index, float* out) {
        const cv::Mat bytes(1, static_cast<int>(file.size()), CV_8UC1,
                            const_cast<std::byte*>(file.data()));
        cv::imdecode(bytes, cv::IMREAD_COLOR, &image_);
        const PhotoTransform transform =
            draw_photo_transform(recipe(), image_.rows, image_.cols, 1, epoch, index);
        const Box& crop = transform.crop;
        const cv::Rect box(static_cast<int>(crop.left), static_cast<int>(crop.top),
                           static_cast<int>(crop.width), static_cast<int>(crop.height));
        cv::resize(image_(box), resized_, {size, size}, 0, 0, cv::INTER_LINEAR);
        if (transform.flip)
            cv::flip(resized_, resized_, 1);
        cv::split(resized_, planes_);
        constexpr double mean[] = {0.485, 0.456, 0.406}, deviation[] = {0.229, 0.224, 0.225};
        for (size_t c = 0; c < 3; ++c) {
            cv::Mat plane(size, size, CV_32FC1, out + c * size * size);
            planes_[2 - c].convertTo(plane, CV_32F, 1 / (255 * deviation[c]),
                                     -mean[c] / deviation[c]);
        }
    }

  private:
    cv::Mat image_, resized_;
    std::vector<cv::Mat> planes_;
};

#endif

/// Images/s of `work` (epoch, index) over the files again and again.
double speed_of(int64_t count, double seconds, int64_t& epoch,
                const std::function<void(int64_t, int64_t)>& work) {
    const double start = processor_seconds();
    int64_t done = 0;
    while (true) {
        for (int64_t i = 0; i < count; ++i, ++done)
            if (work(epoch, i); processor_seconds() - start >= seconds)
                return static_cast<double>(done + 1) / (processor_seconds() - start);
        ++epoch;
    }
}

/// What tools/bench/peer_torchvision.py says; 0: nothing.
double torchvision_speed(const std::string& python, const std::string& folder, double seconds) {
    const std::string command = "'" + python +
                                "' '" TRAINER_BENCH_FOLDER "/peer_torchvision.py' '" + folder +
                                "' " + std::to_string(seconds);
    FILE* pipe = popen(command.c_str(), "r");
    double speed = 0;
    if (std::fscanf(pipe, "%lf", &speed) != 1)
        speed = 0;
    pclose(pipe);
    return speed;
}

void measure_speed(const std::string& folder, double seconds, int rounds,
                   const std::string& python) {
    Dataset dataset = load_dataset({.dataset = "imagenet", .dir = folder});
    const auto memory = std::make_shared<MemoryStore>(*dataset.photos.store);
    dataset.photos.store = memory;
    const PhotoSource source(dataset, recipe(), default_normalization("imagenet"), 1);
    std::vector<float> sample(3 * size * size);
    int32_t label = 0;
    std::map<std::string, std::vector<double>> speeds;
    int64_t epochs[2] = {};
#ifdef TRAINER_BENCH_OPENCV
    OpenCvPeer opencv;
#endif
    for (int round = 0; round <= rounds; ++round) {  // the first is to warm up
        std::map<std::string, double> now;
        now["ours"] = speed_of(dataset.count, seconds, epochs[0], [&](int64_t epoch, int64_t i) {
            source.load(epoch, i, sample.data(), label);
        });
#ifdef TRAINER_BENCH_OPENCV
        cv::setNumThreads(1);
        now["opencv"] = speed_of(dataset.count, seconds, epochs[1], [&](int64_t epoch, int64_t i) {
            opencv.load(memory->file(i), epoch, i, sample.data());
        });
#endif
        if (!python.empty())
            now["torchvision"] = torchvision_speed(python, folder, seconds);
        for (const auto& [name, value] : now)
            if (round > 0 && value > 0)
                speeds[name].push_back(value);
    }
    double ours = 0;
    for (auto& [name, values] : speeds) {
        std::sort(values.begin(), values.end());
        const double median = values[values.size() / 2];
        if (name == "ours")
            ours = median;
        std::printf("%-12s %7.0f images/s (median of %zu, %.0f to %.0f)\n", name.c_str(), median,
                    values.size(), values.front(), values.back());
    }
    for (const auto& [name, values] : speeds)
        if (name != "ours")
            std::printf("ours / %s: %.2f\n", name.c_str(), ours / values[values.size() / 2]);
}

int64_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (word == "VmRSS:") {
            int64_t kib = 0;
            status >> kib;
            return kib;
        }
    return 0;
}

LoaderOptions loader_options(int64_t batch, int threads) {
    LoaderOptions options;
    options.batch = batch;
    options.threads = threads;
    options.augment.photo = recipe();
    options.normalization = default_normalization("imagenet");
    return options;
}

void measure_memory(const std::string& folder, int epochs, int threads) {
    const Dataset dataset = load_dataset({.dataset = "imagenet", .dir = folder});
    Loader loader(dataset, loader_options(std::min<int64_t>(32, dataset.count), threads));
    loader.start(0);
    for (int epoch = 0; epoch < epochs; ++epoch) {
        for (int64_t step = 0; step < loader.steps_per_epoch(); ++step)
            loader.next();
        std::printf("epoch %d: %.1f MiB resident\n", epoch + 1,
                    static_cast<double>(resident_kib()) / 1024);
    }
}

void make_tiny_shards(const fs::path& directory, int64_t images) {
    fs::create_directories(directory);
    const Image pixel{2, 2, std::vector<uint8_t>(12, 128)};
    const std::vector<std::byte> bytes = encode_jpeg(pixel, 50);
    std::vector<std::string> classes;
    for (int i = 0; i < 1000; ++i)
        classes.push_back("n" + std::to_string(10000000 + i));
    constexpr uint32_t shards = 8;
    int64_t index = 0;
    for (uint32_t shard = 0; shard < shards; ++shard) {
        ShardWriter writer(directory / shard_file_name("train", shard, shards), shard, shards,
                           classes);
        for (; index < images * (shard + 1) / shards; ++index)
            writer.add("n/" + std::to_string(index), bytes,
                       static_cast<uint32_t>(index * 1000 / images), 0);
        writer.finish();
    }
}

void measure_first_batch(const fs::path& directory, int64_t images) {
    if (!has_shards(directory, "train"))
        make_tiny_shards(directory, images);
    for (int round = 0; round < 3; ++round) {
        const auto start = Clock::now();
        const Dataset dataset = load_dataset({.dataset = "imagenet", .dir = directory.string()});
        const double opened = seconds_since(start);
        Loader loader(dataset, loader_options(32, 2));
        loader.start(0);
        loader.next();
        std::printf("%ld images: opened in %.3f s, first batch after %.3f s\n", dataset.count,
                    opened, seconds_since(start));
    }
}

void run(int count, const char* const* arguments) {
    CLI::App app("how fast photographs become samples", "loader");
    app.require_subcommand(1);
    std::string folder, python;
    double seconds = 2;
    int rounds = 5, epochs = 10, threads = 2;
    int64_t images = 1'000'000;
    CLI::App* speed = app.add_subcommand("speed", "images/s of one thread");
    speed->add_option("FOLDER", folder)->required();
    speed->add_option("--seconds", seconds);
    speed->add_option("--rounds", rounds);
    speed->add_option("--python", python);
    CLI::App* memory = app.add_subcommand("memory", "resident memory epoch by epoch");
    memory->add_option("FOLDER", folder)->required();
    memory->add_option("--epochs", epochs);
    memory->add_option("--threads", threads);
    CLI::App* first = app.add_subcommand("first_batch", "time to the first batch");
    first->add_option("DIRECTORY", folder)->required();
    first->add_option("--images", images);
    try {
        app.parse(count, arguments);
    } catch (const CLI::ParseError& error) {
        app.exit(error);
        return;
    }
    if (speed->parsed())
        measure_speed(folder, seconds, rounds, python);
    else if (memory->parsed())
        measure_memory(folder, epochs, threads);
    else
        measure_first_batch(folder, images);
}

}  // namespace
}  // namespace trainer

int main(int count, char** arguments) {
    try {
        trainer::run(count, arguments);
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "loader: error: " << error.what() << "\n";
        return 1;
    }
}
