// Names of the layers of a second model in a step.
#pragma once
#include <string_view>

namespace ltrain {

/// While it lives, enter_layer (timeline.h) on this thread puts `prefix`, a literal, before names of layers,
/// so that plans and traces tell them from those of the model that trains.
class LayerPrefix {
 public:
  explicit LayerPrefix(std::string_view prefix);
  ~LayerPrefix();
  LayerPrefix(const LayerPrefix&) = delete;
  LayerPrefix& operator=(const LayerPrefix&) = delete;
};

}  // namespace ltrain
