// A libcuda.so.1 for tests of what is said where there is no GPU: it answers what the program asks
// before it opens its CUDA engine, and nothing else. TRAINER_FAKE_GPUS lists compute capabilities,
// e.g. "90,70"; TRAINER_FAKE_ERROR is what cuInit returns.
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int capability_major = 75, capability_minor = 76;  // cuda.h's numbers of attributes

std::vector<int> capabilities() {
    const char* const listed = std::getenv("TRAINER_FAKE_GPUS");
    std::vector<int> result;
    std::istringstream stream(listed == nullptr ? "" : listed);
    for (std::string one; std::getline(stream, one, ',');)
        result.push_back(std::stoi(one));
    return result;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
    const char* const error = std::getenv("TRAINER_FAKE_ERROR");
    return error == nullptr ? 0 : std::atoi(error);
}

int cuDeviceGetCount(int* count) {
    *count = static_cast<int>(capabilities().size());
    return 0;
}

int cuDeviceGetAttribute(int* value, int which, int device) {
    const int capability = capabilities().at(static_cast<size_t>(device));
    *value = which == capability_major   ? capability / 10
             : which == capability_minor ? capability % 10
                                         : 0;
    return 0;
}

int cuGetErrorName(int, const char** name) {
    *name = "CUDA_ERROR_NO_DEVICE";
    return 0;
}
}
