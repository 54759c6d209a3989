// Checkpoints under every fault that a disk and a kill can cause, each made for real.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>

#include "engine/checkpoint.h"
#include "tests/error_of.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
  protected:
    CheckpointTest() {
        std::string pattern = (fs::temp_directory_path() / "checkpoint_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        root_ = pattern;
        dir_ = root_ / "runs" / "one";
    }
    ~CheckpointTest() override { fs::remove_all(root_); }

    CheckpointStore open(int keep = 3) {
        return CheckpointStore(dir_, keep,
                               [this](const std::string& text) { warnings_.push_back(text); });
    }

    /// Contents of step `step`: all weights equal to it.
    void save(CheckpointStore& store, int64_t step, bool best = false) {
        std::fill(values_.begin(), values_.end(), static_cast<float>(step));
        CheckpointContents contents;
        contents.model.push_back({"w", "F32", {1000}, std::as_bytes(std::span(values_))});
        contents.state.push_back({"momentum", "F32", {1000}, std::as_bytes(std::span(values_))});
        contents.metadata = {{"step", std::to_string(step)}};
        store.save(step, contents, best);
    }

    static float first_weight(const Checkpoint& checkpoint) {
        std::vector<float> values(1000);
        checkpoint.model.read("w", {1000}, std::span<float>(values));
        return values[0];
    }

    static void flip_bit(const fs::path& path, int64_t from_end) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(-from_end, std::ios::end);
        const int byte = file.get();
        file.seekp(-from_end, std::ios::end);
        file.put(static_cast<char>(byte ^ 1));
    }

    std::vector<std::string> names() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(dir_))
            names.push_back(entry.path().filename().string());
        std::sort(names.begin(), names.end());
        return names;
    }

    fs::path root_, dir_;
    std::vector<float> values_ = std::vector<float>(1000);
    std::vector<std::string> warnings_;
};

TEST_F(CheckpointTest, SavedAndFoundAgain) {
    auto store = open();
    EXPECT_FALSE(store.newest());
    save(store, 0);
    save(store, 7);
    const auto newest = store.newest();
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, 7);
    EXPECT_EQ(first_weight(*newest), 7);
    EXPECT_EQ(newest->path(), dir_ / "step-7");
    EXPECT_EQ(fs::read_symlink(dir_ / "latest"), "step-7");
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-0", "step-7"}));
    EXPECT_EQ(Checkpoint::open(dir_ / "latest").step, 7);
    EXPECT_TRUE(warnings_.empty());
}

TEST_F(CheckpointTest, RotationKeepsTheNewestTheLatestAndTheBest) {
    auto store = open(2);
    for (int64_t step : {1, 2, 3, 10, 20, 100})
        save(store, step, step == 2);
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{2, 20, 100}));
    EXPECT_EQ(first_weight(Checkpoint::open(dir_ / "best")), 2);
    save(store, 101, true);
    EXPECT_EQ(store.steps(), (std::vector<int64_t>{100, 101}));
    EXPECT_EQ(fs::read_symlink(dir_ / "best"), "step-101");
}

TEST_F(CheckpointTest, TheSameStepAgainReplacesIt) {
    auto store = open();
    save(store, 5);
    flip_bit(dir_ / "step-5" / "model.safetensors", 1);
    save(store, 5);
    EXPECT_EQ(first_weight(*store.newest()), 5);
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-5"}));
}

TEST_F(CheckpointTest, ATruncatedOneIsNamedAndTheOneBeforeUsed) {
    auto store = open();
    for (int64_t step : {1, 2, 3})
        save(store, step);
    fs::resize_file(dir_ / "step-3" / "state.safetensors", 1234);
    EXPECT_EQ(store.newest()->step, 2);
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_NE(warnings_[0].find("step-3/state.safetensors"), std::string::npos) << warnings_[0];
    EXPECT_NE(warnings_[0].find("cut short"), std::string::npos) << warnings_[0];
}

TEST_F(CheckpointTest, AFlippedBitIsNamedAndTheOneBeforeUsed) {
    for (const char* file : {"model.safetensors", "state.safetensors"}) {
        fs::remove_all(dir_);
        warnings_.clear();
        auto store = open();
        for (int64_t step : {1, 2, 3})
            save(store, step);
        flip_bit(dir_ / "step-3" / file, 100);
        EXPECT_EQ(store.newest()->step, 2);
        ASSERT_EQ(warnings_.size(), 1u);
        EXPECT_NE(warnings_[0].find(std::string("step-3/") + file + "': damaged"),
                  std::string::npos)
            << warnings_[0];
    }
}

TEST_F(CheckpointTest, AFileThatIsMissingIsNamed) {
    auto store = open();
    save(store, 1);
    save(store, 2);
    fs::remove(dir_ / "step-2" / "model.safetensors");
    EXPECT_EQ(store.newest()->step, 1);
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_NE(warnings_[0].find("step-2/model.safetensors"), std::string::npos) << warnings_[0];
}

TEST_F(CheckpointTest, AllDamagedIsAnError) {
    auto store = open();
    save(store, 1);
    flip_bit(dir_ / "step-1" / "state.safetensors", 1);
    const std::string message = error_of([&] { store.newest(); });
    EXPECT_NE(message.find("checkpoint.resume=never"), std::string::npos) << message;
}

TEST_F(CheckpointTest, LatestMayPointAtAnOlderOne) {
    auto store = open();
    for (int64_t step : {1, 2, 3})
        save(store, step);
    fs::remove(dir_ / "latest");
    EXPECT_EQ(store.newest()->step, 3);  // killed before the link was made
    fs::create_directory_symlink("step-2", dir_ / "latest");
    EXPECT_EQ(store.newest()->step, 2);
    // Going on from there, step 3 comes again.
    save(store, 3);
    EXPECT_EQ(fs::read_symlink(dir_ / "latest"), "step-3");
}

TEST_F(CheckpointTest, LeftoversOfAKilledWriteAreRemoved) {
    {
        auto store = open();
        save(store, 1);
    }
    fs::create_directory(dir_ / ".writing-step-2");
    std::ofstream(dir_ / ".writing-step-2" / "model.safetensors") << "half";
    fs::create_directory(dir_ / ".removing-step-0");
    fs::create_directory_symlink("step-2", dir_ / ".linking-latest");
    std::ofstream(dir_ / "notes.txt") << "the user's";
    auto store = open();
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "notes.txt", "step-1"}));
    EXPECT_EQ(store.newest()->step, 1);
}

TEST_F(CheckpointTest, KilledWhileWritingLosesNothing) {
    {
        auto store = open();
        save(store, 1);
    }
    for (int attempt = 0; attempt < 20; ++attempt) {
        const pid_t child = fork();
        if (child == 0) {
            auto store = open();
            for (int64_t step = 2;; ++step)
                save(store, step, step % 3 == 0);
        }
        usleep(static_cast<useconds_t>(3000 + 1700 * attempt));
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        auto store = open();
        for (int64_t step : store.steps())
            EXPECT_EQ(first_weight(Checkpoint::open(dir_ / ("step-" + std::to_string(step)))),
                      static_cast<float>(step));
        ASSERT_TRUE(store.newest());
        EXPECT_TRUE(warnings_.empty()) << warnings_[0];
        for (const std::string& name : names())
            EXPECT_FALSE(name.starts_with('.')) << name;
    }
}

TEST_F(CheckpointTest, OneRunADirectory) {
    auto store = open();
    const std::string message = error_of([&] { open(); });
    EXPECT_NE(message.find("another run is writing to"), std::string::npos) << message;
}

TEST_F(CheckpointTest, ADirectoryThatCannotBeWritten) {
    // Root may write anywhere, but not below a file, nor make directories in /proc.
    std::ofstream(root_ / "file") << "x";
    for (const fs::path& path : {root_ / "file" / "runs", fs::path("/proc/runs")}) {
        dir_ = path;
        const std::string message = error_of([&] { open(); });
        EXPECT_NE(message.find("checkpoint.dir: '" + path.string() + "' cannot be written ("),
                  std::string::npos)
            << message;
    }
}

TEST_F(CheckpointTest, SetAside) {
    auto store = open();
    EXPECT_FALSE(store.set_aside());
    save(store, 1, true);
    save(store, 2);
    EXPECT_EQ(store.set_aside(), dir_ / "previous-1");
    EXPECT_TRUE(store.steps().empty());
    EXPECT_EQ(Checkpoint::open(dir_ / "previous-1" / "best").step, 1);
    save(store, 1);
    EXPECT_EQ(store.set_aside(), dir_ / "previous-2");
    EXPECT_EQ(Checkpoint::open(dir_ / "previous-2" / "latest").step, 1);
}

void expect_out_of_space(const std::string& message) {
    EXPECT_NE(message.find("no space for checkpoint"), std::string::npos) << message;
    // Twice 4000 bytes of values, and the headers of both files.
    const size_t at = message.find("): ");
    ASSERT_NE(at, std::string::npos) << message;
    const long needed = std::stol(message.substr(at + 3));
    EXPECT_GT(needed, 8000) << message;
    EXPECT_LT(needed, 8600) << message;
}

TEST_F(CheckpointTest, ALimitOnFileSizesLosesNothing) {
    auto store = open();
    save(store, 1);
    signal(SIGXFSZ, SIG_IGN);
    rlimit before{}, tight{};
    getrlimit(RLIMIT_FSIZE, &before);
    tight = before;
    tight.rlim_cur = 2000;
    setrlimit(RLIMIT_FSIZE, &tight);
    const std::string message = error_of([&] { save(store, 2); });
    setrlimit(RLIMIT_FSIZE, &before);
    expect_out_of_space(message);
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-1"}));
    EXPECT_EQ(first_weight(*store.newest()), 1);
    save(store, 2);
    EXPECT_EQ(store.newest()->step, 2);
}

TEST_F(CheckpointTest, AFullDiskLosesNothing) {
    fs::create_directories(dir_);
    if (mount("none", dir_.c_str(), "tmpfs", 0, "size=48k") != 0)
        GTEST_SKIP() << "no right to mount a small file system";
    {
        auto store = open();
        std::string message = "no error";
        int64_t step = 0;
        while (message == "no error" && step < 100) {
            ++step;
            message = error_of([&] { save(store, step, step == 1); });
        }
        EXPECT_GE(step, 2);
        expect_out_of_space(message);
        EXPECT_NE(message.find("are free"), std::string::npos) << message;
        EXPECT_EQ(store.newest()->step, step - 1);
        EXPECT_EQ(first_weight(*store.newest()), static_cast<float>(step - 1));
        EXPECT_EQ(fs::read_symlink(dir_ / "best"), "step-1");
        for (const std::string& name : names())
            EXPECT_FALSE(name.starts_with('.')) << name;
        EXPECT_TRUE(warnings_.empty());
    }
    EXPECT_EQ(umount(dir_.c_str()), 0);
}

TEST_F(CheckpointTest, ArenasThereAndBack) {
    TensorTable table;
    table.add("conv1.weight", {2, 1, 3, 3}, true, {});
    table.add("fc.bias", {5}, false, {});
    for (DType type : {DType::f32, DType::f64}) {
        const ParameterArena from(table, type, {"weights", "momentum"});
        const ParameterArena to(table, type, {"weights", "momentum"});
        const auto number = [](int64_t i) { return 1.0 / static_cast<double>(3 + i); };
        for (int64_t i = 0; i < table.size(); ++i) {
            if (type == DType::f64) {
                from.slab<double>("weights")[static_cast<size_t>(i)] = number(i);
                from.slab<double>("momentum")[static_cast<size_t>(i)] = -number(i);
            } else {
                from.slab<float>("weights")[static_cast<size_t>(i)] = static_cast<float>(number(i));
                from.slab<float>("momentum")[static_cast<size_t>(i)] =
                    static_cast<float>(-number(i));
            }
        }
        fs::create_directories(dir_);
        std::vector<SafetensorsItem> items;
        append_tensors(items, from, "weights");
        append_slab(items, from, "momentum", "momentum");
        write_safetensors(dir_ / "file", items, {});
        const SafetensorsFile file(dir_ / "file");
        EXPECT_EQ(file.find("conv1.weight")->shape, (Shape{2, 1, 3, 3}));
        read_tensors(file, to, "weights");
        read_slab(file, to, "momentum", "momentum");
        const size_t bytes = static_cast<size_t>(table.size()) * size_of(type);
        for (const char* name : {"weights", "momentum"})
            EXPECT_EQ(std::memcmp(from.address(name), to.address(name), bytes), 0) << name;
    }
}

}  // namespace
}  // namespace trainer
