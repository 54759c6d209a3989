// Runs kernels. Threads of a block take turns in fibers: a fiber runs one thread after the other,
// and where a thread waits for others, the next fiber goes on with those that have not begun. So a
// kernel without barriers is a plain loop.
#include <setjmp.h>
#include <ucontext.h>

#include <memory>

#include "tests/cuda_emulator/device_code.h"

cuda_emulator::Index threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_emulator {

namespace {

constexpr unsigned warp_size = 32, most_threads = 1024, most_blocks_yz = 65535;

class Grid {
  public:
    void run(dim3 grid, dim3 block, const std::function<void()>& thread);
    void sync_block() { wait(Fiber::State::at_barrier); }
    double value_of_lane(double value, unsigned mask);

  private:
    struct Fiber {
        enum class State { idle, running, at_barrier, in_warp };
        ucontext_t start{};
        jmp_buf here{};
        bool started = false;
        State state = State::idle;
        unsigned thread = 0;  // of the block
        std::unique_ptr<char[]> stack;
    };
    static constexpr size_t stack_size = size_t{64} << 10;

    void run_block();
    void resume(Fiber& fiber);
    bool release_warps();
    bool release_block();
    Fiber& idle_fiber();
    void wait(Fiber::State state);
    static void enter();
    [[noreturn]] void live();

    // Leaves `from` where it stands, for the place that `to` was left at.
    static void change(jmp_buf& from, jmp_buf& to) {
        if (_setjmp(from) == 0)
            _longjmp(to, 1);
    }

    std::vector<std::unique_ptr<Fiber>> fibers_;
    Fiber* current_ = nullptr;  // nullptr: no kernel runs
    jmp_buf scheduler_{};
    const std::function<void()>* body_ = nullptr;
    unsigned threads_ = 0, begun_ = 0, alive_ = 0;  // of the block
    std::vector<double> lanes_;
};

Grid& the_grid() {
    static Grid grid;
    return grid;
}

void Grid::run(dim3 grid, dim3 block, const std::function<void()>& thread) {
    if (block.y != 1 || block.z != 1 || block.x == 0 || block.x > most_threads)
        refuse("a launch with " + std::to_string(block.x) + " threads a block");
    if (grid.x == 0 || grid.x > INT32_MAX || grid.y == 0 || grid.y > most_blocks_yz || grid.z != 1)
        refuse("a launch of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) +
               " blocks");
    gridDim = {grid.x, grid.y, 1};
    blockDim = {block.x, 1, 1};
    threads_ = block.x;
    body_ = &thread;
    lanes_.assign(threads_ + warp_size, 0);
    const uint64_t blocks = uint64_t{grid.x} * grid.y;
    for (uint64_t i = blocks; i-- > 0;) {  // in an order that nobody may count on
        blockIdx = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x), 0};
        run_block();
    }
}

void Grid::run_block() {
    begun_ = 0;
    alive_ = threads_;
    while (begun_ < threads_)
        resume(idle_fiber());
    while (alive_ > 0)
        if (!release_warps() && !release_block())
            refuse("threads of a block wait for each other in different places");
}

Grid::Fiber& Grid::idle_fiber() {
    for (const auto& fiber : fibers_)
        if (fiber->state == Fiber::State::idle)
            return *fiber;
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_.back();
    fiber.stack.reset(new char[stack_size]);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = stack_size;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, &Grid::enter, 0);
    return fiber;
}

// Runs a fiber until it waits, or has no thread left to begin.
void Grid::resume(Fiber& fiber) {
    current_ = &fiber;
    if (fiber.state != Fiber::State::idle)
        threadIdx = {fiber.thread, 0, 0};
    fiber.state = Fiber::State::running;
    if (fiber.started) {
        change(scheduler_, fiber.here);
    } else {
        fiber.started = true;
        if (_setjmp(scheduler_) == 0)
            setcontext(&fiber.start);
    }
    current_ = nullptr;
}

void Grid::enter() {
    the_grid().live();
}

void Grid::live() {
    for (;;) {
        while (begun_ < threads_) {
            current_->thread = begun_++;
            threadIdx = {current_->thread, 0, 0};
            (*body_)();
            --alive_;
        }
        wait(Fiber::State::idle);
    }
}

void Grid::wait(Fiber::State state) {
    if (current_ == nullptr)
        refuse("a barrier outside of a kernel");
    current_->state = state;
    change(current_->here, scheduler_);
}

// Those warps whose lanes all wait for each other go on.
bool Grid::release_warps() {
    std::vector<unsigned> arrived(threads_ / warp_size + 1, 0);
    for (const auto& fiber : fibers_)
        if (fiber->state == Fiber::State::in_warp)
            ++arrived[fiber->thread / warp_size];
    bool any = false;
    for (const auto& fiber : fibers_)
        if (fiber->state == Fiber::State::in_warp &&
            arrived[fiber->thread / warp_size] == warp_size) {
            any = true;
            resume(*fiber);
        }
    return any;
}

// All go on where all wait.
bool Grid::release_block() {
    std::vector<Fiber*> waiting;
    for (const auto& fiber : fibers_)
        if (fiber->state == Fiber::State::at_barrier)
            waiting.push_back(fiber.get());
    if (waiting.size() != alive_)
        return false;
    for (Fiber* const fiber : waiting)
        resume(*fiber);
    return true;
}

double Grid::value_of_lane(double value, unsigned mask) {
    const unsigned me = threadIdx.x;
    lanes_[me] = value;
    wait(Fiber::State::in_warp);
    const double other = lanes_[me ^ mask];
    wait(Fiber::State::in_warp);  // before the next round overwrites it
    return other;
}

}  // namespace

void run_grid(dim3 grid, dim3 block, const std::function<void()>& thread) {
    the_grid().run(grid, block, thread);
}
void sync_block() {
    the_grid().sync_block();
}
double value_of_lane(double value, unsigned mask) {
    return the_grid().value_of_lane(value, mask);
}

}  // namespace cuda_emulator
