// Deferred weight gradients: the work to run, and the tensors that must live until then. A pipeline fills its
// bubbles with them (zero-bubble schedules, arXiv:2401.10241), or a layer overlaps a collective with them.
#pragma once
#include <functional>
#include <vector>

#include "kernels/tensor/arena.h"

namespace ltrain {

struct Step;

class WeightGradients {
 public:
  /// `work` runs at run(); `inputs` stay allocated until then, even after a release. `fetch` starts a
  /// collective that `work` waits for: it runs before the previous work, which overlaps it.
  void add(std::function<void(Step&)> work, std::initializer_list<Tensor> inputs,
           std::function<void(Step&)> fetch = {}) {
    work_.push_back({std::move(fetch), std::move(work)});
    for (const Tensor& t : inputs)
      if (!keeps(t)) kept_.push_back(t);
  }
  bool keeps(const Tensor& t) const {
    for (const Tensor& k : kept_)
      if (k.data == t.data && k.record == t.record) return true;
    return false;
  }
  /// Replaces a release before run().
  void release_after(Tensor& t) {
    released_.push_back(t);
    t = Tensor();
  }
  bool empty() const { return work_.empty(); }
  bool due = false;  ///< in a layer: should overlap with the next collective
  /// Runs everything in the order of add(), then releases the tensors.
  void run(Step& step);

 private:
  struct Work {
    std::function<void(Step&)> fetch, run;
  };
  std::vector<Work> work_;
  std::vector<Tensor> kept_, released_;
};

}  // namespace ltrain
