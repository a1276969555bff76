// Replicas of hot experts on all ranks, for one micro-batch: their tokens stay where they are, and weights
// travel in their place (FasterMoE's replication, He et al., PPoPP 2022). Decided from this micro-batch's
// counts, which all ranks have.
#pragma once
#include "kernels/moe/sort_choices.h"
#include "models/moe/token_dispatch.h"

namespace ltrain {

/// What experts are made of: (E, 2, F, H), (E, H, F); where they have biases (E, 2, F), (E, H).
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
  /// What there is of one copy between forward and backward. Memory is the same whether it is used or not.
  struct Copy {
    int32_t expert = -1;    ///< of the layer; -1: none this time
    Dispatched dispatched;  ///< its rows of this rank's tokens
    ExpertStacks stacks;    ///< of one expert
    AsyncHandle arrived;
  };
  /// `most`: copies that a layer has at once; 0: none. At most kMostListed.
  ExpertReplicas(const Groups& groups, int64_t experts, int most)
      : groups_(groups), exchange_(groups, experts, 0), experts_(experts), most_(most) {}
  int most() const { return most_; }
  /// An expert whose rows of other ranks are more bytes over its rank's link (there and back, in forward and
  /// backward) than its weights and their gradients are over each rank's gets a copy, those with the most
  /// rows first, ties to the lowest index. Fills `copies`; returns the experts whose rows still travel. On
  /// meta every copy is used. `all`: rows of each rank for each expert, of the whole micro-batch.
  ChosenExperts choose(Step& step, const Routing& routing, const std::vector<int64_t>& all,
                       ExpertStacks stacks, DType gradients, std::vector<Copy>& copies) const;
  /// Weights of the copies get under way from the stacks of their owners.
  void fetch_start(Step& step, std::vector<Copy>& copies, ExpertStacks stacks) const;
  /// dcopy (1, ...), a summand of the expert's gradient, := on its owner the sum over ranks.
  void sum_gradient(Step& step, const Copy& copy, Tensor dcopy) const;
  /// The owner's stack of gradients += it.
  void give_gradient(Step& step, const Copy& copy, Tensor stack, Tensor dcopy) const;
  static void release(Step& step, Copy& copy);
  /// Of what fetch_start() brought.
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
