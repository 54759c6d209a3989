// Checks shards, and says what they hold.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "data/folder.h"
#include "data/image.h"
#include "data/shards.h"
#include "engine/error.h"
#include "tools/conversion/convert.h"
#include "tools/conversion/pipeline.h"

namespace trainer::convert {

namespace {

namespace fs = std::filesystem;

constexpr const char* split_names[] = {"train", "val"};

void require_shards(const fs::path& directory) {
    if (!has_shards(directory, "train") && !has_shards(directory, "val"))
        throw Error("'" + directory.string() + "' holds no shards");
}

}  // namespace

int verify(const fs::path& directory, bool decode, int threads, const std::function<bool()>& stop) {
    require_shards(directory);
    std::optional<std::vector<std::string>> classes;
    int64_t bad = 0;
    for (const char* split : split_names) {
        if (!has_shards(directory, split))
            continue;
        const ShardSet set = open_shards(directory, split);
        if (classes)
            check_same_classes(*classes, set.classes, directory.string());
        classes = set.classes;
        std::vector<std::unique_ptr<ImageDecoder>> decoders;
        for (int i = 0; i < threads; ++i)
            decoders.push_back(std::make_unique<ImageDecoder>(false));
        const auto check_image = [&](int thread, int64_t i) -> std::string {
            try {
                std::vector<std::byte> bytes;
                set.store->read(i, bytes);
                if (!decode)
                    return "";
                ImageDecoder& decoder = *decoders[static_cast<size_t>(thread)];
                decoder.open(bytes);
                Image image;
                decoder.decode({0, 0, decoder.height(), decoder.width()}, image);
                return "";
            } catch (const CorruptImage& error) {
                return error.what();
            }
        };
        int64_t split_bad = 0;
        Progress progress(split, set.store->count());
        const auto take = [&](int64_t i, const std::string& why) {
            if (!why.empty()) {
                ++split_bad;
                std::cout << set.store->name(i) << ": " << why << "\n";
            }
            progress.show(i + 1);
        };
        if (!in_order<std::string>(0, set.store->count(), threads, check_image, take, stop))
            return exit_interrupted;
        std::cout << split << ": " << set.store->count() - split_bad << " of " << set.store->count()
                  << " images are as they were packed\n";
        bad += split_bad;
    }
    return bad > 0 ? exit_rejected : exit_done;
}

int info(const fs::path& directory, bool classes) {
    require_shards(directory);
    for (const char* split : split_names) {
        if (!has_shards(directory, split))
            continue;
        const std::vector<fs::path> paths = list_shards(directory, split);
        int64_t images = 0, bytes = 0, repaired = 0;
        std::vector<int64_t> of_class;
        std::vector<std::string> names;
        for (const fs::path& path : paths) {
            const ShardFile shard(path);
            names = shard.contents().classes;
            of_class.resize(names.size());
            for (const ShardRecord& record : shard.contents().records) {
                ++images;
                bytes += record.length;
                repaired += record.flags & shard_flag_repaired;
                ++of_class[record.label];
            }
        }
        std::cout << split << ": " << images << " images of " << names.size() << " classes in "
                  << paths.size() << (paths.size() == 1 ? " shard, " : " shards, ") << bytes
                  << " bytes of images, " << repaired << " repaired";
        if (!of_class.empty()) {
            const auto [least, most] = std::minmax_element(of_class.begin(), of_class.end());
            std::cout << ", " << *least << " to " << *most << " a class";
        }
        std::cout << "\n";
        for (size_t label = 0; classes && label < names.size(); ++label)
            std::cout << "  " << label << "  " << names[label] << "  " << of_class[label] << "\n";
    }
    return exit_done;
}

}  // namespace trainer::convert
