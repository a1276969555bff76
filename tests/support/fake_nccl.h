// NCCL for threads, on memory of the host and on streams of the CPU, as its sources (2.20 to 2.30) behave
// where a caller can tell: making communicators blocks until all have come and stores the communicator at the
// end; the first call between ranks blocks on the host until they are connected; an abort sets a flag and
// then waits for what is enqueued. A call that is made while another thread is in one fails.
#pragma once
#include <memory>
#include <vector>

#include "parallel/nccl/library.h"

namespace ltrain::test {

/// State that the ranks of one test share. Outlives their streams, because aborted work still reads it.
class FakeNetwork {
 public:
  FakeNetwork();
  ~FakeNetwork();  ///< calls that still block fail
  /// For one rank. `early`: as NCCL is without `blocking` in its configuration. A split then returns success
  /// before the others have come, keeps the address of the child, and writes it when the state of the parent
  /// is asked and all have come (NVIDIA/nccl#1472).
  std::shared_ptr<nccl::Library> open(bool early = false);
  /// From now on communicators with this rank of the world say that it is gone.
  void lose(int world_rank);
  /// Communicators that were neither destroyed nor aborted.
  int alive() const;
  /// Channels asked for, by group's ranks.
  std::vector<int> channels_of(int ranks) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
  std::vector<std::shared_ptr<nccl::Library>> libraries_;
};

}  // namespace ltrain::test
