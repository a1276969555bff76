// NCCL's functions that groups use, behind an interface, so that code above is tested without a GPU.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/elementwise/reduce.h"
#include "kernels/tensor/stream.h"

struct ncclComm;  // NCCL's type

namespace ltrain::nccl {

/// Most channels of each communicator if ranks share a GPU.
inline constexpr int kSharedGpuChannels = 2;

using Comm = ncclComm*;
using UniqueId = std::array<char, 128>;

/// Result of a call.
struct Status {
  bool failed = false;
  std::string text = {};  ///< NCCL's message
};

/// Calls block: creation of communicators until the other ranks have come, and the first call between ranks
/// until they are connected. One thread at a time calls them, except for state() and abort(), which another
/// thread may call while a call blocks. Counts are in elements. Collectives are enqueued on the stream.
class Library {
 public:
  virtual ~Library() = default;
  virtual std::string version() const = 0;  ///< "2.28.9"
  virtual UniqueId unique_id() = 0;         ///< made by one rank for all; throws Error
  /// Function that another thread calls before its first call, to use this thread's GPU.
  virtual std::function<void()> on_this_gpu() const = 0;
  /// `comm` may be set before the call returns, and can be aborted then. It must stay at its address until
  /// the call has returned.
  virtual Status init(Comm& comm, int size, const UniqueId& id, int rank) = 0;
  /// Collective over `parent`. A rank with a negative colour takes part and gets null. `child`: like `comm`
  /// of init. `most_channels`: limit for the child, each a block of the GPU and buffers; 0: NCCL chooses.
  virtual Status split(Comm& child, Comm parent, int color, int key, int most_channels) = 0;
  virtual Status state(Comm comm) = 0;  ///< asynchronous errors of the network so far
  /// Ends enqueued work on this rank, and blocking calls: all get the abort before any is waited for. Returns
  /// when none of their work runs any more.
  virtual void abort(const std::vector<Comm>& comms) = 0;
  virtual void destroy(Comm comm) = 0;  ///< called by all its ranks

  virtual Status all_reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, ReduceOp op) = 0;
  virtual Status all_gather(Comm comm, Stream& s, void* out, const void* in, int64_t n_in, DType t) = 0;
  virtual Status reduce_scatter(Comm comm, Stream& s, void* out, const void* in, int64_t n_out, DType t) = 0;
  virtual Status broadcast(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) = 0;
  virtual Status reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) = 0;
  virtual Status send(Comm comm, Stream& s, const void* data, int64_t n, DType t, int peer) = 0;
  virtual Status recv(Comm comm, Stream& s, void* data, int64_t n, DType t, int peer) = 0;
  /// Sends and receives between the two calls run at once, in any order.
  virtual Status group_start() = 0;
  virtual Status group_end() = 0;
};

/// Environment variables of NCCL, set before it is opened, on every rank. A user's values are kept, except
/// those of share_gpu.
struct Environment {
  bool deterministic = false;  ///< same sums in each run
  std::string interface;       ///< network interface of its sockets; empty: NCCL chooses
  int share_gpu_as = -1;       ///< this rank, if several share a GPU: each gets a host id of its own
};
void set_environment(const Environment& e);
/// Empty if NCCL can be opened, else the missing part.
std::string missing_library();
/// NCCL of this machine, opened once. Throws Error (usage) with the missing part and advice.
std::shared_ptr<Library> open_library();

}  // namespace ltrain::nccl
