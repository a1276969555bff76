// Replicas of hot experts on all ranks, for one micro-batch: weights travel instead of tokens (FasterMoE's
// replication, He et al., PPoPP 2022). The choice follows from this micro-batch's counts, which all ranks
// have.
#pragma once
#include "kernels/moe/sort_choices.h"
#include "models/moe/token_dispatch.h"

namespace ltrain {

/// Weights of experts: (E, 2, F, H), (E, H, F); with biases (E, 2, F), (E, H).
struct ExpertStacks {
  Tensor gate_up, down, gate_up_bias, down_bias;
  std::vector<Tensor*> parts() {
    std::vector<Tensor*> all{&gate_up, &down};
    if (gate_up_bias.defined()) all.insert(all.end(), {&gate_up_bias, &down_bias});
    return all;
  }
};

class ExpertReplicas {
 public:
  /// State of one replica between forward and backward. Memory is the same with and without use.
  struct Copy {
    int32_t expert = -1;    ///< index in the layer; -1: unused
    Dispatched dispatched;  ///< rows of this rank's tokens for it
    ExpertStacks stacks;    ///< for one expert
    AsyncHandle arrived;
  };
  /// `most`: replicas of a layer at once; 0: none. At most kMostListed.
  ExpertReplicas(const Groups& groups, int64_t experts, int most)
      : groups_(groups), exchange_(groups, experts, 0), experts_(experts), most_(most) {}
  int most() const { return most_; }
  /// Chooses experts for replicas: those whose rows of other ranks have more bytes over its rank's link (both
  /// ways, in forward and backward) than its weights and their gradients over each rank's link. Experts with
  /// most rows come first, ties to the lowest index. Fills `copies`; returns the experts whose rows are still
  /// exchanged. On meta every replica is used. `all`: rows of each rank for each expert, of the full
  /// micro-batch.
  ChosenExperts choose(Step& step, const Routing& routing, const std::vector<int64_t>& all,
                       ExpertStacks stacks, DType gradients, std::vector<Copy>& copies) const;
  /// Starts to send weights of the replicas from the stacks of their owners.
  void fetch_start(Step& step, std::vector<Copy>& copies, ExpertStacks stacks) const;
  /// dcopy (1, ...), a summand of the expert's gradient, becomes the sum over ranks on the owner.
  void sum_gradient(Step& step, const Copy& copy, Tensor dcopy) const;
  /// Adds it to the owner's stack of gradients.
  void give_gradient(Step& step, const Copy& copy, Tensor stack, Tensor dcopy) const;
  static void release(Step& step, Copy& copy);
  /// Releases the weights of fetch_start().
  static void release_weights(Step& step, Copy& copy);

 private:
  std::vector<int32_t> hot(const std::vector<int64_t>& all, double weight_bytes, double row_bytes) const;
  int owner(const Copy& c) const { return static_cast<int>(c.expert / exchange_.local_experts()); }
  AsyncHandle fetch_start(Step& step, const Copy& copy, Tensor to, Tensor stack) const;

  const Groups& groups_;
  ExpertExchange exchange_;
  int64_t experts_;
  int most_;
};

}  // namespace ltrain
