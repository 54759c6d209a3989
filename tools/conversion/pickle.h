// As much of Python's pickle format as CIFAR's python version is written in: a dictionary of
// strings, lists of numbers and strings, and one array of bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainer::convert {

/// A value of a pickle.
struct PickleValue {
    enum class Kind { none, number, text, list, dictionary, array, other };
    Kind kind = Kind::none;
    int64_t number = 0;
    std::string text;  ///< of a string; of an array its bytes, in the order of C
    std::vector<std::shared_ptr<PickleValue>>
        items;  ///< of a list, a tuple; of `other` what it has
    std::map<std::string, std::shared_ptr<PickleValue>> entries;  ///< of a dictionary
    std::vector<int64_t> shape;                                   ///< of an array
};

/// Reads a pickle of protocol 0 to 5 that uses no more than the above. Nothing in it is run.
/// `name` is what messages call it. Throws Error where it is damaged or holds something else.
std::shared_ptr<PickleValue> read_pickle(std::span<const std::byte> bytes, const std::string& name);

/// What a pickle of CIFAR is written of.
struct PickleBatch {
    std::string label;  ///< batch_label, e.g. "training batch 1 of 5"
    /// Lists of one number a record, by key: labels, or coarse_labels and fine_labels.
    std::map<std::string, std::vector<int>> labels;
    std::span<const uint8_t> data;  ///< [records, columns]
    int64_t records = 0, columns = 0;
    std::vector<std::string> filenames;
};

/// A pickle of protocol 2 as CIFAR's authors wrote it: text as Python 2's, which Python 3 loads
/// with encoding="bytes".
std::vector<std::byte> write_pickle(const PickleBatch& batch);

/// The same of lists of strings, by key: batches.meta and meta.
std::vector<std::byte> write_pickle(const std::map<std::string, std::vector<std::string>>& lists);

}  // namespace trainer::convert
