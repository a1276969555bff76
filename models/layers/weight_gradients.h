// Weight gradients that a backward leaves for later, so that a pipeline can fill its bubbles with them
// (zero-bubble schedules, arXiv:2401.10241), or a layer the time that a collective travels: what to run, and
// the tensors that must live until then.
#pragma once
#include <functional>
#include <vector>

#include "kernels/tensor/arena.h"

namespace ltrain {

struct Step;

class WeightGradients {
 public:
  /// `work` runs at run(); `inputs` stay allocated until then, whoever releases them. `fetch` starts a
  /// collective that `work` waits for: it runs before the work ahead, which hides it.
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
  /// In place of a release before run().
  void release_after(Tensor& t) {
    released_.push_back(t);
    t = Tensor();
  }
  bool empty() const { return work_.empty(); }
  bool due = false;  ///< of a layer: the next collective is to be hidden by it
  /// Runs everything in the order it was added, then gives the tensors back.
  void run(Step& step);

 private:
  struct Work {
    std::function<void(Step&)> fetch, run;
  };
  std::vector<Work> work_;
  std::vector<Tensor> kept_, released_;
};

}  // namespace ltrain
