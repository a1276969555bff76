// Churn of routers in training: how many of their choices for fixed sequences change from probe to probe.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {

/// Probe of all ranks together, with train.routing_probe_interval. The choices are kept by the program, whose
/// checkpoints therefore have them, for any layout.
class RoutingProbe {
 public:
  /// `mesh` must outlive this object. `control`, on `stream`: all ranks.
  RoutingProbe(const Recipe& recipe, const Mesh& mesh, TrainProgram& program, Communicator& control,
               Stream& stream);

  bool due(int64_t step) const { return interval_ > 0 && step % interval_ == 0; }
  /// Collective. Routes the sequences, and compares with the probe before, if it was of the same tokens. The
  /// shares are unknown otherwise.
  RoutingChurn run();
  /// Line for the log on the sequences; "": no probes.
  const std::string& text() const { return text_; }

 private:
  /// Number + 1 of each chosen expert, (layers with experts, samples, seq_length, k), and a sum over the
  /// tokens; 0 where other ranks have the tokens.
  std::vector<int64_t> choices_of_rank();
  void take(const HostBatch& batch, const std::vector<int32_t>& choices, std::vector<int64_t>& into) const;
  RoutingChurn compare(const std::vector<int32_t>& now, const std::vector<int32_t>& before) const;

  const int64_t interval_;
  const Mesh& mesh_;
  TrainProgram& program_;
  Communicator& control_;
  Stream& stream_;
  data::LoaderOptions loader_;
  std::vector<int64_t> layers_;  // layers of the full model with experts
  int64_t samples_ = 0;          // fewer than the recipe's if the data end before
  std::string text_;
};

}  // namespace ltrain
