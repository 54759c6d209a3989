#include "engine/cpu/winograd.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine/cpu/winograd_transforms.h"

namespace trainer::cpu::winograd {

namespace {

// sums[r][n] += column[r * column_stride] * row[n * row_stride], the latter of 16 outputs.
template <int R, int N>
[[gnu::always_inline]] inline void add_outer(Vector (&sums)[R][N], const float* column,
                                             int64_t column_stride, const float* row,
                                             int64_t row_stride) {
    Vector outputs[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n)
        outputs[n] = load<block>(row + n * row_stride);
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
        const Vector value = Vector{} + column[r * column_stride];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n)
            sums[r][n] = fma(value, outputs[n], sums[r][n]);
    }
}

// target [R, N * 16] = tiles [input blocks, R, 16] * weights [inputs, N * 16], of one point.
template <int R, int N>
void multiply(const float* tiles, int64_t input_blocks, const float* weights, float* target) {
    Vector sums[R][N] = {};
    for (int64_t i = 0; i < input_blocks; ++i, tiles += R * block) {
        for (int channel = 0; channel < block; ++channel, weights += N * block)
            add_outer<R, N>(sums, tiles + channel, block, weights, block);
    }
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n)
            store<block>(target + (r * N + n) * block, sums[r][n]);
}

// sums [16, 16] of N output blocks, `sums_stride` apart, += the products of one input block's tiles
// [count, 16] and N output blocks' [count, 16], `stride` apart, over the tiles.
template <int N>
void add_products(const float* inputs, const float* outputs, int64_t stride, int64_t count,
                  float* target, int64_t target_stride) {
    constexpr int channels = 8;
    for (int first = 0; first < block; first += channels) {
        Vector sums[channels][N];
#pragma GCC unroll 8
        for (int c = 0; c < channels; ++c)
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n)
                sums[c][n] = load<block>(target + n * target_stride + (first + c) * block);
        const float* input = inputs + first;
        const float* output = outputs;
        for (int64_t t = 0; t < count; ++t, input += block, output += block)
            add_outer<channels, N>(sums, input, 1, output, stride);
#pragma GCC unroll 8
        for (int c = 0; c < channels; ++c)
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n)
                store<block>(target + n * target_stride + (first + c) * block, sums[c][n]);
    }
}

using Multiply = void (*)(const float*, int64_t, const float*, float*);
constexpr int most_rows = 14;  // of two blocks each: 28 sums in registers

template <int N, size_t... R>
constexpr std::array<Multiply, most_rows + 1> multiplies(std::index_sequence<R...>) {
    return {nullptr, &multiply<static_cast<int>(R) + 1, N>...};
}
constexpr auto multiply_one = multiplies<1>(std::make_index_sequence<most_rows>());
constexpr auto multiply_two = multiplies<2>(std::make_index_sequence<most_rows>());

// Points of one kind lie this far apart, in floats: never a multiple of 4 KiB, which would put all
// 36 in one set of the cache.
int64_t apart(int64_t floats) {
    return floats + block;
}

// How many tiles go together: rows of the matrix product, and blocks of rows in a group.
struct Plan {
    int64_t rows, group;  // in tiles; group is a multiple of rows
};

// So many tiles a group that what is done once a group counts little, and that they stay in the
// second level of the cache where they can.
int64_t groups_of(int64_t tiles, int64_t channels) {
    const int64_t wanted = std::max<int64_t>(channels >= 256 ? 112 : 56, 896 / channels);
    return std::max<int64_t>(1, (tiles + wanted / 2) / wanted);
}

Plan plan_convolve(const Geometry& geometry) {
    const int64_t tiles = geometry.tiles();
    const int64_t blocks = (tiles + most_rows - 1) / most_rows;
    const int64_t rows = (tiles + blocks - 1) / blocks;
    const int64_t groups = groups_of(tiles, geometry.inputs);
    return {rows, (blocks + groups - 1) / groups * rows};
}

int64_t plan_gradient(const Geometry& geometry) {
    const int64_t tiles = geometry.tiles();
    const int64_t groups = groups_of(tiles, std::max(geometry.inputs, geometry.outputs));
    return (tiles + groups - 1) / groups;
}

size_t bytes_of(int64_t floats) {
    return static_cast<size_t>(floats) * sizeof(float);
}

float* take(std::byte*& scratch, int64_t floats) {
    auto* const taken = reinterpret_cast<float*>(scratch);
    scratch += bytes_of(floats);
    return taken;
}

}  // namespace

bool available() {
#if defined(__AVX512F__)
    return true;
#else
    return false;
#endif
}

size_t convolve_scratch(const Geometry& geometry) {
    const Plan plan = plan_convolve(geometry);
    return bytes_of(points * (apart(geometry.inputs * plan.group) +
                              apart(geometry.inputs * 2 * block) + apart(plan.group * 2 * block)));
}

template <typename T>
void convolve(const Geometry& geometry, const T* source, const Weights& weights, const float* bias,
              T* target, std::byte* scratch) {
    const auto [rows, group] = plan_convolve(geometry);
    const int64_t input_blocks = geometry.inputs / block, output_blocks = geometry.outputs / block;
    const int64_t pixels = geometry.height * geometry.width * block;
    const int64_t tiles_apart = apart(geometry.inputs * group);
    // [36][group / rows][inputs / 16][rows][16]
    float* const transformed = take(scratch, points * tiles_apart);
    // [36][inputs][1 or 2 blocks of 16], [36][group][1 or 2 blocks of 16]
    float* const taps = take(scratch, points * apart(geometry.inputs * 2 * block));
    float* const products = take(scratch, points * apart(group * 2 * block));
    const Tiles tiles(geometry);
    const int64_t count = geometry.tiles();
    for (int64_t first = 0; first < count; first += group) {
        const int64_t in_group = std::min(group, count - first);
        for (int64_t t = 0; t < in_group; ++t) {
            const Tile tile = tiles[first + t];
            float* const place = transformed + t / rows * rows * geometry.inputs + t % rows * block;
            for (int64_t i = 0; i < input_blocks; ++i)
                transform_input(source + (tile.sample * input_blocks + i) * pixels, geometry, tile,
                                place + i * rows * block, tiles_apart);
        }
        for (int64_t output = 0; output < output_blocks; output += 2) {
            const int64_t width = std::min<int64_t>(2, output_blocks - output);
            const int64_t taps_apart = apart(geometry.inputs * width * block);
            const int64_t products_apart = apart(group * width * block);
            if (first == 0 || output_blocks > 2)  // else they are there from the group before
                for (int64_t i = 0; i < geometry.inputs; ++i)
                    for (int64_t n = 0; n < width; ++n)
                        transform_taps(weights.data + i / block * weights.input_stride +
                                           (output + n) * weights.output_stride + i % block * block,
                                       weights.rotated, taps + (i * width + n) * block, taps_apart);
            const Multiply multiply_rows =
                (width == 2 ? multiply_two : multiply_one)[static_cast<size_t>(rows)];
            for (int64_t point = 0; point < points; ++point)
                for (int64_t row = 0; row < in_group; row += rows)
                    multiply_rows(transformed + point * tiles_apart + row * geometry.inputs,
                                  input_blocks, taps + point * taps_apart,
                                  products + point * products_apart + row * width * block);
            for (int64_t t = 0; t < in_group; ++t) {
                const Tile tile = tiles[first + t];
                for (int64_t n = 0; n < width; ++n)
                    transform_output(products + (t * width + n) * block, products_apart,
                                     bias ? load<block>(bias + (output + n) * block) : Vector{},
                                     geometry, tile,
                                     target + (tile.sample * output_blocks + output + n) * pixels);
            }
        }
    }
}

size_t weight_gradient_scratch(const Geometry& geometry) {
    const int64_t group = plan_gradient(geometry);
    return bytes_of(points * (apart(geometry.inputs * group) + apart(geometry.outputs * group) +
                              apart(geometry.inputs * geometry.outputs)));
}

template <typename T>
void weight_gradient(const Geometry& geometry, const T* source, const T* target_gradient,
                     float* gradient, float* bias_gradient, std::byte* scratch) {
    const int64_t group = plan_gradient(geometry);
    const int64_t input_blocks = geometry.inputs / block, output_blocks = geometry.outputs / block;
    const int64_t pixels = geometry.height * geometry.width * block;
    const int64_t inputs_apart = apart(geometry.inputs * group);
    const int64_t outputs_apart = apart(geometry.outputs * group);
    const int64_t sums_apart = apart(geometry.inputs * geometry.outputs);
    constexpr int64_t square = block * block;
    float* const inputs = take(scratch, points * inputs_apart);    // [36][inputs / 16][group][16]
    float* const outputs = take(scratch, points * outputs_apart);  // [36][outputs / 16][group][16]
    // [36][outputs / 16][inputs / 16][16 in][16 out]
    float* const sums = take(scratch, points * sums_apart);
    std::memset(sums, 0, bytes_of(points * sums_apart));
    if (bias_gradient)
        std::memset(bias_gradient, 0, bytes_of(geometry.outputs));
    const Tiles tiles(geometry);
    const int64_t count = geometry.tiles();
    for (int64_t first = 0; first < count; first += group) {
        const int64_t in_group = std::min(group, count - first);
        for (int64_t i = 0; i < input_blocks; ++i)
            for (int64_t t = 0; t < in_group; ++t) {
                const Tile tile = tiles[first + t];
                transform_input(source + (tile.sample * input_blocks + i) * pixels, geometry, tile,
                                inputs + (i * group + t) * block, inputs_apart);
            }
        for (int64_t o = 0; o < output_blocks; ++o) {
            Vector sum{};
            for (int64_t t = 0; t < in_group; ++t) {
                const Tile tile = tiles[first + t];
                sum += transform_gradient(
                    target_gradient + (tile.sample * output_blocks + o) * pixels, geometry, tile,
                    outputs + (o * group + t) * block, outputs_apart);
            }
            if (bias_gradient)
                store<block>(bias_gradient + o * block,
                             load<block>(bias_gradient + o * block) + sum);
        }
        for (int64_t point = 0; point < points; ++point) {
            const float* const from = inputs + point * inputs_apart;
            for (int64_t o = 0; o < output_blocks; o += 2) {
                const float* const to = outputs + point * outputs_apart + o * group * block;
                const auto add = o + 1 < output_blocks ? add_products<2> : add_products<1>;
                for (int64_t i = 0; i < input_blocks; ++i)
                    add(from + i * group * block, to, group * block, in_group,
                        sums + point * sums_apart + (o * input_blocks + i) * square,
                        input_blocks * square);
            }
        }
    }
    for (int64_t pair = 0; pair < output_blocks * input_blocks; ++pair)
        for (int64_t i = 0; i < block; ++i)
            gradient_of_taps(sums + pair * square + i * block, sums_apart,
                             gradient + pair * 9 * square + i * block);
}

template void convolve(const Geometry&, const float*, const Weights&, const float*, float*,
                       std::byte*);
template void convolve(const Geometry&, const Bf16*, const Weights&, const float*, Bf16*,
                       std::byte*);
template void weight_gradient(const Geometry&, const float*, const float*, float*, float*,
                              std::byte*);
template void weight_gradient(const Geometry&, const Bf16*, const Bf16*, float*, float*,
                              std::byte*);

}  // namespace trainer::cpu::winograd
