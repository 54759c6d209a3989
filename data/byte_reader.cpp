// Plain files are read straight to the caller; gzip goes through zlib, member after member.
#include "data/byte_reader.h"

#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "engine/error.h"

namespace trainer {

struct ByteReader::State {
    std::filesystem::path path;
    std::string advice;
    std::FILE* file = nullptr;
    int64_t file_size = 0;
    int64_t position = 0;

    bool packed = false;
    bool member_open = false;  // inside a gzip member, whose end must come
    z_stream zlib{};
    std::vector<unsigned char> input;  // packed bytes not yet unpacked: zlib.next_in, avail_in
    int64_t file_position = 0;         // packed bytes read from the file

    ~State() {
        if (packed)
            inflateEnd(&zlib);
        if (file != nullptr)
            std::fclose(file);
    }
};

ByteReader::ByteReader(const std::filesystem::path& path, std::string advice)
    : state_(std::make_unique<State>()) {
    state_->path = path;
    state_->advice = std::move(advice);
    std::error_code not_there;
    if (std::filesystem::is_directory(path, not_there))
        fail("is a directory, a file was expected");
    state_->file = std::fopen(path.c_str(), "rb");
    if (state_->file == nullptr)
        fail(errno == ENOENT ? "no such file"
                             : std::string("cannot be opened (") + std::strerror(errno) + ")");
    state_->file_size = static_cast<int64_t>(std::filesystem::file_size(path, not_there));

    unsigned char magic[2] = {};
    const size_t found = std::fread(magic, 1, 2, state_->file);
    std::rewind(state_->file);
    const bool gzip = found == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
    if (path.extension() == ".gz" && !gzip)
        fail(found < 2 ? "gzip cut short: " + std::to_string(state_->file_size) + " bytes"
                       : "not gzip, although its name ends in .gz");
    if (gzip) {
        constexpr int gzip_window = 15 + 16;  // the largest window, gzip headers and trailers
        check(inflateInit2(&state_->zlib, gzip_window) == Z_OK, "zlib does not start");
        state_->packed = true;
        state_->member_open = true;
        state_->input.resize(size_t{1} << 18);
    }
}

ByteReader::~ByteReader() = default;

int64_t ByteReader::position() const {
    return state_->position;
}

bool ByteReader::packed() const {
    return state_->packed;
}

int64_t ByteReader::size_bound() const {
    return state_->packed ? state_->file_size * 1032 : state_->file_size;
}

void ByteReader::fail(const std::string& what) const {
    throw Error(state_->path.string() + ": " + what + "; " + state_->advice);
}

size_t ByteReader::read(void* to, size_t bytes) {
    State& s = *state_;
    const auto from_file = [&](void* target, size_t count) {
        const size_t got = std::fread(target, 1, count, s.file);
        if (got < count && std::ferror(s.file) != 0)
            fail(std::string("cannot be read (") + std::strerror(errno) + ")");
        return got;
    };
    if (!s.packed) {
        const size_t got = from_file(to, bytes);
        s.position += static_cast<int64_t>(got);
        return got;
    }

    const auto packed_at = [&] { return std::to_string(s.file_position - s.zlib.avail_in); };
    size_t got = 0;
    while (got < bytes) {
        if (s.zlib.avail_in == 0) {
            s.zlib.next_in = s.input.data();
            s.zlib.avail_in = static_cast<uInt>(from_file(s.input.data(), s.input.size()));
            s.file_position += s.zlib.avail_in;
            if (s.zlib.avail_in == 0) {
                if (s.member_open)
                    fail("gzip cut short: its " + std::to_string(s.file_size) +
                         " bytes end after " + std::to_string(s.position) + " unpacked ones");
                break;
            }
        }
        if (!s.member_open) {  // gzip allows a further member here, and nothing else
            if (s.zlib.next_in[0] != 0x1f)
                fail("garbage behind the end of gzip at byte " + packed_at());
            inflateReset(&s.zlib);
            s.member_open = true;
        }
        constexpr size_t most = size_t{1} << 30;  // zlib counts in 32 bits
        const size_t step = bytes - got < most ? bytes - got : most;
        s.zlib.next_out = static_cast<unsigned char*>(to) + got;
        s.zlib.avail_out = static_cast<uInt>(step);
        const int result = inflate(&s.zlib, Z_NO_FLUSH);
        const size_t unpacked = step - s.zlib.avail_out;
        got += unpacked;
        s.position += static_cast<int64_t>(unpacked);
        if (result == Z_STREAM_END)
            s.member_open = false;
        else if (result != Z_OK && result != Z_BUF_ERROR)
            fail("gzip is corrupt near byte " + packed_at() + " (" +
                 (s.zlib.msg != nullptr ? s.zlib.msg : "unknown reason") + ")");
    }
    return got;
}

}  // namespace trainer
