// Files that a user names: whole or not at all, through links, and over files alone.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

#include "engine/whole_file.h"
#include "tests/error_of.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

class WholeFile : public testing::Test {
  protected:
    WholeFile() {
        std::string pattern = (fs::temp_directory_path() / "whole_file_test_XXXXXX").string();
        check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
        folder_ = pattern;
    }
    ~WholeFile() override { fs::remove_all(folder_); }

    void write(const std::string& name, const std::string& text) const {
        write_whole_file(folder_ / name, std::as_bytes(std::span(text)));
    }
    std::string contents(const std::string& name) const {
        std::ifstream file(folder_ / name, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    auto count() const { return std::distance(fs::directory_iterator(folder_), {}); }

    fs::path folder_;
};

TEST_F(WholeFile, TakesThePlaceOfAFile) {
    write("a", "longer than what follows");
    write("a", "short");
    EXPECT_EQ(contents("a"), "short");
    EXPECT_EQ(count(), 1);
}

TEST_F(WholeFile, GoesThroughLinks) {
    fs::create_directory(folder_ / "below");
    fs::create_symlink("below/b", folder_ / "a");
    fs::create_symlink("a", folder_ / "link");
    for (const std::string text : {"what is not there yet", "what is there"}) {
        write("link", text);
        EXPECT_EQ(contents("below/b"), text);
    }
    EXPECT_TRUE(fs::is_symlink(folder_ / "link") && fs::is_symlink(folder_ / "a"));
    fs::create_symlink("circle", folder_ / "circle");
    EXPECT_EQ(
        error_of([&] { write("circle", "x"); }),
        "cannot write '" + (folder_ / "circle").string() + "': Too many levels of symbolic links");
}

TEST_F(WholeFile, WhatIsNoFileStays) {
    fs::create_directory(folder_ / "a");
    EXPECT_EQ(error_of<UsageError>([&] { write("a", "x"); }),
              "'" + (folder_ / "a").string() + "' is a directory; name a file to write");
    // Through links, so that a test of root's harms no device.
    fs::create_symlink("/dev/null", folder_ / "b");
    EXPECT_EQ(error_of<UsageError>([&] { write("b", "x"); }),
              "'" + (folder_ / "b").string() + "' is no regular file; name a file to write");
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
    EXPECT_EQ(count(), 2);
}

TEST_F(WholeFile, LeavesNothingWhereItFails) {
    write("a", "before");
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string error = error_of([&] { write("a", std::string(2000, 'x')); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(error, "cannot write '" + (folder_ / "a").string() + "': File too large");
    EXPECT_EQ(contents("a"), "before");
    EXPECT_EQ(count(), 1);
    EXPECT_EQ(error_of([&] { write("no/a", "x"); }),
              "cannot write '" + (folder_ / "no/a").string() + "': No such file or directory");
}

}  // namespace
}  // namespace trainer
