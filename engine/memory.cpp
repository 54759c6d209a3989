#include "engine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "engine/error.h"

namespace trainer {

Memory allocate_host(size_t bytes) {
    if (bytes == 0)
        return {};
    constexpr size_t huge_page = size_t{2} << 20;
    // Room to start on a huge page's boundary, which mmap does not promise.
    const bool huge = bytes >= huge_page;
    const size_t mapped = (bytes + 4095) / 4096 * 4096 + (huge ? huge_page : 0);
    void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        throw Error("the system refused " + std::to_string(bytes >> 20) +
                    " MiB of memory; take a smaller batch or free some");
    auto address = reinterpret_cast<uintptr_t>(base);
    if (huge) {
        address = (address + huge_page - 1) / huge_page * huge_page;
        // Only advice: without huge pages all is the same, slower.
        madvise(reinterpret_cast<void*>(address), bytes, MADV_HUGEPAGE);
    }
    auto* first = reinterpret_cast<std::byte*>(address);
    for (size_t at = 0; at < bytes; at += 4096)
        first[at] = std::byte{0};
    return {std::shared_ptr<std::byte>(first, [base, mapped](std::byte*) { munmap(base, mapped); }),
            bytes};
}

}  // namespace trainer
