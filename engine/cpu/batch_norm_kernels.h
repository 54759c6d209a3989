// The loops of batch normalisation over one block of channels of one sample.
#pragma once

#include <algorithm>

#include "engine/cpu/simd.h"

namespace trainer::cpu {

// How backward finds where the ReLU let the gradient through.
enum class Mask {
    none,    // no ReLU, or a gradient that is masked already
    output,  // y was written with a residual: read it
    input    // y follows from x alone: compute it again, which is cheaper than to read it
};

// What is read at one block of channels of one sample.
template <typename T>
struct BlockSources {
    const T* x = nullptr;
    const T* y = nullptr;
    const T* const* gradients = nullptr;  // to be added up
    size_t gradient_count = 0;
    int64_t offset = 0;  // elements from each gradient's start to this block
};

// One value a channel of a block, [B] each.
struct AffineOf {
    const float *center, *scale, *shift;
};
struct InputGradientOf {
    const float *scale, *slope, *offset;
};

template <typename P>
struct Affine {  // y = (x - center) * scale + shift
    P center, scale, shift;
    explicit Affine(const AffineOf& of)
        : center(P::spread(of.center)), scale(P::spread(of.scale)), shift(P::spread(of.shift)) {}
    [[gnu::always_inline]] P operator()(const P& x) const { return (x - center) * scale + shift; }
};

// The gradient at `at`, summed over its `Count` parts (0: any number) and masked.
template <typename P, int Count, Mask mask, typename T>
[[gnu::always_inline]] inline P masked_gradient(const BlockSources<T>& from,
                                                const Affine<P>& affine, int64_t at) {
    const int64_t element = from.offset + at;
    P g = P::load(from.gradients[0] + element);
    if constexpr (Count == 2)
        g += P::load(from.gradients[1] + element);
    if constexpr (Count == 0)
        for (size_t i = 1; i < from.gradient_count; ++i)
            g += P::load(from.gradients[i] + element);
    if constexpr (mask == Mask::output)
        return g.masked_by(P::load(from.y + at));
    if constexpr (mask == Mask::input)
        return g.masked_by(affine(P::load(from.x + at)));
    return g;
}

// Runs pass.template operator()<P>(first, end) over [0, elements) of a block: pairs of positions,
// then the last one where their number is odd.
template <typename T, int B, typename Pass>
[[gnu::always_inline]] inline void over_positions(int64_t first, int64_t end, Pass pass) {
    const int64_t pairs = (end - first) / (2 * B) * (2 * B);
    if (pairs > 0)
        pass.template operator()<Pack<T, B, 2>>(first, first + pairs);
    if (first + pairs < end)
        pass.template operator()<Pack<T, B, 1>>(first + pairs, end);
}

// Positions whose sums are taken in fp32 before they go on in double.
constexpr int64_t segment = 1024;

// Adds the sums of d and of d * d, d = x - center, to `sums` and `squares` [B].
template <typename T, int B>
void add_moments(const T* x, int64_t positions, const float* center, double* sums,
                 double* squares) {
    const auto pass = [&]<typename P>(int64_t first, int64_t end) {
        const P middle = P::spread(center);
        P sum, square;
        for (int64_t at = first; at < end; at += P::elements) {
            const P d = P::load(x + at) - middle;
            sum += d;
            square += d * d;
        }
        sum.add_to(sums);
        square.add_to(squares);
    };
    for (int64_t first = 0; first < positions; first += segment)
        over_positions<T, B>(first * B, std::min(first + segment, positions) * B, pass);
}

// y = affine(x) + residual, and no less than 0 with the ReLU; `residual` may be nullptr.
template <bool relu, typename T, int B>
void normalise(const T* x, const T* residual, T* y, int64_t positions, const AffineOf& of) {
    over_positions<T, B>(0, positions * B, [&]<typename P>(int64_t first, int64_t end) {
        const Affine<P> affine(of);
        const auto finish = [&](int64_t at, const P& value) {
            (relu ? value.rectified() : value).store(y + at);
        };
        if (residual)
            for (int64_t at = first; at < end; at += P::elements)
                finish(at, affine(P::load(x + at)) + P::load(residual + at));
        else
            for (int64_t at = first; at < end; at += P::elements)
                finish(at, affine(P::load(x + at)));
    });
}

// Adds the sums of g and of g * (x - center) to `sums` and `products` [B]; leaves g itself in
// `written` where it is wanted.
template <int Count, Mask mask, bool write, int B, typename T>
void add_gradient_sums(const BlockSources<T>& from, T* written, int64_t positions,
                       const AffineOf& of, double* sums, double* products) {
    const auto pass = [&]<typename P>(int64_t first, int64_t end) {
        const Affine<P> affine(of);
        P sum, product;
        for (int64_t at = first; at < end; at += P::elements) {
            const P g = masked_gradient<P, Count, mask>(from, affine, at);
            if constexpr (write)
                g.store(written + at);
            sum += g;
            product += g * (P::load(from.x + at) - affine.center);
        }
        sum.add_to(sums);
        product.add_to(products);
    };
    for (int64_t first = 0; first < positions; first += segment)
        over_positions<T, B>(first * B, std::min(first + segment, positions) * B, pass);
}

// dx = scale * g + slope * (x - center) + offset.
template <int Count, Mask mask, int B, typename T>
void write_input_gradient(const BlockSources<T>& from, T* dx, int64_t positions, const AffineOf& of,
                          const InputGradientOf& terms) {
    over_positions<T, B>(0, positions * B, [&]<typename P>(int64_t first, int64_t end) {
        const Affine<P> affine(of);
        const P scale = P::spread(terms.scale), slope = P::spread(terms.slope),
                offset = P::spread(terms.offset);
        for (int64_t at = first; at < end; at += P::elements) {
            const P g = masked_gradient<P, Count, mask>(from, affine, at);
            const P d = P::load(from.x + at) - affine.center;
            (scale * g + (slope * d + offset)).store(dx + at);
        }
    });
}

}  // namespace trainer::cpu
