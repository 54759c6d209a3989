// BufferPool: memory for incoming payloads that is used again, since a fresh page costs more than
// the bytes that are written to it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "engine/memory.h"

namespace trainer {

class BufferPool;

/// Bytes lent by a pool, aligned to 64; they go back when it is destroyed. Movable.
class PooledBytes {
  public:
    PooledBytes() = default;
    PooledBytes(PooledBytes&& other) noexcept { swap(other); }
    PooledBytes& operator=(PooledBytes&& other) noexcept {
        PooledBytes(std::move(other)).swap(*this);
        return *this;
    }
    ~PooledBytes();

    std::span<std::byte> bytes() const { return {memory_.data.get(), size_}; }

    /// The bytes as elements; a rest that fills none is left out.
    template <typename T>
    std::span<T> as() const {
        return {reinterpret_cast<T*>(memory_.data.get()), size_ / sizeof(T)};
    }

    /// Forgets the bytes behind the first `size`.
    void shorten(size_t size) { size_ = size; }

  private:
    friend class BufferPool;
    void swap(PooledBytes& other) noexcept;

    std::shared_ptr<BufferPool> pool_;
    Memory memory_;
    size_t size_ = 0;
};

/// Usable from any thread.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
  public:
    static std::shared_ptr<BufferPool> make() { return std::make_shared<BufferPool>(); }

    /// `bytes` of memory, its contents whatever was there before.
    PooledBytes take(size_t bytes);

  private:
    friend class PooledBytes;
    void give_back(Memory memory);

    std::mutex mutex_;
    std::multimap<size_t, Memory> free_;  // by size
};

}  // namespace trainer
