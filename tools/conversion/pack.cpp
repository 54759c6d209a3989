// Class folders to shards.
//
// While a split is packed, <split>.plan in the target says of what, and <shard>.report beside each
// shard that is whole what became of its images. A shard gets its name after its report has, so
// that one with a name is done.
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "data/folder.h"
#include "data/jpeg.h"
#include "data/resample.h"
#include "data/shards.h"
#include "engine/crc32c.h"
#include "engine/error.h"
#include "tools/conversion/convert.h"
#include "tools/conversion/output_folder.h"
#include "tools/conversion/pipeline.h"

namespace trainer::convert {

namespace {

namespace fs = std::filesystem;

/// What became of one image.
struct Packed {
    std::vector<std::byte> bytes;
    std::string repaired;  ///< how; empty: nothing was to repair
    std::string rejected;  ///< why; empty: it was not
};

/// What a thread packs images with.
class Packer {
  public:
    explicit Packer(const PackOptions& options) : options_(options) {}

    Packed pack(const ImageStore& store, int64_t index) {
        Packed packed;
        try {
            store.read(index, packed.bytes);
            decoder_.open(packed.bytes);
            const int64_t shorter = std::min(decoder_.height(), decoder_.width());
            const bool smaller = options_.resize > 0 && shorter > options_.resize;
            decoder_.decode({0, 0, decoder_.height(), decoder_.width()}, image_);
            if (smaller)
                make_smaller(packed);
            else
                mend(packed);
        } catch (const UsageError&) {
            throw;
        } catch (const Error& error) {
            packed.rejected = error.what();
        }
        return packed;
    }

  private:
    void make_smaller(Packed& packed) {
        const int orientation =
            is_jpeg(packed.bytes) ? read_jpeg_info(packed.bytes).orientation : 1;
        const int64_t shorter = std::min(image_.height, image_.width);
        const auto scaled = [&](int64_t extent) { return extent * options_.resize / shorter; };
        rows_.plan(image_.height, scaled(image_.height), 0, scaled(image_.height));
        columns_.plan(image_.width, scaled(image_.width), 0, scaled(image_.width));
        resampler_.run(image_, rows_, columns_, smaller_);
        packed.bytes = encode_jpeg(smaller_, options_.quality, orientation);
    }

    /// Of an image that was decoded whole.
    static void mend(Packed& packed) {
        if (!is_jpeg(packed.bytes))
            return;
        const size_t end = read_jpeg_info(packed.bytes).end;
        if (end == 0) {
            packed.bytes.push_back(std::byte{0xff});
            packed.bytes.push_back(std::byte{0xd9});
            packed.repaired = "its end marker was missing";
        } else if (end < packed.bytes.size()) {
            packed.repaired =
                std::to_string(packed.bytes.size() - end) + " bytes behind its end left out";
            packed.bytes.resize(end);
        }
    }

    const PackOptions& options_;
    ImageDecoder decoder_{false};
    Image image_, smaller_;
    ResampleAxis rows_, columns_;
    Resampler resampler_;
};

/// A path as a field of a line.
std::string printable(std::string_view text) {
    std::string result;
    for (const char c : text) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
        result += static_cast<unsigned char>(c) < 0x20 || c == '\\' ? std::string(escaped)
                                                                    : std::string(1, c);
    }
    return result;
}

/// What became of the images of a shard, or of all: lines "ok<TAB>count" and
/// "repaired|rejected<TAB>path<TAB>why".
struct Report {
    int64_t ok = 0;
    std::vector<std::string> repaired, rejected;  ///< "path<TAB>why"

    void add(std::string_view path, const Packed& packed) {
        if (!packed.rejected.empty())
            rejected.push_back(printable(path) + "\t" + printable(packed.rejected));
        else if (!packed.repaired.empty())
            repaired.push_back(printable(path) + "\t" + packed.repaired);
        else
            ++ok;
    }

    void add(const Report& other) {
        ok += other.ok;
        repaired.insert(repaired.end(), other.repaired.begin(), other.repaired.end());
        rejected.insert(rejected.end(), other.rejected.begin(), other.rejected.end());
    }

    void write(const fs::path& path) const {
        std::ofstream file(path);
        file << "ok\t" << ok << "\n";
        for (const std::string& line : repaired)
            file << "repaired\t" << line << "\n";
        for (const std::string& line : rejected)
            file << "rejected\t" << line << "\n";
        if (!file.flush())
            throw Error("'" + path.string() + "' cannot be written");
    }

    static Report read(const fs::path& path) {
        Report report;
        std::ifstream file(path);
        for (std::string line; std::getline(file, line);) {
            const size_t tab = line.find('\t');
            const std::string kind = line.substr(0, tab), rest = line.substr(tab + 1);
            if (kind == "ok")
                report.ok = std::stoll(rest);
            else
                (kind == "repaired" ? report.repaired : report.rejected).push_back(rest);
        }
        return report;
    }
};

class SplitPacker {
  public:
    SplitPacker(const PackOptions& options, std::string split, FolderListing listing,
                const std::function<bool()>& stop)
        : options_(options), split_(std::move(split)), listing_(std::move(listing)), stop_(stop) {
        store_ = make_folder_store(listing_.directory, listing_.files);
        cut_into_shards();
    }

    /// False: stopped.
    bool run() {
        begin();
        std::vector<std::unique_ptr<Packer>> packers;
        for (int i = 0; i < options_.threads; ++i)
            packers.push_back(std::make_unique<Packer>(options_));
        Progress progress(split_, listing_.files.count());
        for (uint32_t shard = 0; shard + 1 < starts_.size(); ++shard) {
            const fs::path path = shard_path(shard);
            if (fs::exists(path) && fs::exists(report_path(shard)))
                total_.add(Report::read(report_path(shard)));
            else if (!pack_shard(shard, packers, progress))
                return false;
        }
        finish();
        return true;
    }

    const Report& total() const { return total_; }
    fs::path rejects_path() const { return options_.to / (split_ + "-rejects.tsv"); }

  private:
    uint32_t shards() const { return static_cast<uint32_t>(starts_.size()) - 1; }
    fs::path shard_path(uint32_t shard) const {
        return options_.to / shard_file_name(split_, shard, shards());
    }
    fs::path report_path(uint32_t shard) const { return shard_path(shard).string() + ".report"; }
    fs::path plan_path() const { return options_.to / (split_ + ".plan"); }

    /// Shards are cut by the sizes of the source files, whatever becomes of them; so they are known
    /// before anything is packed.
    void cut_into_shards() {
        const int64_t most = options_.shard_mib << 20;
        int64_t size = 0;
        uint32_t digest = 0;
        const auto digest_text = [&](const std::string& text) {
            digest = crc32c(text.data(), text.size() + 1, digest);
        };
        starts_.push_back(0);
        for (int64_t i = 0; i < listing_.files.count(); ++i) {
            struct stat status {};
            const std::string file(listing_.files[i]);
            stat((listing_.directory / file).c_str(), &status);
            if (size > 0 && size + status.st_size > most) {
                starts_.push_back(i);
                size = 0;
            }
            size += status.st_size;
            digest_text(file);
            digest_text(std::to_string(status.st_size) + " " +
                        std::to_string(listing_.labels[static_cast<size_t>(i)]));
        }
        starts_.push_back(listing_.files.count());
        for (const std::string& name : listing_.classes)
            digest_text(name);
        std::ostringstream plan;
        plan << listing_.files.count() << " images in " << listing_.classes.size()
             << " classes, shards of " << options_.shard_mib << " MiB, resize " << options_.resize
             << ", quality " << options_.quality << ", digest " << digest;
        plan_ = plan.str();
    }

    /// Takes up an earlier conversion, or begins a new one.
    void begin() {
        std::string earlier;
        std::ifstream file(plan_path());
        const bool interrupted = static_cast<bool>(std::getline(file, earlier));
        if (options_.overwrite) {
            remove_earlier();
        } else if (interrupted && earlier != plan_) {
            throw UsageError("'" + options_.to.string() +
                             "' holds the beginning of another conversion (" + earlier + ", not " +
                             plan_ + "); choose another place, or --overwrite it");
        } else if (!interrupted && has_shards(options_.to, split_)) {
            throw UsageError("'" + options_.to.string() +
                             "' holds shards already; choose another " +
                             "place, or --overwrite them");
        } else if (interrupted) {
            std::cout << split_ << ": goes on where it was interrupted\n";
        }
        std::ofstream plan(plan_path());
        plan << plan_ << "\n";
        if (!plan.flush())
            throw Error("'" + plan_path().string() + "' cannot be written");
    }

    void remove_earlier() {
        std::vector<fs::path> earlier;
        for (const auto& entry : fs::directory_iterator(options_.to)) {
            const std::string name = entry.path().filename().string();
            if (name.starts_with(split_ + "-") && name.find(".shard") != std::string::npos)
                earlier.push_back(entry.path());
        }
        for (const fs::path& path : earlier)
            fs::remove(path);
    }

    bool pack_shard(uint32_t shard, std::vector<std::unique_ptr<Packer>>& packers,
                    Progress& progress) {
        ShardWriter writer(shard_path(shard), shard, shards(), listing_.classes);
        Report report;
        const auto make = [&](int thread, int64_t i) {
            return packers[static_cast<size_t>(thread)]->pack(*store_, i);
        };
        const auto take = [&](int64_t i, Packed packed) {
            report.add(listing_.files[i], packed);
            if (packed.rejected.empty())
                writer.add(listing_.files[i], packed.bytes,
                           static_cast<uint32_t>(listing_.labels[static_cast<size_t>(i)]),
                           packed.repaired.empty() ? 0 : shard_flag_repaired);
            const size_t rejected = total_.rejected.size() + report.rejected.size();
            progress.show(i + 1, rejected > 0 ? std::to_string(rejected) + " rejected" : "");
        };
        if (!in_order<Packed>(starts_[shard], starts_[shard + 1], options_.threads, make, take,
                              stop_))
            return false;
        report.write(report_path(shard));
        writer.finish();
        total_.add(report);
        return true;
    }

    void finish() {
        for (const std::string& fault : listing_.faults) {
            const size_t colon = fault.rfind(": ");
            total_.rejected.push_back(printable(fault.substr(0, colon)) + "\t" +
                                      printable(fault.substr(colon + 2)));
        }
        std::error_code ignored;
        fs::remove(rejects_path(), ignored);
        if (!total_.rejected.empty()) {
            std::ofstream list(rejects_path());
            for (const std::string& line : total_.rejected)
                list << line << "\n";
            if (!list.flush())
                throw Error("'" + rejects_path().string() + "' cannot be written");
        }
        sync_directory(options_.to);
        for (uint32_t shard = 0; shard < shards(); ++shard)
            fs::remove(report_path(shard), ignored);
        fs::remove(plan_path(), ignored);
    }

    const PackOptions& options_;
    std::string split_;
    FolderListing listing_;
    const std::function<bool()>& stop_;
    std::shared_ptr<const ImageStore> store_;
    std::vector<int64_t> starts_;  // first image of each shard, and the end
    std::string plan_;
    Report total_;
};

}  // namespace

int pack(const PackOptions& options, const std::function<bool()>& stop) {
    if (options.resize > 0 && !has_jpeg_library())
        throw UsageError("--resize: this build was made without libjpeg-turbo");
    const auto from = fs::weakly_canonical(options.from), to = fs::weakly_canonical(options.to);
    if (std::ranges::mismatch(from, to).in1 == from.end())
        throw UsageError("'" + options.to.string() + "' lies in '" + options.from.string() +
                         "', whose folders are classes; pack into another place");
    const FolderLayout layout{
        options.from, options.val_labels, options.held_out, {"FROM", "--val-labels", "--split"}};
    FolderListing training = layout.list(Split::train);
    if (const std::string unused = layout.unused(); !unused.empty())
        throw UsageError(unused + "; leave it out");
    std::vector<std::pair<std::string, FolderListing>> splits;
    if (layout.has_test()) {
        FolderListing test = layout.list(Split::test);
        check_same_classes(training.classes, test.classes, options.from.string());
        splits.emplace_back("val", std::move(test));
    } else {
        std::cerr << "convert: warning: '" << options.from.string()
                  << "' has no val/, so the shards have no images to test with, which training "
                     "wants; convert folder --split 0.1 holds some out\n";
    }
    splits.emplace(splits.begin(), "train", std::move(training));
    for (const auto& [split, listing] : splits) {
        const std::string images = split == "train" ? "training images" : "validation images";
        const std::string empty = empty_classes(listing.classes, listing.labels, images);
        if (!empty.empty() && (split == "train" || options.held_out == 0))
            std::cerr << "convert: warning: '" << listing.directory.string() << "': " << empty
                      << "\n";
    }
    const OutputFolder folder(options.to);
    bool rejected = false;
    for (auto& [split, listing] : splits) {
        SplitPacker packer(options, split, std::move(listing), stop);
        if (!packer.run()) {
            std::cout << split << ": interrupted; the same command goes on from here\n";
            return exit_interrupted;
        }
        const Report& total = packer.total();
        std::cout << split << ": " << total.ok << " ok, " << total.repaired.size() << " repaired, "
                  << total.rejected.size() << " rejected";
        if (!total.rejected.empty())
            std::cout << ", see " << packer.rejects_path().string();
        std::cout << "\n";
        for (const std::string& line : total.repaired)
            std::cout << "  repaired " << line.substr(0, line.find('\t')) << ": "
                      << line.substr(line.find('\t') + 1) << "\n";
        rejected = rejected || !total.rejected.empty();
    }
    return rejected && !options.allow_rejects ? exit_rejected : exit_done;
}

}  // namespace trainer::convert
