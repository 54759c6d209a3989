// What tools/convert does, one function a subcommand. All print what they did to standard output
// and return the exit code: 0, or 1 where an image was rejected, or 75 where a signal stopped it.
// They throw Error and UsageError.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trainer::convert {

inline constexpr int exit_done = 0, exit_rejected = 1, exit_interrupted = 75;

/// Photographs in class folders to shards: `imagenet` and `folder`.
struct PackOptions {
    std::filesystem::path from, to;
    std::string val_labels = {};  ///< of a flat val/; empty: where it usually is
    double held_out = 0;          ///< share that becomes val, where there is no val/
    int64_t resize = 0;           ///< makes images whose shorter side is longer so small; 0: none
    int quality = 90;             ///< of JPEGs made so
    int64_t shard_mib = 256;      ///< of source files, about so much makes a shard
    int threads = 1;
    bool overwrite = false;      ///< drops what an earlier conversion left in `to`
    bool allow_rejects = false;  ///< exits with 0 all the same
};

/// Every image is decoded whole. What cannot be is rejected, and listed with the reason in
/// <split>-rejects.tsv; what can be mended is (data/SHARDS.md). Interrupted, by a signal (`stop`)
/// or by force, it goes on where it was when it is called again, whole shards being kept.
int pack(const PackOptions& options, const std::function<bool()>& stop);

/// Checks every checksum, and decodes every image, of the shards in a directory; says what is
/// wrong.
int verify(const std::filesystem::path& directory, bool decode, int threads,
           const std::function<bool()>& stop);

/// Says what the shards in a directory hold.
int info(const std::filesystem::path& directory, bool classes);

/// CIFAR-10 and CIFAR-100: `to_format` is binary, png or pickle; empty: binary, or png from it.
/// The format of `from` is told by its files. From one format to another and back gives the same
/// bytes, but for the file names in pickles. What it writes is in `to` once all of it is whole.
int convert_cifar(const std::filesystem::path& from, const std::filesystem::path& to,
                  const std::string& to_format, const std::function<bool()>& stop);

/// MNIST's format to PNG folders, and such folders back, likewise.
int convert_idx(const std::filesystem::path& from, const std::filesystem::path& to,
                const std::function<bool()>& stop);

}  // namespace trainer::convert
