// The calls of NCCL that groups use, apart from NCCL, so that what is built on them is tested without a GPU.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/elementwise/reduce.h"
#include "kernels/tensor/stream.h"

struct ncclComm;  // NCCL's own

namespace ltrain::nccl {

/// Of each communicator, at most, where ranks share a GPU.
inline constexpr int kSharedGpuChannels = 2;

using Comm = ncclComm*;
using UniqueId = std::array<char, 128>;

/// What a call came to.
struct Status {
  bool failed = false;
  std::string text = {};  ///< NCCL's words
};

/// Calls block: making communicators until the other ranks have come, and the first call between ranks until
/// they are connected. They are of one thread at a time, but for state() and abort(), which another may make
/// while a call blocks. Counts are of elements. Collectives are enqueued on the stream.
class Library {
 public:
  virtual ~Library() = default;
  virtual std::string version() const = 0;  ///< "2.28.9"
  virtual UniqueId unique_id() = 0;         ///< for one rank to give to the others; throws Error
  /// What another thread calls before its first call, to use this thread's GPU.
  virtual std::function<void()> on_this_gpu() const = 0;
  /// `comm` may be set before the call returns, and can be aborted then. It must stay where it is until the
  /// call has returned.
  virtual Status init(Comm& comm, int size, const UniqueId& id, int rank) = 0;
  /// Collective over `parent`. A negative colour takes part and gets null. `child`: as `comm` of init.
  /// `most_channels`: of the child, each a block of the GPU and buffers; 0: NCCL chooses.
  virtual Status split(Comm& child, Comm parent, int color, int key, int most_channels) = 0;
  virtual Status state(Comm comm) = 0;  ///< what the network says of the ranks so far
  /// Ends what is enqueued on this rank, and calls that block: all are told before any is waited for. Returns
  /// when nothing of theirs runs any more.
  virtual void abort(const std::vector<Comm>& comms) = 0;
  virtual void destroy(Comm comm) = 0;  ///< all ranks of it do

  virtual Status all_reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, ReduceOp op) = 0;
  virtual Status all_gather(Comm comm, Stream& s, void* out, const void* in, int64_t n_in, DType t) = 0;
  virtual Status reduce_scatter(Comm comm, Stream& s, void* out, const void* in, int64_t n_out, DType t) = 0;
  virtual Status broadcast(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) = 0;
  virtual Status reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) = 0;
  virtual Status send(Comm comm, Stream& s, const void* data, int64_t n, DType t, int peer) = 0;
  virtual Status recv(Comm comm, Stream& s, void* data, int64_t n, DType t, int peer) = 0;
  /// Sends and receives between the two go at once, whatever their order.
  virtual Status group_start() = 0;
  virtual Status group_end() = 0;
};

/// What NCCL reads from its environment, set before it is opened, on every rank. A user's values stay, but
/// for those of share_gpu.
struct Environment {
  bool deterministic = false;  ///< the same sums in each run
  std::string interface;       ///< network interface of its sockets; empty: NCCL chooses
  int share_gpu_as = -1;       ///< this rank, where several have one GPU: each as a host of its own
};
void set_environment(const Environment& e);
/// Empty where NCCL can be opened, else what is missing.
std::string missing_library();
/// NCCL of this machine, opened once. Throws Error (usage) with what is missing and what would help.
std::shared_ptr<Library> open_library();

}  // namespace ltrain::nccl
