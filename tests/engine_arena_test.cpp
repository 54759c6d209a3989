// ParameterArena and TensorTable: layout, slabs, initial weights.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>

#include "engine/arena.h"
#include "engine/memory.h"

namespace trainer {
namespace {

Initialization normal(double std) {
    return {Initialization::Kind::normal, std};
}

TensorTable small_table() {
    TensorTable table;
    table.add("conv.weight", {4, 3, 3, 3}, true, normal(0.5));
    table.add("conv.bias", {4}, false, {});
    table.add("fc.weight", {5, 4}, true, {Initialization::Kind::uniform, 0.25});
    table.add("scale", {}, false, {Initialization::Kind::constant, 3});
    return table;
}

TEST(TensorTable, TensorsLieEndToEnd) {
    const TensorTable table = small_table();
    ASSERT_EQ(table.tensors().size(), 4u);
    EXPECT_EQ(table[0].range(), (Range{0, 108}));
    EXPECT_EQ(table[1].range(), (Range{108, 4}));
    EXPECT_EQ(table[2].range(), (Range{112, 20}));
    EXPECT_EQ(table[3].range(), (Range{132, 1}));
    EXPECT_EQ(table.size(), 133);
    EXPECT_EQ(TensorTable().size(), 0);
}

TEST(TensorTable, FindsByName) {
    const TensorTable table = small_table();
    ASSERT_NE(table.find("fc.weight"), nullptr);
    EXPECT_EQ(table.find("fc.weight")->offset, 112);
    EXPECT_TRUE(table.find("fc.weight")->decay);
    EXPECT_FALSE(table.find("conv.bias")->decay);
    EXPECT_EQ(table.find("fc"), nullptr);
    EXPECT_EQ(table.find(""), nullptr);
}

TEST(TensorTable, RefusesASecondTensorOfAName) {
    TensorTable table = small_table();
    EXPECT_THROW(table.add("scale", {1}, true, {}), std::logic_error);
    EXPECT_EQ(table.size(), 133);
}

TEST(ParameterArena, SlabsAreZeroedAlignedAndApart) {
    ParameterArena arena(small_table(), DType::f32, {"weights", "gradients", "momentum"});
    EXPECT_EQ(arena.size(), 133);
    for (const std::string& name : arena.slabs()) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.address(name)) % 64, 0u);
        for (const float value : arena.slab<float>(name))
            ASSERT_EQ(value, 0);
    }
    float next = 1;
    for (const std::string& name : arena.slabs())
        for (float& value : arena.slab<float>(name))
            value = next++;
    EXPECT_EQ(arena.slab<float>("weights")[132], 133);
    EXPECT_EQ(arena.slab<float>("gradients")[0], 134);
    EXPECT_EQ(arena.slab<float>("momentum")[132], 399);
}

TEST(ParameterArena, ATensorIsAPartOfItsSlab) {
    const ParameterArena arena(small_table(), DType::f64, {"weights", "gradients"});
    std::iota(arena.slab<double>("gradients").begin(), arena.slab<double>("gradients").end(), 0.0);
    const std::span<double> tensor =
        arena.tensor<double>("gradients", *arena.table().find("fc.weight"));
    EXPECT_EQ(tensor.size(), 20u);
    EXPECT_EQ(tensor.front(), 112);
    EXPECT_EQ(tensor.back(), 131);
}

TEST(ParameterArena, MisuseIsFound) {
    const ParameterArena arena(small_table(), DType::f32, {"weights"});
    EXPECT_TRUE(arena.has_slab("weights"));
    EXPECT_FALSE(arena.has_slab("momentum"));
    EXPECT_THROW(arena.slab<float>("momentum"), std::logic_error);
    EXPECT_THROW(arena.slab<double>("weights"), std::logic_error);
}

TEST(ParameterArena, KeepsItsMemoryWhenMoved) {
    ParameterArena first(small_table(), DType::f32, {"weights"});
    first.slab<float>("weights")[5] = 2;
    const std::byte* address = first.address("weights");
    const ParameterArena second(std::move(first));
    EXPECT_EQ(second.address("weights"), address);
    EXPECT_EQ(second.slab<float>("weights")[5], 2);
}

TEST(ParameterArena, TakesItsMemoryAtOnceFromWhomItIsTold) {
    std::vector<size_t> asked;
    const ParameterArena arena(small_table(), DType::f32, {"weights", "gradients"},
                               [&](size_t bytes) {
                                   asked.push_back(bytes);
                                   return allocate_host(bytes);
                               });
    EXPECT_EQ(asked, (std::vector<size_t>{2 * 576}));  // 133 floats, rounded up to 64 bytes
}

TEST(ParameterArena, WithoutParametersIsEmpty) {
    ParameterArena arena(TensorTable(), DType::f32, {"weights"});
    EXPECT_EQ(arena.size(), 0);
    EXPECT_TRUE(arena.slab<float>("weights").empty());
    initialize_weights(arena, 1);
}

TEST(InitialWeights, HaveTheirDistribution) {
    TensorTable table;
    table.add("n", {200, 100}, true, normal(0.5));
    table.add("u", {20000}, true, {Initialization::Kind::uniform, 0.25});
    table.add("c", {7}, true, {Initialization::Kind::constant, -1.5});
    ParameterArena arena(table, DType::f64, {"weights"});
    initialize_weights(arena, 42);
    const auto moments = [&](const char* name) {
        double sum = 0, squares = 0;
        const auto values = arena.tensor<double>("weights", *table.find(name));
        for (const double v : values) {
            sum += v;
            squares += v * v;
        }
        const double n = static_cast<double>(values.size());
        return std::pair{sum / n, std::sqrt(squares / n)};
    };
    EXPECT_NEAR(moments("n").first, 0, 5 * 0.5 / std::sqrt(20000));
    EXPECT_NEAR(moments("n").second, 0.5, 0.02);
    EXPECT_NEAR(moments("u").first, 0, 5 * 0.25 / std::sqrt(60000));
    EXPECT_NEAR(moments("u").second, 0.25 / std::sqrt(3), 0.005);
    for (const double v : arena.tensor<double>("weights", *table.find("u")))
        ASSERT_LE(std::abs(v), 0.25);
    for (const double v : arena.tensor<double>("weights", *table.find("c")))
        ASSERT_EQ(v, -1.5);
}

TEST(InitialWeights, AreAFunctionOfTheSeedAlone) {
    ParameterArena a(small_table(), DType::f64, {"weights"});
    ParameterArena b(small_table(), DType::f64, {"momentum", "weights"});
    ParameterArena single(small_table(), DType::f32, {"weights"});
    initialize_weights(a, 1);
    initialize_weights(b, 1);
    initialize_weights(single, 1);
    const auto slab_a = a.slab<double>("weights"), slab_b = b.slab<double>("weights");
    EXPECT_TRUE(std::equal(slab_a.begin(), slab_a.end(), slab_b.begin()));
    for (size_t i = 0; i < slab_a.size(); ++i)
        ASSERT_EQ(single.slab<float>("weights")[i], static_cast<float>(slab_a[i]));
    initialize_weights(b, 2);
    EXPECT_NE(slab_a[0], slab_b[0]);
}

TEST(Memory, IsZeroedAlignedAndShared) {
    for (const size_t bytes : {size_t{1}, size_t{4097}, (size_t{2} << 20) + 3}) {
        const Memory memory = allocate_host(bytes);
        EXPECT_EQ(memory.bytes, bytes);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data.get()) % 64, 0u);
        for (size_t i = 0; i < bytes; ++i)
            ASSERT_EQ(memory.data.get()[i], std::byte{0});
        Memory copy = memory;
        copy.data.get()[bytes - 1] = std::byte{7};
        EXPECT_EQ(memory.data.get()[bytes - 1], std::byte{7});
    }
    EXPECT_EQ(allocate_host(0).data, nullptr);
}

TEST(Memory, TooMuchIsAnErrorThatSaysHowMuch) {
    try {
        allocate_host(size_t{1} << 60);
        FAIL() << "an exbibyte was granted";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("1099511627776 MiB"), std::string::npos)
            << error.what();
    }
}

TEST(Range, PartsCoverAllOnceInOrder) {
    for (const int64_t count : {0, 1, 7, 8, 100})
        for (int64_t parts = 1; parts <= 9; ++parts) {
            int64_t next = 0;
            for (int64_t i = 0; i < parts; ++i) {
                const Range part = part_of(count, i, parts);
                EXPECT_EQ(part.first, next);
                EXPECT_GE(part.count, count / parts);
                EXPECT_LE(part.count, count / parts + 1);
                next = part.end();
            }
            EXPECT_EQ(next, count);
        }
}

}  // namespace
}  // namespace trainer
