// What a run tells other programs: TensorBoard, Prometheus, and whoever opens a checkpoint.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "comm/metrics_http.h"
#include "engine/crc32c.h"
#include "tests/error_of.h"
#include "tests/python.h"
#include "tools/log/run.h"
#include "tools/trainer/event_file.h"
#include "tools/trainer/export.h"
#include "tools/trainer/exposition.h"
#include "tools/trainer/metrics.h"
#include "tools/trainer/model_card.h"
#include "tools/trainer/predict.h"
#include "tools/trainer/trainer.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class OutputsTest : public testing::Test {
  protected:
    OutputsTest() {
        std::string pattern = (fs::temp_directory_path() / "outputs_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        folder_ = pattern;
    }
    ~OutputsTest() override { fs::remove_all(folder_); }

    /// 60 steps of softmax regression on made-up images, a checkpoint each 20.
    Config config(const std::vector<std::string>& more = {}) const {
        return parse_config(
            "model: {name: linear}\n"
            "data: {dataset: synthetic, batch_size: 16, workers: 1}\n"
            "train: {epochs: 1, max_steps: 60}\n"
            "threads: 1\n"
            "optim: {lr: 0.01}\n"
            "checkpoint: {dir: " +
                (folder_ / "run").string() +
                ", every_steps: 20, keep: 9}\n"
                "log: {dir: " +
                (folder_ / "run").string() + ", every_steps: 10, tensorboard: true}\n",
            "tiny.yaml", more);
    }

    void train(const std::vector<std::string>& more = {}) const {
        const Config settings = config(more);
        testing::internal::CaptureStdout();
        Trainer trainer(settings);
        const ExitCode code = trainer.run();
        testing::internal::GetCapturedStdout();
        EXPECT_EQ(code, ExitCode::done);
    }

    fs::path folder_;
};

std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> files_with(const fs::path& folder, const std::string& part) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().filename().string().find(part) != std::string::npos)
            paths.push_back(entry.path());
    return paths;
}

TEST_F(OutputsTest, EventsAreFramedWithMaskedChecksums) {
    try {
        EventFile file(folder_, 0, true, {});
        file.write(7, {{"loss", 0.5}});
    } catch (const UsageError& error) {
        GTEST_SKIP() << error.what();
    }
    const auto paths = files_with(folder_, "events.out.tfevents.");
    ASSERT_EQ(paths.size(), 1u);
    const std::string bytes = contents(paths[0]);
    const auto read = [&](size_t at, auto value) {
        std::memcpy(&value, bytes.data() + at, sizeof value);
        return value;
    };
    const auto masked = [&](size_t at, size_t count) {
        const uint32_t crc = crc32c(bytes.data() + at, count);
        return static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
    };
    size_t at = 0, records = 0;
    std::string last;
    while (at < bytes.size()) {
        ASSERT_LE(at + 16, bytes.size());
        const auto length = read(at, uint64_t{});
        ASSERT_LE(at + 16 + length, bytes.size());
        EXPECT_EQ(read(at + 8, uint32_t{}), masked(at, 8));
        EXPECT_EQ(read(at + 12 + length, uint32_t{}), masked(at + 12, length));
        last = bytes.substr(at + 12, length);
        at += 16 + length;
        ++records;
    }
    EXPECT_EQ(records, 4u) << "version, start, hyperparameters, the scalar";
    // Field 2, step 7; field 5, a summary of 13 bytes with one value of 11: "loss", 0.5.
    EXPECT_EQ(last.substr(9),
              std::string("\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f", 17));
}

TEST_F(OutputsTest, TensorBoardReadsTheNumbersOfTheLogOnceAStep) {
#ifndef TRAINER_HAS_PROTOBUF
    GTEST_SKIP() << "this build writes no event files";
#endif
    train();
    // The run is set back as if it had been killed after step 40, and does the rest again.
    fs::remove_all(folder_ / "run" / "step-60");
    testing::internal::CaptureStderr();
    train();
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(files_with(folder_ / "run", "events.out.tfevents.").size(), 2u);
    const PythonResult result =
        run_python("tensorboard_test.py", "'" + (folder_ / "run").string() + "'");
    if (result.code == python_skipped)
        GTEST_SKIP() << result.output;
    ASSERT_EQ(result.code, 0) << result.output;
    // What Python's libraries say comes first.
    const Json read = Json::parse(result.output.substr(result.output.find("{\"scalars\"")));

    const logs::Run run = logs::read_run(folder_ / "run");
    EXPECT_EQ(run.sessions, 2);
    const auto expect = [&](const std::string& tag, const logs::Series& series, logs::Field field) {
        const Json& points = read["scalars"][tag];
        ASSERT_EQ(points.size(), series.points().size()) << tag;
        for (size_t i = 0; i < points.size(); ++i) {
            EXPECT_EQ(points[i][0], series.points()[i].step) << tag;
            EXPECT_FLOAT_EQ(points[i][1].get<float>(),
                            static_cast<float>(series.points()[i][field]))
                << tag;
        }
    };
    EXPECT_EQ(run.step.points().size(), 6u);
    expect("loss/train", run.step, logs::Field::loss);
    expect("top1/train", run.step, logs::Field::top1);
    expect("lr", run.step, logs::Field::lr);
    expect("images_per_s/train", run.step, logs::Field::images_per_s);
    expect("loss/train_epoch", run.epoch, logs::Field::loss);
    expect("loss/test", run.eval, logs::Field::loss);
    expect("top5/test", run.eval, logs::Field::top5);
    EXPECT_EQ(read["hparams"]["optim.lr"], 0.01);
    EXPECT_EQ(read["hparams"]["model.name"], "linear");
    EXPECT_EQ(read["hparams"]["data.shuffle"], true);
    EXPECT_EQ(read["ended"], true);

    train({"checkpoint.resume=never"});
    EXPECT_EQ(files_with(folder_ / "run", "events.out.tfevents.").size(), 1u);
    EXPECT_EQ(files_with(folder_ / "run", "old_events.").size(), 2u);
}

// Two runs in one log.dir each cut off the other's lines.
TEST_F(OutputsTest, ALogThatIsBeingWrittenIsNobodyElses) {
    const fs::path path = folder_ / "metrics.jsonl";
    {
        LineFile first(path);
        first.write("one");
        try {
            LineFile second(path);
            FAIL() << "two runs write one log";
        } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what()),
                      "log.dir: another run is writing '" + path.string() +
                          "'; set log.dir to another directory, or wait for its end");
        }
        first.write("two");
    }
    LineFile later(path);
    EXPECT_EQ(fs::file_size(path), 8U);
}

TEST_F(OutputsTest, ACheckpointKnowsItsInput) {
    train({"train.max_steps=2", "data.mean=[0.1, 0.2, 0.3]", "log.tensorboard=false"});
    const LoadedModel model = load_model((folder_ / "run/latest").string());
    EXPECT_EQ(model.card.model, "linear");
    EXPECT_EQ(model.card.dataset, "synthetic");
    EXPECT_EQ(model.card.classes, 10);
    EXPECT_EQ(model.card.input, (Shape{3, 32, 32}));
    EXPECT_EQ(model.card.normalization.mean, (std::vector<double>{0.1, 0.2, 0.3}));
    EXPECT_EQ(model.card.normalization.std, (std::vector<double>{0.25, 0.25, 0.25}));
    EXPECT_EQ(model.card.class_name(3), "class 3");
    EXPECT_EQ(model.parameters.size(), 3 * 32 * 32 * 10 + 10);
    EXPECT_THROW(load_model((folder_ / "run").string()), Error);
    try {
        testing::internal::CaptureStdout();
        run_export({(folder_ / "run/latest").string(), (folder_ / "a.onnx").string(), true, true});
        EXPECT_NE(testing::internal::GetCapturedStdout().find("linear, images uint8 [batch, 3, 32"),
                  std::string::npos);
        EXPECT_GT(fs::file_size(folder_ / "a.onnx"), 4u * (3 * 32 * 32 * 10 + 10));
        const std::string latest = (folder_ / "run/latest").string();
        EXPECT_EQ(error_of<UsageError>([&] {
                      run_export({latest, latest, false, false});
                  }),
                  "'" + latest + "' is a directory; name a file to write");
    } catch (const UsageError& error) {
        testing::internal::GetCapturedStdout();
        EXPECT_NE(std::string(error.what()).find("protobuf"), std::string::npos);
    }
}

std::string refusal(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "trainer");
    try {
        parse_command_line(static_cast<int>(arguments.size()), arguments.data());
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(CommandLineOfModels, ExportAndPredict) {
    const auto parse = [](std::vector<const char*> arguments) {
        arguments.insert(arguments.begin(), "trainer");
        return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
    };
    const CommandLine exporting =
        parse({"export", "--checkpoint", "c", "--onnx=o.onnx", "--fold-bn", "--uint8"});
    EXPECT_EQ(exporting.action, CommandLine::Action::export_model);
    EXPECT_EQ(exporting.checkpoint, "c");
    EXPECT_EQ(exporting.onnx, "o.onnx");
    EXPECT_TRUE(exporting.fold_bn && exporting.uint8);
    const CommandLine predicting = parse({"predict", "a.png", "--checkpoint", "c", "b.jpg"});
    EXPECT_EQ(predicting.action, CommandLine::Action::predict);
    EXPECT_EQ(predicting.images, (std::vector<std::string>{"a.png", "b.jpg"}));
    EXPECT_EQ(parse({"--config", "a.yaml", "--metrics-port=9100"}).metrics_port, 9100);
    EXPECT_EQ(parse({"--config", "a.yaml"}).metrics_port, std::nullopt);

    EXPECT_TRUE(refusal({"export", "--onnx", "o"}).starts_with("export: which checkpoint?"));
    EXPECT_TRUE(refusal({"export", "--checkpoint", "c"}).starts_with("export: to which file?"));
    EXPECT_TRUE(refusal({"predict", "--checkpoint", "c"}).starts_with("predict: which images?"));
    EXPECT_EQ(refusal({"export", "--checkpoint", "c", "--onnx", "o", "--fold-b"}),
              "--fold-b: unknown option; did you mean --fold-bn?");
    EXPECT_NE(refusal({"--config", "a.yaml", "--metrics-port=70000"}), "");
}

TEST(ModelCard, RoundTripThroughMetadata) {
    Dataset dataset;
    dataset.channels = 1;
    dataset.height = 28;
    dataset.width = 30;
    dataset.class_names = {"T-shirt/top", "\"quoted\""};
    Metadata metadata;
    add_card(metadata, dataset, {{0.5}, {0.25}});
    EXPECT_EQ(metadata.at("input"), "1x28x30");
    EXPECT_EQ(Json::parse(metadata.at("class_names")), Json({"T-shirt/top", "\"quoted\""}));
    EXPECT_EQ(Json::parse(metadata.at("normalization")), Json({{"mean", {0.5}}, {"std", {0.25}}}));
}

TEST(Predict, LikeliestClassesAndTheirProbabilities) {
    const auto best =
        likeliest({0, std::log(6.0f), std::log(2.0f), std::log(6.0f), 1000, 999, 998, 0}, 4, 3);
    ASSERT_EQ(best.size(), 2u);
    ASSERT_EQ(best[0].size(), 3u);
    EXPECT_EQ(best[0][0].label, 1) << "of equals the lowest class";
    EXPECT_EQ(best[0][1].label, 3);
    EXPECT_EQ(best[0][2].label, 2);
    EXPECT_NEAR(best[0][0].probability, 6.0 / 15, 1e-6);
    EXPECT_NEAR(best[0][2].probability, 2.0 / 15, 1e-6);
    EXPECT_NEAR(best[1][0].probability, 1 / (1 + std::exp(-1.0) + std::exp(-2.0)), 1e-6);
    EXPECT_EQ(likeliest({1, 2}, 2, 5)[0].size(), 2u) << "no more than there are";
}

/// Left half red, right half of increasing green.
Image test_image(int64_t height, int64_t width) {
    Image image{height, width, {}};
    for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x)
            for (const int value : {x < width / 2 ? 200 : 0, x < width / 2 ? 0 : 100, 0})
                image.pixels.push_back(static_cast<uint8_t>(value));
    return image;
}

TEST(Predict, ImagesAreFittedToTheModel) {
    ModelCard card;
    card.dataset = "cifar10";
    card.input = {3, 32, 32};
    std::vector<uint8_t> fitted = fit_image(test_image(32, 32), card);
    const auto at = [&](int64_t c, int64_t y, int64_t x) {
        return int{fitted[static_cast<size_t>((c * card.input[1] + y) * card.input[2] + x)]};
    };
    EXPECT_EQ(fitted.size(), 3u * 32 * 32);
    EXPECT_EQ(at(0, 5, 15), 200) << "of the right size: as it is";
    EXPECT_EQ(at(1, 5, 15), 0);
    EXPECT_EQ(at(1, 31, 16), 100);

    fitted = fit_image(test_image(64, 256), card);  // the middle quarter: halves meet at 16 again
    EXPECT_EQ(at(0, 9, 14), 200);
    EXPECT_EQ(at(0, 9, 15), 175) << "an eighth is of the other half";
    EXPECT_EQ(at(1, 9, 17), 100);
    fitted = fit_image(test_image(90, 64), card);
    EXPECT_EQ(at(0, 0, 0), 200);
    EXPECT_EQ(at(1, 31, 31), 100);

    card.dataset = "mnist";  // gray, 28x28 within a black edge
    fitted = fit_image(test_image(56, 56), card);
    const int red = static_cast<int>(std::lround(0.299 * 200));
    EXPECT_EQ(at(0, 1, 10), 0);
    EXPECT_EQ(at(0, 10, 1), 0);
    EXPECT_EQ(at(0, 2, 2), red);
    EXPECT_EQ(at(2, 29, 2), red);
    EXPECT_EQ(at(0, 30, 2), 0);
}

TEST(Images, BrokenOnesAreErrors) {
    const std::string text = "no image";
    EXPECT_THROW(decode_image(std::as_bytes(std::span(text)), "text.jpg"), Error);
    EXPECT_THROW(decode_image({}, "empty.png"), Error);
}

TEST(Images, DecodesRedGreenBlueAndGray) {
    // Binary PPM and PGM, which OpenCV reads too.
    const std::string colour = std::string("P6 2 1 255\n") + "\x01\x02\x03\xf1\xf2\xf3";
    const std::string gray = std::string("P5 1 2 255\n") + "\x07\x09";
    try {
        const Image image = decode_image(std::as_bytes(std::span(colour)), "a.ppm");
        EXPECT_EQ(image.height, 1);
        EXPECT_EQ(image.width, 2);
        EXPECT_EQ(image.pixels, (std::vector<uint8_t>{1, 2, 3, 0xf1, 0xf2, 0xf3}));
        EXPECT_EQ(decode_image(std::as_bytes(std::span(gray)), "a.pgm").pixels,
                  (std::vector<uint8_t>{7, 7, 7, 9, 9, 9}));
    } catch (const UsageError& error) {
        GTEST_SKIP() << error.what();
    }
}

/// Sends `request` to a port of this machine and returns all that comes back.
std::string ask(int port, const std::string& request) {
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        ADD_FAILURE() << "cannot connect";
    std::string answer;
    if (send(descriptor, request.data(), request.size(), MSG_NOSIGNAL) >= 0) {
        char buffer[4096];
        for (ssize_t bytes; (bytes = recv(descriptor, buffer, sizeof buffer, 0)) > 0;)
            answer.append(buffer, static_cast<size_t>(bytes));
    }
    close(descriptor);
    return answer;
}

TEST(Prometheus, AnswersOverHttp) {
    Exposition exposition(std::map<std::string, std::string>{{"run", "a \"b\"\n\\"}});
    MetricsHttp http(0, [&] { return exposition.text(); });
    const int port = http.port();
    ASSERT_GT(port, 0);
    EXPECT_THROW(MetricsHttp(port, [] { return std::string(); }), Error) << "it is taken";

    exposition.update([](RunNumbers& numbers) {
        numbers.step = 1234567890123;
        numbers.loss = 0.25;
        numbers.members = 3;
        numbers.traffic[0].push_bytes_total = 5e12;
        numbers.traffic[2].wait_s_total = 1.5;
        numbers.traffic[2].staleness = 0.75;
        numbers.staleness = 1.25;
    });
    const std::string answer = ask(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_NE(answer.find("text/plain; version=0.0.4"), std::string::npos);
    const std::string run = "run=\"a \\\"b\\\"\\n\\\\\"";
    for (const std::string& line :
         {"trainer_step{" + run + "} 1234567890123\n", "trainer_loss{" + run + "} 0.25\n",
          "trainer_members{" + run + "} 3\n",
          "trainer_push_bytes_total{" + run + ",worker=\"0\"} 5e+12\n",
          "trainer_wait_seconds_total{" + run + ",worker=\"2\"} 1.5\n",
          "trainer_staleness{" + run + "} 1.25\ntrainer_staleness{" + run + ",worker=\"2\"} 0.75\n",
          std::string("# TYPE trainer_push_bytes_total counter\n")})
        EXPECT_NE(answer.find(line), std::string::npos) << line << answer;
    EXPECT_EQ(answer.find("trainer_top1"), std::string::npos) << "not known, not said";
    // Every line has the format's form, and each metric is headed once.
    const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
    const std::regex form(
        "# (HELP|TYPE) trainer_[a-z0-9_]+ .+|trainer_[a-z0-9_]+\\{.*\\} [-+.e0-9]+");
    std::istringstream lines(body);
    std::map<std::string, int> headings;
    for (std::string line; std::getline(lines, line);) {
        EXPECT_TRUE(std::regex_match(line, form)) << line;
        if (line.starts_with("# TYPE")) {
            EXPECT_EQ(++headings[line], 1);
        }
    }

    EXPECT_TRUE(ask(port, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    EXPECT_TRUE(ask(port, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    EXPECT_TRUE(ask(port, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    EXPECT_TRUE(ask(port, "GET /metrics?a=b HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
    const std::string head = ask(port, "HEAD /metrics HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n")) << head;
    ask(port, std::string(100000, 'x'));  // whatever it says, it goes on
    std::vector<std::thread> crowd;
    for (int i = 0; i < 20; ++i)
        crowd.emplace_back([&] {
            EXPECT_NE(ask(port, "GET /metrics HTTP/1.1\r\n\r\n").find("trainer_loss"),
                      std::string::npos);
        });
    for (std::thread& one : crowd)
        one.join();
}

TEST_F(OutputsTest, PrometheusSeesARunGoOn) {
    Config settings = config({"log.tensorboard=false"});
    settings.metrics_port = 0;
    testing::internal::CaptureStdout();
    Trainer trainer(settings);
    trainer.run();
    const std::string said = testing::internal::GetCapturedStdout();
    std::smatch match;
    ASSERT_TRUE(std::regex_search(said, match, std::regex("metrics +at port ([0-9]+)"))) << said;
    const std::string answer = ask(std::stoi(match[1]), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    for (const char* part :
         {"trainer_step{run=\"tiny\"} 60\n", "trainer_images_total{run=\"tiny\"} 960\n",
          "trainer_learning_rate{run=\"tiny\"} 0.01\n", "trainer_test_top1{", "trainer_loss{",
          "trainer_images_per_second{", "trainer_data_wait_seconds_total{"})
        EXPECT_NE(answer.find(part), std::string::npos) << part << answer;
}

}  // namespace
}  // namespace trainer
