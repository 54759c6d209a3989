// Counts what a training step takes from the heap: this program's own code nothing at all. oneDNN
// itself keeps a small map of arguments for the length of each call, which no caller can prevent:
// counted apart, and given back before the step ends.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/executor.h"
#include "engine/random.h"
#include "models/models.h"

// Sanitizers have a heap of their own, which this one would bypass.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TRAINER_OTHER_HEAP 1
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> own_count{0}, library_count{0}, library_largest{0}, live{0};

bool is_of_onednn(void* caller) {
    Dl_info info;
    return dladdr(caller, &info) != 0 && info.dli_fname != nullptr &&
           (std::strstr(info.dli_fname, "libdnnl") != nullptr);
}

void count(size_t bytes, void* caller) {
    if (!counting.load(std::memory_order_relaxed))
        return;
    ++live;
    if (is_of_onednn(caller)) {
        ++library_count;
        if (static_cast<int64_t>(bytes) > library_largest)
            library_largest = static_cast<int64_t>(bytes);
    } else {
        ++own_count;
    }
}

}  // namespace

#if !defined(TRAINER_OTHER_HEAP)
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* memory);

void* malloc(size_t bytes) {
    count(bytes, __builtin_return_address(0));
    return __libc_malloc(bytes);
}

void* calloc(size_t things, size_t bytes) {
    count(things * bytes, __builtin_return_address(0));
    return __libc_calloc(things, bytes);
}

int posix_memalign(void** memory, size_t alignment, size_t bytes) {
    count(bytes, __builtin_return_address(0));
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}

void* aligned_alloc(size_t alignment, size_t bytes) {
    count(bytes, __builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

void free(void* memory) {
    if (memory && counting.load(std::memory_order_relaxed))
        --live;
    __libc_free(memory);
}
}

// Of its own, so that the caller is known: the standard library's would hide it.
void* operator new(size_t bytes) {
    count(bytes, __builtin_return_address(0));
    if (void* memory = __libc_malloc(bytes))
        return memory;
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
    free(memory);
}

void operator delete(void* memory, size_t) noexcept {
    free(memory);
}
#endif

namespace trainer {
namespace {

void expect_no_allocations(const std::string& model, int lanes, Precision precision) {
    const Network network = build_model(model, usual_options(model));
    const auto backend = make_cpu_backend({.threads = lanes, .precision = precision, .pin = false});
    const ParameterArena parameters(network.parameters(), DType::f32, {"weights", "gradients"});
    ParameterArena statistics(network.statistics(), DType::f32, {"weights"});
    initialize_weights(statistics, 1);
    Executor training(network, *backend, parameters, statistics, {.batch = 5});
    Executor inference(network, *backend, parameters, statistics, {.batch = 5, .training = false});
    const std::vector<float> images(5 * static_cast<size_t>(element_count(network.node(0).shape)));
    const std::vector<int32_t> labels(5);
    StepInput input;
    input.images = images.data();
    input.labels = labels.data();
    input.batch = 5;
    const auto both = [&] {
        training.train(input);
        inference.evaluate(input);
    };
    both();  // the first of each may fill caches
    own_count = library_count = live = 0;
    counting = true;
    both();
    const int64_t once = library_count;
    both();
    counting = false;
    EXPECT_EQ(own_count, 0);
    EXPECT_EQ(live, 0);
    EXPECT_EQ(library_count, 2 * once);
    if (backend->description().find("avx512") != std::string::npos) {
        EXPECT_LE(library_largest, 4096);  // elsewhere its matrix product copies its operands
    }
    testing::Test::RecordProperty("onednn_allocations_a_step", std::to_string(once));
}

class Allocation : public testing::TestWithParam<std::string> {
    void SetUp() override {
#if defined(TRAINER_OTHER_HEAP)
        GTEST_SKIP() << "a sanitizer's heap is not counted";
#endif
    }
};

TEST_P(Allocation, a_step_takes_nothing_from_the_heap) {
    for (const int lanes : {1, 2, 3})
        expect_no_allocations(GetParam(), lanes, Precision::fp32);
}

TEST_P(Allocation, nor_in_bf16) {
    try {
        make_cpu_backend({.threads = 1, .precision = Precision::bf16, .pin = false});
    } catch (const UsageError&) {
        GTEST_SKIP() << "this processor has no bf16";
    }
    expect_no_allocations(GetParam(), 2, Precision::bf16);
}

INSTANTIATE_TEST_SUITE_P(Models, Allocation, testing::Values("resnet20", "lenet5", "mlp"),
                         [](const auto& instance) { return instance.param; });

// That a forgotten allocation would be seen.
TEST(AllocationCount, counts) {
#if defined(TRAINER_OTHER_HEAP)
    GTEST_SKIP() << "a sanitizer's heap is not counted";
#endif
    own_count = live = 0;
    counting = true;
    std::string* const text = new std::string(1000, 'x');
    void* const block = malloc(10);
    counting = false;
    EXPECT_EQ(own_count, 3);
    EXPECT_EQ(live, 3);
    free(block);
    delete text;
}

}  // namespace
}  // namespace trainer
