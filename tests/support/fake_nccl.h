// NCCL for threads: its calls, non-blocking communicators and aborts, on memory of the host and on streams of
// the CPU.
#pragma once
#include <memory>

#include "parallel/nccl/library.h"

namespace ltrain::test {

/// What the ranks of one test share.
class FakeNetwork {
 public:
  FakeNetwork();
  ~FakeNetwork();
  /// For one rank.
  std::shared_ptr<nccl::Library> library();
  /// From now on communicators with this rank of the world say that it is gone.
  void lose(int world_rank);
  /// Communicators that were neither destroyed nor aborted.
  int alive() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ltrain::test
