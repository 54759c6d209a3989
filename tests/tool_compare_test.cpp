// compare: it runs configs side by side on emulated links, and its table has what the clock says.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/error.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

class CompareTest : public testing::Test {
  protected:
    CompareTest() {
        std::string pattern = (fs::temp_directory_path() / "compare_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        root_ = pattern;
        // 30,730 weights are 122,920 bytes: 0.1 s on a link of 1,229,200 bytes a second.
        std::ofstream(root_ / "tiny.yaml")
            << "model: {name: linear}\n"
            << "data: {dataset: synthetic, workers: 1, batch_size: 8}\n"
            << "train: {epochs: 1, max_steps: 20, eval_every_epochs: 0}\n"
            << "threads: 1\n"
            << "optim: {lr: 0.01, schedule: {type: constant}}\n"
            << "distributed: {workers: 2}\n"
            << "checkpoint: {every_epochs: 0}\n"
            << "comm: {emulate: {bandwidth: 9833600bit, latency: 1ms, step_time: 120ms}}\n";
    }
    ~CompareTest() override { fs::remove_all(root_); }

    /// Of a shell command line behind the name of the program; its output goes to files.
    int compare(const std::string& arguments) {
        const std::string command = "cd " + root_.string() +
                                    "; exec >table 2>errors; " TRAINER_BINARY_DIR
                                    "/tools/log/compare --trainer " TRAINER_BINARY_DIR
                                    "/tools/trainer/trainer " +
                                    arguments;
        const int status = std::system(command.c_str());
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    std::string table() const { return contents(root_ / "table"); }
    std::string errors() const { return contents(root_ / "errors"); }

    fs::path root_;
};

TEST_F(CompareTest, TheDelayedFamilyHidesWhatSSgdExposes) {
    ASSERT_EQ(compare("--json 'waits: tiny.yaml' "
                      "'tiny.yaml distributed.variant=odsgd'"),
              0)
        << errors();
    const Json runs = Json::parse(table());
    ASSERT_EQ(runs.size(), 2u);
    EXPECT_EQ(runs[0]["run"], "waits");
    EXPECT_EQ(runs[1]["run"], "tiny variant=odsgd");
    EXPECT_EQ(runs[1]["variant"], "odsgd");
    EXPECT_EQ(runs[0]["steps"], 20);
    EXPECT_EQ(runs[0]["push_bytes_per_step"], 2 * 122920);
    EXPECT_EQ(runs[0]["pull_bytes_per_step"], 2 * 122920);
    for (int worker = 0; worker < 2; ++worker) {
        // S-SGD: computes 120 ms, then pushes (100 ms and the latency) and pulls as long.
        const Json& waits = runs[0]["comm"][static_cast<size_t>(worker)];
        EXPECT_NEAR(waits["compute_s"], 0.120, 0.020);
        EXPECT_NEAR(waits["exposed_s"].get<double>() + waits["wait_s"].get<double>(), 0.202, 0.030);
        EXPECT_LT(waits["hidden_s"], 0.010);
        // OD-SGD: a step waits 81 ms for a pull that began with the push; meanwhile the next push
        // travels, so the step after that waits for nothing.
        const Json& delayed = runs[1]["comm"][static_cast<size_t>(worker)];
        EXPECT_NEAR(delayed["compute_s"], 0.120, 0.020);
        EXPECT_NEAR(delayed["exposed_s"].get<double>() + delayed["wait_s"].get<double>(), 0.0405,
                    0.020);
        EXPECT_NEAR(delayed["hidden_s"], 0.120, 0.030);
    }
    const double faster =
        runs[1]["images_per_s"].get<double>() / runs[0]["images_per_s"].get<double>();
    EXPECT_NEAR(faster, 0.322 / 0.1605, 0.2);
}

TEST_F(CompareTest, TheTableIsForPeopleAndForMarkdown) {
    const std::string quick = "tiny.yaml --set comm.emulate={} --set train.max_steps=4 ";
    ASSERT_EQ(compare(quick), 0) << errors();
    EXPECT_TRUE(table().starts_with("run   variant  workers  ")) << table();
    ASSERT_EQ(compare("--markdown " + quick), 0) << errors();  // which has nothing left to run
    EXPECT_TRUE(table().starts_with("| run  | variant | workers |")) << table();
    EXPECT_NE(table().find("|\n|---|---|---:|"), std::string::npos) << table();
    EXPECT_NE(table().find("| tiny | ssgd    |       2 |"), std::string::npos) << table();
    ASSERT_EQ(compare("'..: runs/compare/tiny'"), 0) << errors();  // only reads
    EXPECT_NE(table().find("\n..   ssgd "), std::string::npos) << table();
    ASSERT_EQ(compare("runs/compare/tiny"), 0) << errors();
    EXPECT_NE(table().find("\ntiny  ssgd "), std::string::npos) << table();
}

TEST_F(CompareTest, OutputThatIsLostIsAFailure) {
    ASSERT_EQ(compare("tiny.yaml --set comm.emulate={} --set train.max_steps=2"), 0) << errors();
    const std::string folder = TRAINER_BINARY_DIR "/tools/";
    for (const auto& [program, arguments] :
         {std::pair("log/compare", "runs/compare/tiny"),
          {"log/compare", "--help"},
          {"log/parse_log", "--csv runs/compare/tiny"},
          {"trainer/trainer", "--help"},
          {"trainer/trainer", "models"},
          {"trainer/trainer", "--config tiny.yaml --print-config"}}) {
        const std::string name = fs::path(program).filename();
        const std::string command = "cd " + root_.string() + "; " + folder + program + " " +
                                    arguments + " >/dev/full 2>errors";
        EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1) << command;
        EXPECT_TRUE(errors().starts_with(name + ": error: standard output could not be written"))
            << command << errors();
    }
}

TEST_F(CompareTest, ARunThatFailsIsToldAndLeftOut) {
    const std::string quick =
        "--runs none --runs runs --set comm.emulate={} --set train.max_steps=2";
    EXPECT_EQ(compare(quick + " tiny.yaml 'bad: tiny.yaml data.batch_size=8192'"), 1);
    EXPECT_NE(errors().find("compare: bad failed (exit code 2, above: why); left out"),
              std::string::npos)
        << errors();
    EXPECT_NE(table().find("\ntiny  ssgd "), std::string::npos) << table();
    EXPECT_EQ(table().find("bad"), std::string::npos);
}

TEST_F(CompareTest, StoppedItGoesOn) {
    EXPECT_EQ(compare("tiny.yaml --set log.every_steps=1 & "
                      "until grep -q '\"step\":2,' runs/compare/tiny/metrics.jsonl; "
                      "do sleep 0.1; done; kill $!; wait $!"),
              75);
    EXPECT_NE(errors().find("compare: stopped; the same command goes on"), std::string::npos)
        << errors();
    ASSERT_EQ(compare("tiny.yaml"), 0) << errors();
    EXPECT_NE(errors().find("resume       runs/compare/tiny/step-"), std::string::npos) << errors();
    EXPECT_NE(table().find("\ntiny  ssgd "), std::string::npos) << table();
}

TEST_F(CompareTest, WhatItCannotDoIsSaid) {
    EXPECT_EQ(compare("nothing"), 2);
    EXPECT_EQ(errors(),
              "compare: error: 'nothing' is no run, and no config (whose name ends in .yaml)\n");
    EXPECT_EQ(compare("tiny.yaml tiny.yaml"), 2);
    EXPECT_EQ(errors(),
              "compare: error: 'tiny.yaml' would go where another entry goes, runs/compare/tiny; "
              "give it a label of its own: 'LABEL: CONFIG'\n");
    EXPECT_EQ(compare("tiny.yaml 'worse: tiny.yaml optim.lrr=1'"), 2);  // before any has run
    EXPECT_NE(errors().find("optim.lrr: unknown key"), std::string::npos) << errors();
    EXPECT_NE(errors().find("compare: error: 'worse' is no config to run"), std::string::npos);
    EXPECT_FALSE(fs::exists(root_ / "runs"));
    EXPECT_EQ(compare("tiny.yaml --set log.dir=x"), 2);
    EXPECT_EQ(errors(),
              "compare: error: --set: 'log.dir=x': each run has a folder of its own below "
              "--runs\n");
    EXPECT_EQ(compare("'tiny.yaml optim.lr'"), 2);
    EXPECT_EQ(errors(), "compare: error: 'tiny.yaml optim.lr': 'optim.lr' is not KEY=VALUE\n");
    EXPECT_EQ(compare("errors"), 2);  // a file, of no run
    EXPECT_NE(errors().find("no record of a run is in it"), std::string::npos) << errors();
    EXPECT_EQ(compare("--trainer ./none tiny.yaml"), 2);
    EXPECT_NE(errors().find("'./none' cannot be started: No such file"), std::string::npos);
}

}  // namespace
}  // namespace trainer
