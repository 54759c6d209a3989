// Evaluator: loss and accuracy over a whole data set, every image that can be read
// counted once.
#pragma once

#include <functional>
#include <optional>

#include "data/loader.h"
#include "engine/executor.h"

namespace trainer {

class Evaluator {
  public:
    /// `loader` gives each image once (evaluation_loader()); `kept`: of images that the backend
    /// keeps. All outlive the evaluator.
    Evaluator(Loader& loader, const Network& network, Backend& backend,
              const ParameterArena& parameters, const ParameterArena& statistics,
              const DeviceImages* kept = nullptr);

    /// Sums over all images, with the weights as they are; the same bits every time. nullopt where
    /// `stop`, asked after each batch, said so. Throws Error that names the layer where the loss
    /// is not finite, or where the loader left all images out.
    std::optional<LossSums> run(const std::function<bool()>& stop = {});

  private:
    Loader& loader_;
    Executor executor_;
    const DeviceImages* kept_;
};

}  // namespace trainer
