#include "engine/arena.h"

#include <algorithm>

#include "engine/random.h"

namespace trainer {

int TensorTable::add(std::string name, Shape shape, bool decay, Initialization init) {
    check(find(name) == nullptr, "two tensors named " + name);
    tensors_.push_back({std::move(name), std::move(shape), size_, decay, init});
    size_ += tensors_.back().size();
    return static_cast<int>(tensors_.size()) - 1;
}

const TensorInfo* TensorTable::find(std::string_view name) const {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const TensorInfo& tensor) { return tensor.name == name; });
    return found == tensors_.end() ? nullptr : &*found;
}

ParameterArena::ParameterArena(TensorTable table, DType type, std::vector<std::string> slabs,
                               const std::function<Memory(size_t)>& allocate)
    : table_(std::move(table)), type_(type), slabs_(std::move(slabs)) {
    const size_t bytes = static_cast<size_t>(table_.size()) * size_of(type_);
    stride_ = (bytes + 63) / 64 * 64;
    memory_ = allocate(stride_ * slabs_.size());
}

bool ParameterArena::has_slab(std::string_view name) const {
    return std::find(slabs_.begin(), slabs_.end(), name) != slabs_.end();
}

std::byte* ParameterArena::address(std::string_view name) const {
    const auto found = std::find(slabs_.begin(), slabs_.end(), name);
    if (found == slabs_.end())  // the message alone would allocate at each call
        check(false, "no slab named " + std::string(name));
    return memory_.data.get() + stride_ * static_cast<size_t>(found - slabs_.begin());
}

namespace {

double draw(const Initialization& init, Random& random) {
    switch (init.kind) {
        case Initialization::Kind::constant:
            return init.value;
        case Initialization::Kind::normal:
            return init.value * random.normal();
        case Initialization::Kind::uniform:
            return init.value * (2 * random.uniform() - 1);
    }
    return 0;
}

template <typename T>
void initialize_as(ParameterArena& arena, uint64_t seed) {
    uint64_t index = 0;
    for (const TensorInfo& tensor : arena.table().tensors()) {
        Random random{seed, static_cast<uint64_t>(RandomPurpose::initialization), index++};
        for (T& value : arena.tensor<T>(slab::weights, tensor))
            value = static_cast<T>(draw(tensor.init, random));
    }
}

}  // namespace

void initialize_weights(ParameterArena& arena, uint64_t seed) {
    if (arena.type() == DType::f64)
        initialize_as<double>(arena, seed);
    else
        initialize_as<float>(arena, seed);
}

}  // namespace trainer
