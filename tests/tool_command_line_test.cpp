// The command line: what it takes, and its one line for what it does not.

#include <gtest/gtest.h>

#include "engine/error.h"
#include "tools/trainer/command_line.h"
#include "tools/trainer/model_list.h"

namespace trainer {
namespace {

using Action = CommandLine::Action;

CommandLine parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "trainer");
    return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

/// The message about a command line, or "" where it is taken.
std::string message_of(const std::vector<const char*>& arguments) {
    try {
        parse(arguments);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(CommandLine, Trains) {
    const CommandLine line = parse({"--config", "a.yaml", "--set", "optim.lr=0.2",
                                    "--set=distributed.local={alpha: 1, beta: 2}", "--profile"});
    EXPECT_EQ(line.action, Action::train);
    EXPECT_EQ(line.config, "a.yaml");
    EXPECT_EQ(line.overrides,
              (std::vector<std::string>{"optim.lr=0.2", "distributed.local={alpha: 1, beta: 2}"}));
    EXPECT_TRUE(line.profile);
    EXPECT_FALSE(parse({"--config=a.yaml"}).profile);
}

TEST(CommandLine, Evaluates) {
    const CommandLine line = parse({"--set", "seed=2", "eval", "--config", "a.yaml", "--checkpoint",
                                    "runs/a/best", "--set", "device=cpu"});
    EXPECT_EQ(line.action, Action::evaluate);
    EXPECT_EQ(line.config, "a.yaml");
    EXPECT_EQ(line.checkpoint, "runs/a/best");
    EXPECT_EQ(line.overrides, (std::vector<std::string>{"seed=2", "device=cpu"}));
    EXPECT_EQ(message_of({"eval", "--config", "a.yaml"}),
              "eval: which checkpoint? e.g. --checkpoint runs/resnet20/best");
}

TEST(CommandLine, OtherActions) {
    EXPECT_EQ(parse({"models"}).action, Action::list_models);
    EXPECT_EQ(parse({"--config", "a.yaml", "--print-config"}).action, Action::print_config);
    const CommandLine help = parse({"--help"});
    EXPECT_EQ(help.action, Action::print_text);
    for (const char* word : {"--config", "--set", "eval", "optim.schedule.type=step",
                             "constant | step | poly | cosine | onecycle", "75"})
        EXPECT_NE(help.text.find(word), std::string::npos) << word;
    EXPECT_TRUE(parse({"eval", "--help"}).text == help.text);
    const CommandLine version = parse({"--version"});
    EXPECT_EQ(version.action, Action::print_text);
    EXPECT_EQ(version.text.substr(0, 8), "trainer ");
    EXPECT_EQ(version.text.back(), '\n');
}

TEST(CommandLine, MessagesOfOneLine) {
    EXPECT_EQ(message_of({}), "which config? e.g. --config resnet20.yaml (see --help)");
    EXPECT_EQ(message_of({"--confg", "a.yaml"}), "--confg: unknown option; did you mean --config?");
    EXPECT_EQ(message_of({"--config", "a.yaml", "eval", "--chekpoint=b"}),
              "--chekpoint: unknown option; did you mean --checkpoint?");
    EXPECT_EQ(message_of({"evl"}), "evl: unknown argument; did you mean eval?");
    EXPECT_EQ(message_of({"models", "--config", "a"}), "--config: not an option of models");
    EXPECT_EQ(message_of({"--config", "a", "--set", "seed=1", "seed=2"}).substr(0, 23),
              "seed: unknown argument;");
    for (const std::vector<const char*>& bad : {std::vector<const char*>{"--config"},
                                                {"--config", "a", "--config", "b"},
                                                {"--config", "a", "--set"},
                                                {"--config", "a", "--rank", "x"}}) {
        const std::string message = message_of(bad);
        EXPECT_NE(message, "");
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
}

TEST(CommandLine, RolesOfACluster) {
    const CommandLine server = parse({"--config", "a.yaml", "--role=server",
                                      "--listen=0.0.0.0:9000", "--rank=1", "--interface=eth0"});
    EXPECT_EQ(server.role, "server");
    EXPECT_EQ(server.listen, "0.0.0.0:9000");
    EXPECT_EQ(server.rank, 1);
    EXPECT_EQ(server.interface, "eth0");
    EXPECT_EQ(parse({"--config", "a.yaml", "--role=worker", "--servers=a:1,b:2"}).servers,
              "a:1,b:2");
    EXPECT_EQ(parse({"--config", "a.yaml"}).rank, std::nullopt);

    EXPECT_NE(message_of({"--config", "a.yaml", "--role=boss"}).find("--role"), std::string::npos);
    EXPECT_EQ(message_of({"--config", "a.yaml", "--rank=0"}), "--rank: goes with --role");
    EXPECT_EQ(message_of({"--config", "a.yaml", "--servers=a:1"}),
              "--servers: goes with --role=worker");
    EXPECT_EQ(message_of({"--config", "a.yaml", "--listen=a:1"}), "--listen: goes with --role");
    EXPECT_EQ(message_of({"--config", "a.yaml", "--insecure"}), "--insecure: goes with --role");
}

TEST(ModelList, NamesModelsWithTheirSizes) {
    const std::string list = list_models();
    EXPECT_NE(list.find("\nresnet20                269722 "), std::string::npos) << list;
    EXPECT_NE(list.find("\nvgg16_bn             138365992 "), std::string::npos) << list;
}

}  // namespace
}  // namespace trainer
