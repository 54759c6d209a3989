// Class folders: names, links, splits, label files; and packed shards of them.
#include <gtest/gtest.h>

#include "data/folder.h"
#include "data/shards.h"
#include "engine/crc32c.h"
#include "tests/error_of.h"
#include "tests/photos.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

void touch(const fs::path& path, const std::string& text = "x") {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::vector<std::string> files_of(const FolderListing& listing) {
    std::vector<std::string> files;
    for (int64_t i = 0; i < listing.files.count(); ++i)
        files.emplace_back(listing.files[i]);
    return files;
}

TEST(Folder, ClassesAreSortedByBytesAndCaseKeepsThemApart) {
    const TemporaryFolder dir;
    for (const char* name :
         {"Cat/1.JPEG", "cat/1.JPEG", "cat/a b.png", "zebra/\u00fc n\u00efc\u00f6de \u4f60.jpg",
          "\u00e4hre/x", "cat/.hidden", ".git/x", "cat/deep/er/2.JPEG"})
        touch(dir / name);
    touch(dir / "labels.txt");  // a file beside the class folders is none
    const FolderListing listing = list_class_folders(dir.path());
    EXPECT_EQ(listing.classes, (std::vector<std::string>{"Cat", "cat", "zebra", "\u00e4hre"}));
    EXPECT_EQ(
        files_of(listing),
        (std::vector<std::string>{"Cat/1.JPEG", "cat/1.JPEG", "cat/a b.png", "cat/deep/er/2.JPEG",
                                  "zebra/\u00fc n\u00efc\u00f6de \u4f60.jpg", "\u00e4hre/x"}));
    EXPECT_EQ(listing.labels, (std::vector<int32_t>{0, 1, 1, 1, 2, 3}));
    EXPECT_TRUE(listing.faults.empty());
    const auto store = make_folder_store(listing.directory, listing.files);
    EXPECT_EQ(store->name(2), (dir / "cat/a b.png").string());
    std::vector<std::byte> bytes;
    store->read(4, bytes);
    EXPECT_EQ(bytes.size(), 1u);
}

TEST(Folder, LinksAreFollowedAndLoopsEnd) {
    const TemporaryFolder dir, elsewhere;
    touch(elsewhere / "far.JPEG");
    touch(dir / "a/1.JPEG");
    fs::create_directory_symlink("..", dir / "a" / "up");  // a/up/a/up/...
    fs::create_directory_symlink(".", dir / "a" / "self");
    fs::create_directory_symlink(elsewhere.path(), dir / "b");
    fs::create_symlink("round", dir / "b" / "round");
    fs::create_symlink("nowhere.JPEG", dir / "b" / "dead.JPEG");
    const FolderListing listing = list_class_folders(dir.path());
    EXPECT_EQ(listing.classes, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(files_of(listing),
              (std::vector<std::string>{"a/1.JPEG", "a/up/b/far.JPEG", "b/far.JPEG"}));
    ASSERT_EQ(listing.faults.size(), 4u);  // both, also by way of a/up
    EXPECT_EQ(listing.faults[2], (dir / "b/dead.JPEG").string() + ": a link to nothing");
    EXPECT_TRUE(contains(listing.faults[3], (dir / "b/round").string() + ": "));
    DatasetOptions options{.dataset = "folder", .dir = dir.path().string()};
    EXPECT_TRUE(contains(error_of([&] { load_dataset(options); }), "on_corrupt: skip"));
    options.photos.skip_corrupt = true;
    EXPECT_EQ(load_dataset(options).notes.size(), 4u);
}

TEST(Folder, ValidationWithOtherClassesIsRefused) {
    const TemporaryFolder dir;
    for (const char* name : {"train/a/1", "train/b/1", "val/a/1", "val/c/1"})
        touch(dir / name);
    const DatasetOptions options{
        .dataset = "imagenet", .dir = dir.path().string(), .split = Split::test};
    EXPECT_TRUE(contains(error_of([&] { load_dataset(options); }),
                         "the test images have the class not 'b', which the training images have"));
    touch(dir / "val/b/1");
    EXPECT_TRUE(contains(error_of([&] { load_dataset(options); }),
                         "the class 'c', which the training images have not"));
    fs::remove_all(dir / "val/c");
    const Dataset test = load_dataset(options);
    EXPECT_EQ(test.class_names, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(test.labels, (std::vector<int32_t>{0, 1}));
}

TEST(Folder, FlatValidationTakesItsClassesFromAFile) {
    const TemporaryFolder dir;
    for (const char* name : {"train/n01/1", "train/n02/1", "val/v_2.JPEG", "val/v_1.JPEG"})
        touch(dir / name);
    const FolderLayout layout{dir.path(), "", 0};
    EXPECT_TRUE(contains(error_of([&] { layout.list(Split::test); }), "set data.val_labels"));
    touch(dir / "val_labels.txt", "v_1.JPEG n02\nv_2.JPEG n01\n");
    EXPECT_EQ(files_of(layout.list(Split::test)),
              (std::vector<std::string>{"v_1.JPEG", "v_2.JPEG"}));
    EXPECT_EQ(layout.list(Split::test).labels, (std::vector<int32_t>{1, 0}));
    fs::remove(dir / "val_labels.txt");
    touch(dir / "LOC_val_solution.csv",
          "ImageId,PredictionString\nv_2,n01 1 2 3 4 n01 1 2 3 4\n"
          "v_1,n02 0 0 9 9\n");
    EXPECT_EQ(layout.list(Split::test).labels, (std::vector<int32_t>{1, 0}));

    const auto message = [&](const std::string& text) {
        touch(dir / "mine.txt", text);
        return error_of([&] {
            FolderLayout{dir.path(), (dir / "mine.txt").string(), 0}.list(Split::test);
        });
    };
    EXPECT_TRUE(contains(message("v_1 n01\n"), "v_2.JPEG' has no line in"));
    EXPECT_TRUE(contains(message("v_1 n01\nv_2 n03\n"), "'n03', which the training images"));
    EXPECT_TRUE(contains(message("v_1 n01\nv_2 n01\nv_3 n01\n"), "names 'v_3', which is not in"));
    EXPECT_TRUE(contains(message("v_1 n01\nv_1 n02\n"), "line 2: 'v_1' a second time"));
    EXPECT_TRUE(contains(message("490\n361\n"), "line 1: '490' alone"));
    EXPECT_EQ(message("v_1 n01\n\nv_2.JPEG n02\n"), "no error");
}

TEST(Folder, SettingsThatDoNothingAndClassesWithoutImagesAreSaid) {
    const TemporaryFolder dir;
    for (const char* name : {"train/a/1", "train/b/1", "val/a/1", "val/b/1"})
        touch(dir / name);
    const auto notes = [&](const PhotoOptions& photos) {
        return load_dataset({.dataset = "folder", .dir = dir.path().string(), .photos = photos})
            .notes;
    };
    const std::string val = (dir / "val").string();
    EXPECT_TRUE(notes({}).empty());
    EXPECT_EQ(
        notes({.held_out = 0.1}),
        std::vector{"data.split holds nothing out: the test images are those of '" + val + "'"});
    EXPECT_EQ(notes({.val_labels = "mine.txt"}),
              std::vector{"data.val_labels is not read: the class folders of '" + val +
                          "' say the classes"});
    fs::create_directories(dir / "train/c");
    fs::create_directories(dir / "val/c");
    EXPECT_EQ(notes({}), std::vector<std::string>{"1 of 3 classes has no training images: 'c'"});
    fs::remove_all(dir / "val");
    EXPECT_EQ(notes({.val_labels = "mine.txt"}).back(),
              "data.val_labels is not read: '" + dir.path().string() + "' has no val/");

    EXPECT_EQ(empty_classes({"a", "b", "c", "d", "e", "f", "g"}, {3}, "images"),
              "6 of 7 classes have no images: 'a', 'b', 'c', 'e', 'f', ...");
    EXPECT_EQ(empty_classes({"a", "b"}, {1, 0, 0}, "images"), "");
}

TEST(Folder, ASplitIsHeldOutByPathAndMovesNoOtherImage) {
    const TemporaryFolder dir;
    for (int i = 0; i < 400; ++i)
        touch(dir / ("class" + std::to_string(i % 4) + "/" + std::to_string(i)));
    FolderLayout layout{dir.path(), "", 0};
    EXPECT_EQ(layout.list(Split::train).files.count(), 400);
    EXPECT_TRUE(contains(error_of([&] { layout.list(Split::test); }), "data.split"));
    layout.held_out = 0.25;
    const std::vector<std::string> test = files_of(layout.list(Split::test)),
                                   train = files_of(layout.list(Split::train));
    EXPECT_EQ(test.size() + train.size(), 400u);
    EXPECT_NEAR(static_cast<double>(test.size()), 100, 35);
    for (int i = 400; i < 500; ++i)
        touch(dir / ("class0/" + std::to_string(i)));
    const std::vector<std::string> more = files_of(layout.list(Split::test));
    for (const std::string& file : test)
        EXPECT_EQ(std::count(more.begin(), more.end(), file), 1);
    for (const std::string& file : train)
        EXPECT_EQ(std::count(more.begin(), more.end(), file), 0);
}

TEST(Folder, WhatIsNotThereIsSaid) {
    const TemporaryFolder dir;
    const auto message = [](const fs::path& at) {
        return error_of([&] {
            load_dataset({.dataset = "imagenet", .dir = at.string(), .split = Split::train});
        });
    };
    EXPECT_TRUE(contains(message(dir / "no"), "is no directory; set data.dir"));
    EXPECT_TRUE(contains(message(dir.path()), "has no class folders"));
    fs::create_directories(dir / "train/n01");
    EXPECT_TRUE(contains(message(dir.path()), "has no train images"));
}

std::vector<std::byte> bytes_of(const std::string& text) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return {first, first + text.size()};
}

TEST(Shards, TheExampleOfTheDescription) {
    const TemporaryFolder dir;
    const fs::path path = dir / shard_file_name("train", 0, 1);
    EXPECT_EQ(path.filename(), "train-00000-of-00001.shard");
    ShardWriter writer(path, 0, 1, {"a", "bc"});
    writer.add("a/b", bytes_of("\xff\xd8\xff"), 1, 0);
    EXPECT_FALSE(fs::exists(path));
    writer.finish();
    const std::vector<std::byte> bytes = read_bytes(path);
    ASSERT_EQ(bytes.size(), 113u);
    const auto text = [&](size_t at, size_t count) {
        return std::string(reinterpret_cast<const char*>(bytes.data()) + at, count);
    };
    const auto number = [&](size_t at) {
        uint32_t value = 0;
        for (size_t i = 4; i-- > 0;)
            value = value << 8 | std::to_integer<uint32_t>(bytes[at + i]);
        return value;
    };
    EXPECT_EQ(text(0, 8), "TRSHARD\n");
    EXPECT_EQ(number(8), 1u);
    EXPECT_EQ(number(20), 2u);
    EXPECT_EQ(number(28), crc32c(bytes.data(), 28));
    EXPECT_EQ(text(32, 6), "a/b\xff\xd8\xff");
    EXPECT_EQ(text(38, 11), std::string("\1\0\0\0a\2\0\0\0bc", 11));
    EXPECT_EQ(number(49), 32u);
    EXPECT_EQ(number(57), 3u);
    EXPECT_EQ(number(61), 1u);
    EXPECT_EQ(number(65), crc32c(bytes.data() + 32, 6));
    EXPECT_EQ(number(69), 3u);
    EXPECT_EQ(number(73), 38u);
    EXPECT_EQ(number(81), 49u);
    EXPECT_EQ(number(89), 1u);
    EXPECT_EQ(number(97), crc32c(bytes.data() + 38, 35));
    EXPECT_EQ(number(101), crc32c(bytes.data() + 73, 28));
    EXPECT_EQ(text(105, 8), "TRSHEND\n");
}

/// Two shards of five records.
void write_two(const fs::path& dir) {
    int number = 0;
    for (uint32_t shard = 0; shard < 2; ++shard) {
        ShardWriter writer(dir / shard_file_name("train", shard, 2), shard, 2, {"a", "b"});
        for (int i = 0; i < (shard == 0 ? 3 : 2); ++i, ++number)
            writer.add("f" + std::to_string(number), bytes_of("image " + std::to_string(number)),
                       number % 2, number == 4 ? shard_flag_repaired : 0);
        writer.finish();
    }
}

TEST(Shards, ASetIsReadInOrder) {
    const TemporaryFolder dir;
    EXPECT_FALSE(has_shards(dir.path(), "train"));
    write_two(dir.path());
    EXPECT_TRUE(has_shards(dir.path(), "train"));
    EXPECT_FALSE(has_shards(dir.path(), "val"));
    const ShardSet set = open_shards(dir.path(), "train");
    EXPECT_EQ(set.classes, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(set.labels, (std::vector<int32_t>{0, 1, 0, 1, 0}));
    ASSERT_EQ(set.store->count(), 5);
    std::vector<std::byte> bytes;
    for (int i = 0; i < 5; ++i) {
        set.store->read(i, bytes);
        EXPECT_EQ(bytes, bytes_of("image " + std::to_string(i)));
    }
    EXPECT_EQ(set.store->name(3),
              (dir / "train-00001-of-00002.shard").string() + ", record 0 (f3)");
    const std::vector<int32_t> some = {4, 0, 3};
    set.store->read_ahead(some);
}

TEST(Shards, EveryDamagedByteIsFound) {
    const TemporaryFolder dir;
    write_two(dir.path());
    const fs::path path = dir / shard_file_name("train", 0, 2);
    const std::vector<std::byte> good = read_bytes(path);
    std::vector<std::byte> image;
    for (size_t at = 0; at < good.size(); ++at) {
        std::vector<std::byte> bad = good;
        bad[at] ^= std::byte{0x10};
        write_bytes(path, bad);
        EXPECT_NE(error_of([&] {
                      const ShardFile shard(path);
                      for (int64_t i = 0; i < std::ssize(shard.contents().records); ++i)
                          shard.read(i, image);
                  }),
                  "no error")
            << "byte " << at;
    }
    for (size_t size = 0; size < good.size(); ++size) {
        write_bytes(path, std::span(good).first(size));
        EXPECT_NE(error_of([&] { ShardFile shard(path); }), "no error") << size << " bytes";
    }
    std::vector<std::byte> longer = good;
    longer.push_back(std::byte{0});
    write_bytes(path, longer);
    EXPECT_TRUE(contains(error_of([&] { ShardFile shard(path); }), "its end is missing"));
}

TEST(Shards, SetsThatDoNotBelongTogetherAreRefused) {
    const TemporaryFolder dir;
    write_two(dir.path());
    const fs::path first = dir / shard_file_name("train", 0, 2),
                   second = dir / shard_file_name("train", 1, 2);
    const auto message = [&] { return error_of([&] { open_shards(dir.path(), "train"); }); };
    fs::rename(second, dir / "kept");
    EXPECT_TRUE(contains(message(), "train-00001-of-00002.shard' is missing"));
    fs::copy(first, second);
    EXPECT_TRUE(contains(message(), "says that it is shard 0 of 2; files were renamed"));
    fs::remove(second);
    ShardWriter other(second, 1, 2, {"a", "c"});
    other.finish();
    EXPECT_TRUE(contains(message(), "has other classes than the shards before it"));
    fs::remove(second);
    fs::rename(dir / "kept", second);
    fs::copy(first, dir / shard_file_name("train", 2, 3));
    EXPECT_TRUE(contains(message(), "is of another set"));
}

TEST(Shards, AnEmptyOneIsOne) {
    const TemporaryFolder dir;
    ShardWriter(dir / shard_file_name("val", 0, 1), 0, 1, {}).finish();
    EXPECT_EQ(open_shards(dir.path(), "val").store->count(), 0);
}

}  // namespace
}  // namespace trainer
