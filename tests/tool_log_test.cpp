// parse_log: what it reads out of logs, whole and broken ones, and what it tells of them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "tools/log/flat_object.h"
#include "tools/log/follow.h"
#include "tools/log/run.h"
#include "tools/log/summary.h"

namespace trainer::logs {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string header(int start_step, double time) {
    return Json{{"type", "header"},
                {"name", "r"},
                {"time", time},
                {"start_step", start_step},
                {"steps_per_epoch", 100},
                {"global_batch", 8},
                {"config",
                 {{"model", {{"name", "resnet20"}}},
                  {"distributed", {{"variant", "ssgd"}, {"workers", 2}}},
                  {"train", {{"epochs", 4}, {"max_steps", 0}}}}}}
               .dump() +
           "\n";
}

std::string record(const std::string& type, int step, double loss, double top1, double time) {
    return Json{{"type", type},   {"step", step},       {"epoch", (step + 99) / 100},
                {"loss", loss},   {"top1", top1},       {"top5", 1.0},
                {"samples", 800}, {"images_per_s", 80}, {"time", time}}
               .dump() +
           "\n";
}

Run read(const std::string& text, std::optional<double> accuracy = {}, size_t piece = 100000) {
    RunReader reader("r/metrics.jsonl", accuracy);
    for (size_t at = 0; at < text.size(); at += piece)
        reader.feed(std::string_view(text).substr(at, piece));
    reader.finish();
    logs::Run run = reader.run();
    run.label = "r";
    return run;
}

std::vector<int64_t> steps_of(const Series& series) {
    std::vector<int64_t> steps;
    for (const Point& point : series.points())
        steps.push_back(point.step);
    return steps;
}

/// Two epochs, killed in the third, resumed from step 200.
std::string resumed_log() {
    return header(0, 1000) + record("step", 50, 2.0, 0.2, 1010) +
           record("step", 100, 1.5, 0.4, 1020) + record("epoch", 100, 1.7, 0.3, 1020) +
           record("eval", 100, 1.4, 0.5, 1025) + record("step", 150, 1.2, 0.5, 1035) +
           record("step", 200, 1.0, 0.6, 1045) + record("epoch", 200, 1.1, 0.55, 1045) +
           record("eval", 200, 1.0, 0.7, 1050) + record("step", 250, 0.7, 0.7, 1060) +
           record("step", 300, 0.6, 0.8, 1070) + record("eval", 300, 0.6, 0.91, 1075) +
           "{\"type\":\"step\",\"step\":350,\"lo" + "\n" + header(200, 5000) +
           record("step", 250, 0.8, 0.68, 5010) + record("step", 300, 0.65, 0.78, 5020) +
           record("epoch", 300, 0.72, 0.73, 5020) + record("eval", 300, 0.7, 0.85, 5025) +
           record("eval", 400, 0.5, 0.92, 5050);
}

TEST(FlatObject, TellsMembersOfAllKinds) {
    std::string told;
    const auto tell = [&](std::string_view key, const FlatValue& value) {
        told += std::string(key) + "=" +
                (value.is_number ? compact(value.number) : std::string(value.text)) + ";";
    };
    EXPECT_TRUE(read_flat_object(
        R"({"a": -1.5e3, "b\"": "x\"y", "c": {"d": [1, "}"]}, "e": null, "f":true ,"g":0})", tell));
    EXPECT_EQ(told, "a=-1500;b\\\"=x\\\"y;c=;e=;f=;g=0;");
    for (const char* broken : {"", "{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}",
                               "{\"a\":1}x", "{\"a\":\"b", "{\"a\":[1}", "{\"a\":-}", "[1]",
                               "{a:1}", "{\"a\":\"\\", "{\"a\":{\"b\":\"}"})
        EXPECT_FALSE(read_flat_object(broken, [](std::string_view, const FlatValue&) {})) << broken;
}

TEST(ReadRun, AResumeLeavesOneValueAStep) {
    const logs::Run run = read(resumed_log());
    EXPECT_EQ(steps_of(run.step), (std::vector<int64_t>{50, 100, 150, 200, 250, 300}));
    EXPECT_EQ(steps_of(run.epoch), (std::vector<int64_t>{100, 200, 300}));
    EXPECT_EQ(steps_of(run.eval), (std::vector<int64_t>{100, 200, 300, 400}));
    EXPECT_EQ(run.step.points()[4][Field::loss], 0.8) << "the second account of step 250 counts";
    EXPECT_EQ(run.eval.points()[2][Field::top1], 0.85);
    EXPECT_EQ(run.sessions, 2);
    EXPECT_EQ(run.foreign_lines, 1) << "the half line that the killed run left";
    // Time goes on where the curve goes on: at the evaluation after step 200.
    EXPECT_DOUBLE_EQ(run.eval.points()[1].elapsed, 50);
    EXPECT_DOUBLE_EQ(run.step.points()[4].elapsed, 60);
    EXPECT_DOUBLE_EQ(run.elapsed(), 100);
    EXPECT_EQ(run.total_steps, 400);
    EXPECT_DOUBLE_EQ(run.epochs_at(run.step.points()[2]), 1.5);
}

TEST(ReadRun, AnyCutIntoPiecesReadsTheSame) {
    const std::string text = resumed_log();
    const std::string whole = summary_json({read(text, 0.9)}, 0.9);
    for (size_t piece = 1; piece < 200; piece += 7)
        EXPECT_EQ(summary_json({read(text, 0.9, piece)}, 0.9), whole) << piece;
}

TEST(ReadRun, ARepeatedStepWithoutAHeaderCountsOnce) {
    const logs::Run run =
        read(header(0, 1000) + record("step", 50, 2, 0, 1010) + record("step", 100, 1, 0, 1020) +
                 record("eval", 100, 1, 0.95, 1025) + record("step", 50, 3, 0, 2010),
             0.9);
    EXPECT_EQ(steps_of(run.step), std::vector<int64_t>{50});
    EXPECT_EQ(run.step.points()[0][Field::loss], 3);
    EXPECT_TRUE(run.eval.empty());
    EXPECT_FALSE(run.hit) << "what reached the accuracy is void";
    EXPECT_DOUBLE_EQ(run.elapsed(), 10) << "by the record's own 800 images at 80 a second";
}

TEST(ReadRun, TimeToAnAccuracyIsThatOfTheCurve) {
    // In the first session 91 % were reached at step 300, but those steps were done again.
    const logs::Run run = read(resumed_log(), 0.9);
    ASSERT_TRUE(run.hit);
    EXPECT_EQ(run.hit->step, 400);
    EXPECT_EQ(run.hit->epoch, 4);
    EXPECT_DOUBLE_EQ(run.hit->elapsed, 100);
    EXPECT_FALSE(read(resumed_log(), 0.95).hit);
    EXPECT_EQ(read(resumed_log(), 0.5).hit->step, 100);
}

TEST(ReadRun, ForeignLinesAndCutOffEnds) {
    const std::string text = "hello\n\n[1, 2]\n" + header(0, 1000) + "{\"type\":\"step\"}\n" +
                             "{\"type\":\"other\",\"step\":3}\r\n" +
                             record("step", 50, 2, 0, 1010) + std::string(3 << 20, 'x') + "\n" +
                             record("step", 100, 1, 0, 1020);
    const logs::Run whole = read(text);
    EXPECT_EQ(whole.foreign_lines, 5);
    EXPECT_FALSE(whole.cut_off);
    const logs::Run cut = read(text + "{\"type\":\"step\",\"step\":150,\"loss\":0.");
    EXPECT_TRUE(cut.cut_off);
    EXPECT_EQ(cut.foreign_lines, 5) << "a cut-off end is no foreign line";
    EXPECT_EQ(steps_of(cut.step), (std::vector<int64_t>{50, 100}));
    // The last line's end may be missing though the record is whole.
    std::string unended = text;
    unended.pop_back();
    EXPECT_EQ(steps_of(read(unended).step), (std::vector<int64_t>{50, 100}));
    EXPECT_EQ(read("").last_step(), 0);
}

TEST(ReadRun, WithoutTimesSpeedTells) {
    std::string text = resumed_log();
    for (size_t at; (at = text.find(",\"time\":")) != std::string::npos;)
        text.erase(at, text.find_first_of(",}", at + 1) - at);
    const logs::Run run = read(text);
    // Each record covers 800 images at 80 a second.
    EXPECT_DOUBLE_EQ(run.eval.points()[0].elapsed, 30);
    EXPECT_DOUBLE_EQ(run.step.points()[3].elapsed, 50);
    EXPECT_DOUBLE_EQ(run.elapsed(), 100);
}

TEST(ReadRun, TheTextLogSaysTheSame) {
    const logs::Run run = read(
        "2026-01-31 12:00:00 model        resnet20, 10 classes, 269,722 parameters, 40.6 million\n"
        "2026-01-31 12:00:00 data         cifar10 train: 50000 images\n"
        "2026-01-31 12:00:00 device       oneDNN\n"
        "2026-01-31 12:00:00 batch        128 (global), 390 steps an epoch, 3 epochs, 1,170 steps\n"
        "2026-01-31 12:00:10 epoch 1/3  step 200/1170  loss 2.5659  top-1 15.59 %  top-5 60.82 %  "
        "lr 0.22  251 images/s  ETA 0:20\n"
        "2026-01-31 12:00:20 epoch 1/3  training  loss 2.1000  top-1 20.00 %  top-5 70.00 %\n"
        "2026-01-31 12:00:25 epoch 1/3  test      loss 1.9000  top-1 25.00 %  top-5 75.00 %\n"
        "2026-01-31 12:00:35 epoch 2/3  step 600/1170  loss 1.5  top-1 40.00 %  top-5 80.00 %\n"
        "2026-01-31 13:00:00 model        resnet20, 10 classes, 269,722 parameters\n"
        "2026-01-31 13:00:00 batch        128 (global), 390 steps an epoch, 3 epochs, 1,170 steps\n"
        "2026-01-31 13:00:00 resume       runs/a/step-390: 390 steps done\n"
        "2026-01-31 13:00:10 epoch 2/3  step 600/1170  loss 1.4  top-1 41.00 %  top-5 80.00 %\n"
        "2026-01-31 13:00:30 epoch 2/3  test      loss 1.2  top-1 55.00 %  top-5 90.00 %\n"
        "2026-01-31 13:00:31 epoch 2/3  te");
    EXPECT_EQ(run.model, "resnet20");
    EXPECT_EQ(run.dataset, "cifar10");
    EXPECT_EQ(run.parameters, 269722);
    EXPECT_EQ(run.global_batch, 128);
    EXPECT_EQ(run.steps_per_epoch, 390);
    EXPECT_EQ(run.total_epochs, 3);
    EXPECT_EQ(run.total_steps, 1170);
    EXPECT_EQ(steps_of(run.step), (std::vector<int64_t>{200, 600}));
    EXPECT_EQ(steps_of(run.eval), (std::vector<int64_t>{390, 780}));
    const Point& first = run.step.points()[0];
    EXPECT_DOUBLE_EQ(first[Field::loss], 2.5659);
    EXPECT_DOUBLE_EQ(first[Field::top1], 0.1559);
    EXPECT_DOUBLE_EQ(first[Field::lr], 0.22);
    EXPECT_DOUBLE_EQ(first[Field::images_per_s], 251);
    EXPECT_DOUBLE_EQ(run.step.points()[1][Field::loss], 1.4);
    EXPECT_DOUBLE_EQ(run.eval.points()[0].elapsed, 25);
    EXPECT_DOUBLE_EQ(run.eval.points()[1].elapsed, 55);
    EXPECT_TRUE(run.cut_off);
    EXPECT_EQ(run.foreign_lines, 0);
}

TEST(Series, StaysSmallAndKeepsItsMeans) {
    Series series(64);
    double sum = 0, samples = 0;
    for (int i = 1; i <= 100000; ++i) {
        Point point;
        point.first_step = point.step = i;
        point.samples = i % 3 + 1;
        point[Field::loss] = 1.0 / i;
        point[Field::push_bytes] = 10;
        sum += point.samples / i;
        samples += point.samples;
        series.append(point);
        ASSERT_LE(series.points().size(), 64u);
    }
    EXPECT_EQ(series.points().back().step, 100000);
    EXPECT_NEAR(series.total()[Field::loss], sum / samples, 1e-12);
    EXPECT_DOUBLE_EQ(series.total()[Field::push_bytes], 1e6);
    EXPECT_EQ(series.total().records, 100000);
    EXPECT_LE(series.resampled(10).size(), 10u);
    series.keep_until(50000);
    EXPECT_LE(series.points().back().step, 50000);
    EXPECT_GT(series.points().back().step, 45000);
}

TEST(Summary, TableCsvAndJson) {
    std::vector<logs::Run> runs{read(resumed_log(), 0.9), read(header(0, 0), 0.9)};
    runs[1].label = "a, \"b\"";
    const std::string table = summary_table(runs, 0.9);
    EXPECT_NE(table.find("time to 90 %"), std::string::npos) << table;
    EXPECT_NE(table.find("1:40 (epoch 4)"), std::string::npos) << table;
    EXPECT_NE(table.find("92.00"), std::string::npos) << table;

    const std::string csv = summary_csv(runs, 0.9);
    EXPECT_TRUE(csv.starts_with("run,model,variant,workers,epochs,steps,train_loss,")) << csv;
    EXPECT_NE(csv.find("\r\nr,resnet20,ssgd,2,4,400,0.72,0.5,0.92,1,0.92,4,80,100,"),
              std::string::npos)
        << csv;
    EXPECT_NE(csv.find("\r\n\"a, \"\"b\"\"\",resnet20,ssgd,2,0,0,,,"), std::string::npos) << csv;

    const Json json = Json::parse(summary_json(runs, 0.9));
    EXPECT_EQ(json[0]["top1"], 0.92);
    EXPECT_EQ(json[0]["time_to_seconds"], 100);
    EXPECT_EQ(json[0]["test"]["step"], Json({100, 200, 300, 400}));
    EXPECT_EQ(json[0]["training"]["loss"][4], 0.8);
    EXPECT_TRUE(json[1]["top1"].is_null());
    EXPECT_TRUE(json[1]["time_to_seconds"].is_null());
}

std::string comm(int worker, int step, const Json& more) {
    Json line = {{"type", "comm"}, {"step", step}, {"epoch", 1}, {"worker", worker}};
    line.update(more);
    return line.dump() + "\n";
}

TEST(Summary, BreakdownOfAStep) {
    // Two records of 10 steps each; all that travels is 9 s, of which 2 s are waited for.
    const Json said = {{"compute_s", 6.0}, {"push_s", 5.0},      {"pull_s", 4.0},
                       {"wait_s", 3.0},    {"push_bytes", 1000}, {"pull_bytes", 500}};
    Json more = said;
    more["exposed_s"] = 2.0;
    more["hidden_s"] = 7.0;
    const logs::Run run = read(header(0, 0) + comm(0, 10, said) + comm(1, 10, more) +
                               comm(0, 20, said) + comm(1, 20, more));
    ASSERT_EQ(run.comm.size(), 2u);
    const Breakdown derived = breakdown_of(run.comm.at(0)), told = breakdown_of(run.comm.at(1));
    EXPECT_DOUBLE_EQ(derived.compute, 0.6);
    EXPECT_DOUBLE_EQ(derived.exposed, 0.3);
    EXPECT_DOUBLE_EQ(derived.hidden, 0.6);
    EXPECT_DOUBLE_EQ(derived.wait, 0);
    EXPECT_DOUBLE_EQ(told.exposed, 0.2);
    EXPECT_DOUBLE_EQ(told.hidden, 0.7);
    EXPECT_DOUBLE_EQ(told.wait, 0.1);
    const Json json = Json::parse(summary_json({run}, {}));
    EXPECT_DOUBLE_EQ(json[0]["push_bytes_per_step"], 200);
    EXPECT_DOUBLE_EQ(json[0]["exposed_communication"], 0.5 / 1.8);
}

TEST(Labels, TheShortestEndsOfPathsThatDiffer) {
    std::vector<logs::Run> runs(4);
    runs[0].path = "/x/runs/a/metrics.jsonl";
    runs[1].path = "/x/other/a/trainer.log";
    runs[2].path = "/x/runs/b";
    runs[3].path = "/x/runs/c/saved.jsonl";
    label_runs(runs);
    EXPECT_EQ(runs[0].label, "runs/a");
    EXPECT_EQ(runs[1].label, "other/a");
    EXPECT_EQ(runs[2].label, "b");
    EXPECT_EQ(runs[3].label, "saved.jsonl");
    runs.assign(2, runs[0]);
    label_runs(runs);  // the same log twice: no label tells them apart
    EXPECT_EQ(runs[0].label, runs[1].label);
}

class FilesTest : public testing::Test {
  protected:
    FilesTest() {
        std::string pattern = (fs::temp_directory_path() / "log_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        folder_ = pattern;
    }
    ~FilesTest() override { fs::remove_all(folder_); }

    void append(const std::string& text) const {
        std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << text;
    }

    fs::path folder_;
};

TEST_F(FilesTest, DirectoriesAndFiles) {
    EXPECT_THROW(read_run(folder_ / "no"), UsageError);
    EXPECT_THROW(read_run(folder_), UsageError);
    std::ofstream(folder_ / "trainer.log") << "2026-01-31 12:00:00 model        vgg16, 10\n";
    EXPECT_EQ(read_run(folder_).model, "vgg16");
    append(resumed_log());
    EXPECT_EQ(read_run(folder_).model, "resnet20") << "metrics.jsonl goes first";
    EXPECT_EQ(read_run(folder_ / "trainer.log").model, "vgg16");
}

TEST_F(FilesTest, FollowsALogThatGrowsAndOneThatIsReplaced) {
    append(header(0, 1000));
    FollowedLog log(folder_, {});
    EXPECT_TRUE(log.read());
    EXPECT_FALSE(log.read()) << "nothing is new";
    const std::string line = record("step", 50, 2.0, 0.2, 1010);
    append(line.substr(0, 20));
    EXPECT_TRUE(log.read());
    EXPECT_TRUE(log.run().step.empty());
    append(line.substr(20) + record("step", 100, 1.0, 0.4, 1020));
    EXPECT_TRUE(log.read());
    EXPECT_EQ(steps_of(log.run().step), (std::vector<int64_t>{50, 100}));
    EXPECT_EQ(log.run().foreign_lines, 0);
    fs::rename(folder_ / "metrics.jsonl", folder_ / "metrics.1.jsonl");
    EXPECT_FALSE(log.read()) << "for a moment there is none";
    append(header(0, 2000) + record("step", 50, 3.0, 0.1, 2010));
    EXPECT_TRUE(log.read());
    EXPECT_EQ(steps_of(log.run().step), std::vector<int64_t>{50});
    EXPECT_EQ(log.run().step.points()[0][Field::loss], 3.0);
}

TEST(LiveView, ShowsWhereARunIs) {
    EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8, true), "▁▂▃▄▅▆▇█");
    EXPECT_EQ(sparkline({7, 0}, 8, false), "#_");
    EXPECT_EQ(sparkline({1, 3, 6, 8}, 2, false), "_#") << "means of neighbours";
    EXPECT_EQ(sparkline({}, 8, true), "");
    const std::string view = live_view({read(resumed_log())}, 80, false);
    for (const char* part : {"r  (resnet20, ssgd)", "step 400 of 400", "test top-1 %",
                             "50.00 -> 92.00", "training loss", "2.0000 -> 0.6500"})
        EXPECT_NE(view.find(part), std::string::npos) << part << "\n" << view;
    for (size_t at = 0, end; (end = view.find('\n', at)) != std::string::npos; at = end + 1)
        EXPECT_LE(end - at, 80u) << view.substr(at, end - at);
    EXPECT_NE(live_view({read(header(0, 0))}, 80, true).find("no record yet"), std::string::npos);
}

}  // namespace
}  // namespace trainer::logs
