#include "comm/buffer_pool.h"

#include <utility>

namespace trainer {

PooledBytes::~PooledBytes() {
    if (pool_ != nullptr)
        pool_->give_back(std::move(memory_));
}

void PooledBytes::swap(PooledBytes& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(memory_, other.memory_);
    std::swap(size_, other.size_);
}

PooledBytes BufferPool::take(size_t bytes) {
    PooledBytes buffer;
    if (bytes == 0)
        return buffer;
    buffer.pool_ = shared_from_this();
    buffer.size_ = bytes;
    constexpr size_t page = 4096;
    const size_t rounded = (bytes + page - 1) / page * page;
    {
        const std::lock_guard lock(mutex_);
        const auto found = free_.lower_bound(rounded);
        if (found != free_.end() && found->first <= 2 * rounded) {
            buffer.memory_ = std::move(found->second);
            free_.erase(found);
            return buffer;
        }
    }
    buffer.memory_ = allocate_host(rounded);
    return buffer;
}

void BufferPool::give_back(Memory memory) {
    const std::lock_guard lock(mutex_);
    free_.emplace(memory.bytes, std::move(memory));
}

}  // namespace trainer
