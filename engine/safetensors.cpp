#include "engine/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/crc32c.h"

namespace trainer {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "files are written as memory lies");

constexpr int64_t length_bytes = 8;
constexpr int64_t most_header_bytes = 100'000'000;  // the format's own limit
constexpr size_t chunk_bytes = size_t{1} << 20;
constexpr std::string_view no_checksum = "00000000";

int64_t element_bytes(std::string_view dtype) {
    if (dtype == "F64" || dtype == "I64" || dtype == "U64")
        return 8;
    if (dtype == "F32" || dtype == "I32" || dtype == "U32")
        return 4;
    if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16")
        return 2;
    if (dtype == "I8" || dtype == "U8" || dtype == "BOOL")
        return 1;
    return 0;
}

/// Bytes of a tensor; -1 for a shape that cannot be.
int64_t bytes_of(const Shape& shape, int64_t element) {
    int64_t bytes = element;
    for (int64_t extent : shape) {
        if (extent < 0 || (extent > 0 && bytes > std::numeric_limits<int64_t>::max() / extent))
            return -1;
        bytes *= extent;
    }
    return bytes;
}

std::string text_of(const Shape& shape) {
    return Json(shape).dump();
}

/// Length and header as they stand in the file, the checksum still zeros.
std::string head_of(const std::vector<SafetensorsItem>& items, const Metadata& metadata) {
    Json header = Json::object();
    if (!metadata.empty())
        header["__metadata__"] = metadata;
    if (metadata.contains(std::string(checksum_key)))
        header["__metadata__"][std::string(checksum_key)] = no_checksum;
    int64_t at = 0;
    for (const SafetensorsItem& item : items) {
        const auto bytes = static_cast<int64_t>(item.data.size());
        check(bytes == element_count(item.shape) * element_bytes(item.dtype),
              "bytes and shape of " + item.name + " differ");
        check(!header.contains(item.name), "two tensors named " + item.name);
        header[item.name] = {
            {"dtype", item.dtype}, {"shape", item.shape}, {"data_offsets", {at, at + bytes}}};
        at += bytes;
    }
    // What is not UTF-8, which a path or a class may be named in, is marked rather than refused.
    std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    std::string head(length_bytes, '\0');
    std::memcpy(head.data(), &length, sizeof length);
    return head + text;
}

/// Where the digits of the checksum stand in a head; npos where it has none.
size_t checksum_at(std::string_view head, std::string_view digits) {
    std::string field = "\"";
    field.append(checksum_key).append("\":\"");
    const size_t at = head.find(field + std::string(digits) + "\"");
    return at == std::string_view::npos ? at : at + field.size();
}

std::string hex(uint32_t value) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", value);
    return text;
}

}  // namespace

std::string safetensors_dtype(DType type) {
    return type == DType::f64 ? "F64" : type == DType::bf16 ? "BF16" : "F32";
}

int64_t safetensors_bytes(const std::vector<SafetensorsItem>& items, const Metadata& metadata) {
    auto bytes = static_cast<int64_t>(head_of(items, metadata).size());
    for (const SafetensorsItem& item : items)
        bytes += static_cast<int64_t>(item.data.size());
    return bytes;
}

uint32_t write_safetensors(const std::filesystem::path& path,
                           const std::vector<SafetensorsItem>& items, const Metadata& metadata) {
    std::string head = head_of(items, metadata);
    const auto checksum = [&] {
        uint32_t crc = crc32c(head.data(), head.size());
        for (const SafetensorsItem& item : items)
            crc = crc32c(item.data.data(), item.data.size(), crc);
        return crc;
    };
    uint32_t crc = checksum();
    if (metadata.contains(std::string(checksum_key))) {
        head.replace(checksum_at(head, no_checksum), no_checksum.size(), hex(crc));
        crc = checksum();
    }
    File file = File::create(path);
    file.write(head.data(), head.size());
    for (const SafetensorsItem& item : items)
        file.write(item.data.data(), item.data.size());
    file.sync();
    return crc;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(File::open_to_read(path)) {
    const int64_t size = file_.size();
    if (size < length_bytes)
        fail("only " + std::to_string(size) + " bytes long, no safetensors file");
    uint64_t length = 0;
    file_.read_at(0, &length, sizeof length);
    if (length > static_cast<uint64_t>(most_header_bytes))
        fail("a header of " + std::to_string(length) + " bytes, more than the format allows");
    data_start_ = length_bytes + static_cast<int64_t>(length);
    if (data_start_ > size)
        fail("cut short inside its header: " + std::to_string(size) + " bytes, the header needs " +
             std::to_string(data_start_));
    std::string header(length, '\0');
    file_.read_at(length_bytes, header.data(), header.size());
    parse(header, size - data_start_);
}

void SafetensorsFile::fail(const std::string& what) const {
    throw Error("'" + file_.path().string() + "': " + what);
}

void SafetensorsFile::parse(const std::string& header, int64_t data_bytes) {
    std::set<std::string> names;
    std::string twice;
    Json json;
    try {
        json = Json::parse(header, [&](int depth, Json::parse_event_t event, Json& value) {
            if (depth == 1 && event == Json::parse_event_t::key &&
                !names.insert(value.get<std::string>()).second)
                twice = value.get<std::string>();
            return true;
        });
        if (!twice.empty())
            fail("the header names '" + twice + "' twice");
        for (const auto& [name, entry] : json.items()) {
            if (name == "__metadata__") {
                metadata_ = entry.get<Metadata>();
                continue;
            }
            const auto offsets = entry.at("data_offsets").get<std::vector<int64_t>>();
            if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0])
                fail("tensor '" + name + "' lies at an impossible place");
            const SafetensorsEntry tensor{name, entry.at("dtype").get<std::string>(),
                                          entry.at("shape").get<Shape>(), offsets[0],
                                          offsets[1] - offsets[0]};
            const int64_t element = element_bytes(tensor.dtype);
            if (element == 0)
                fail("tensor '" + name + "' is of the unknown type '" + tensor.dtype + "'");
            const int64_t bytes = bytes_of(tensor.shape, element);
            if (bytes < 0)
                fail("tensor '" + name + "' has the shape " + text_of(tensor.shape));
            if (bytes != tensor.bytes)
                fail("tensor '" + name + "' of shape " + text_of(tensor.shape) + " needs " +
                     std::to_string(bytes) + " bytes, its place has " +
                     std::to_string(tensor.bytes));
            tensors_.push_back(tensor);
        }
    } catch (const nlohmann::json::exception& error) {
        fail(std::string("its header is damaged (") + error.what() + ")");
    }
    check_places(data_bytes);
    for (SafetensorsEntry& tensor : tensors_)
        tensor.offset += data_start_;
    const auto checksum = metadata_.find(std::string(checksum_key));
    if (checksum != metadata_.end()) {
        const size_t found = checksum_at(header, checksum->second);
        if (checksum->second.size() != no_checksum.size() || found == std::string::npos)
            fail("its checksum '" + checksum->second + "' is none");
        checksum_offset_ = length_bytes + static_cast<int64_t>(found);
    }
}

void SafetensorsFile::check_places(int64_t data_bytes) const {
    auto ordered = tensors_;
    std::stable_sort(ordered.begin(), ordered.end(),
                     [](const auto& a, const auto& b) { return a.offset < b.offset; });
    int64_t at = 0;
    for (const SafetensorsEntry& tensor : ordered) {
        if (tensor.offset != at)
            fail("tensor '" + tensor.name + "' begins at " + std::to_string(tensor.offset) +
                 ", the one before it ends at " + std::to_string(at));
        at += tensor.bytes;
    }
    if (at != data_bytes)
        fail(std::string(at > data_bytes ? "cut short" : "too long") + ": " +
             std::to_string(data_bytes) + " bytes of tensors, its header says " +
             std::to_string(at));
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const auto& tensor) { return tensor.name == name; });
    return found == tensors_.end() ? nullptr : &*found;
}

void SafetensorsFile::read(std::string_view name, const Shape& shape,
                           std::span<float> target) const {
    read_as(name, shape, target);
}

void SafetensorsFile::read(std::string_view name, const Shape& shape,
                           std::span<double> target) const {
    read_as(name, shape, target);
}

template <typename T>
void SafetensorsFile::read_as(std::string_view name, const Shape& shape,
                              std::span<T> target) const {
    const SafetensorsEntry* tensor = find(name);
    if (tensor == nullptr)
        fail("has no tensor '" + std::string(name) + "'");
    if (tensor->shape != shape)
        fail("tensor '" + std::string(name) + "' is " + text_of(tensor->shape) + ", not " +
             text_of(shape));
    check(static_cast<int64_t>(target.size()) == element_count(shape), "target of another size");
    const auto convert = [&]<typename Stored, typename Value>(Stored, Value value) {
        if constexpr (std::is_same_v<Stored, T>) {
            file_.read_at(tensor->offset, target.data(), target.size_bytes());
        } else {
            std::vector<Stored> stored(target.size());
            file_.read_at(tensor->offset, stored.data(), stored.size() * sizeof(Stored));
            std::transform(stored.begin(), stored.end(), target.begin(),
                           [&](Stored from) { return static_cast<T>(value(from)); });
        }
    };
    if (tensor->dtype == "F32")
        convert(float{}, [](float value) { return value; });
    else if (tensor->dtype == "F64")
        convert(double{}, [](double value) { return value; });
    else if (tensor->dtype == "BF16")
        convert(uint16_t{}, [](uint16_t bits) {
            return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
        });
    else
        fail("tensor '" + std::string(name) + "' holds " + tensor->dtype +
             ", where F32, F64 or BF16 is read");
}

uint32_t SafetensorsFile::checksum() const {
    return checksum_after(0, 0);
}

uint32_t SafetensorsFile::checksum_after(int64_t offset, uint32_t crc) const {
    std::vector<std::byte> chunk(chunk_bytes);
    for (const int64_t size = file_.size(); offset < size;) {
        const size_t bytes = std::min(chunk.size(), static_cast<size_t>(size - offset));
        file_.read_at(offset, chunk.data(), bytes);
        crc = crc32c(chunk.data(), bytes, crc);
        offset += static_cast<int64_t>(bytes);
    }
    return crc;
}

void SafetensorsFile::verify() const {
    if (checksum_offset_ < 0)
        return;
    std::string head(static_cast<size_t>(data_start_), '\0');
    file_.read_at(0, head.data(), head.size());
    head.replace(static_cast<size_t>(checksum_offset_), no_checksum.size(), no_checksum);
    const std::string found = hex(checksum_after(data_start_, crc32c(head.data(), head.size())));
    const std::string& expected = metadata_.at(std::string(checksum_key));
    if (found != expected)
        fail("damaged: its checksum is " + found + ", not " + expected);
}

}  // namespace trainer
