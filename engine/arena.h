// ParameterArena: every parameter of a model in one allocation of equal flat slabs.
//
// A slab (weights, gradients, momentum, residual, ...) is one vector of all parameters end to end,
// without gaps, in the order of the table; so an update is one loop over slabs, a server's shard a
// range of one, a checkpoint the slabs themselves.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dtype.h"
#include "engine/error.h"
#include "engine/memory.h"

namespace trainer {

/// How a tensor's first values are drawn.
struct Initialization {
    enum class Kind { constant, normal, uniform } kind = Kind::constant;
    double value = 0;  ///< the constant, the standard deviation, or the bound of U(-value, value)
};

/// One named tensor of a slab.
struct TensorInfo {
    std::string name;    ///< as torchvision names it, e.g. "layer1.0.conv1.weight"
    Shape shape;         ///< as PyTorch lays it out, e.g. [out, in, height, width]
    int64_t offset = 0;  ///< first element in the slab
    bool decay = true;   ///< whether weight decay applies where biases and BN are exempt
    Initialization init;

    int64_t size() const { return element_count(shape); }
    Range range() const { return {offset, size()}; }
};

/// The tensors of a slab, contiguous and in order.
class TensorTable {
  public:
    /// Appends a tensor behind the last one and returns its index. Names are unique.
    int add(std::string name, Shape shape, bool decay, Initialization init);

    const std::vector<TensorInfo>& tensors() const { return tensors_; }
    const TensorInfo& operator[](int index) const { return tensors_[static_cast<size_t>(index)]; }

    /// Elements of one slab.
    int64_t size() const { return size_; }

    /// The tensor of that name, or nullptr.
    const TensorInfo* find(std::string_view name) const;

  private:
    std::vector<TensorInfo> tensors_;
    int64_t size_ = 0;
};

/// The names of the slabs that every arena of a training run has.
namespace slab {
inline constexpr std::string_view weights = "weights";
inline constexpr std::string_view gradients = "gradients";
inline constexpr std::string_view momentum = "momentum";
}  // namespace slab

/// Equal slabs over one table. Movable, not copyable.
class ParameterArena {
  public:
    /// Takes zeroed memory for all `slabs` (distinct names) at once through `allocate` (a
    /// backend's, or allocate_host). `type` is f32, or f64 for the double-precision reference.
    ParameterArena(TensorTable table, DType type, std::vector<std::string> slabs,
                   const std::function<Memory(size_t)>& allocate = allocate_host);
    ParameterArena(ParameterArena&&) = default;
    ParameterArena& operator=(ParameterArena&&) = default;

    const TensorTable& table() const { return table_; }
    DType type() const { return type_; }
    int64_t size() const { return table_.size(); }
    const std::vector<std::string>& slabs() const { return slabs_; }
    bool has_slab(std::string_view name) const;

    /// The whole slab; T must be the arena's type and the slab must exist.
    template <typename T>
    std::span<T> slab(std::string_view name) const {
        check(sizeof(T) == size_of(type_), "slab asked for with another element type");
        return {reinterpret_cast<T*>(address(name)), static_cast<size_t>(size())};
    }

    /// One tensor's part of a slab.
    template <typename T>
    std::span<T> tensor(std::string_view slab_name, const TensorInfo& info) const {
        return slab<T>(slab_name).subspan(static_cast<size_t>(info.offset),
                                          static_cast<size_t>(info.size()));
    }

    /// First byte of a slab, for code that knows the type already.
    std::byte* address(std::string_view name) const;

  private:
    TensorTable table_;
    DType type_;
    std::vector<std::string> slabs_;
    Memory memory_;
    size_t stride_ = 0;  // bytes from one slab to the next: slabs start on 64-byte boundaries
};

/// Fills the "weights" slab from each tensor's Initialization, a pure function of `seed` and the
/// tensor's index: the same on every machine and for both element types.
void initialize_weights(ParameterArena& arena, uint64_t seed);

}  // namespace trainer
