// Configs: any bytes as a YAML file, any as values of --set.
//
// Up to the first zero byte the input is the file, after that one --set each. What is accepted must
// be the same config again once it has been printed.
#include <algorithm>

#include "optim/codec.h"
#include "tests/fuzz/fuzz.h"
#include "tools/trainer/config.h"

namespace trainer {

// Variants are named here and never made; clang 14 does not compile what these are made of.
std::unique_ptr<Codec> make_raw_codec() {
    std::abort();
}
std::unique_ptr<Codec> make_fp16_codec() {
    std::abort();
}
std::unique_ptr<Codec> make_bf16_codec() {
    std::abort();
}

}  // namespace trainer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace trainer;
    using namespace trainer::fuzz;
    std::vector<std::string> parts(1);
    for (size_t i = 0; i < size; ++i)
        if (data[i] == 0)
            parts.emplace_back();
        else
            parts.back().push_back(static_cast<char>(data[i]));
    const std::vector<std::string> overrides(parts.begin() + 1, parts.end());
    try {
        const Config config = parse_config(parts[0], "configs/fuzz.yaml", overrides);
        const std::string text = print_config(config);
        const Config again = parse_config(text, "configs/fuzz.yaml");
        expect(print_config(again) == text);
        expect(flat(again) == flat(config));
    } catch (const UsageError& error) {
        expect(std::string(error.what()).find('\n') == std::string::npos);
    }
    return 0;
}
