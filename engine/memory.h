// Memory that is taken once, before the first step.
#pragma once

#include <cstddef>
#include <memory>

namespace trainer {

/// A block of memory of some device; copies share it. Empty where bytes is 0.
struct Memory {
    std::shared_ptr<std::byte> data;
    size_t bytes = 0;
};

/// Zeroed host memory, aligned to 64 bytes at least, in huge pages where the system has them, and
/// already touched: a first touch inside a step would cost more than the arithmetic.
/// Throws Error where the system has not that much.
Memory allocate_host(size_t bytes);

}  // namespace trainer
