// The calls of NCCL that groups use, apart from NCCL, so that what is built on them is tested without a GPU.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/elementwise/reduce.h"
#include "kernels/tensor/stream.h"

namespace ltrain::nccl {

using Comm = void*;  ///< ncclComm_t
using UniqueId = std::array<char, 128>;

/// What a call came to. Communicators are non-blocking: a call may return before it is done, and the next one
/// on any communicator of the process waits until state() says that it is.
struct Status {
  enum Code : uint8_t { success, in_progress, failed };
  Code code = success;
  std::string text;  ///< failed: NCCL's words
};

/// Not for two threads at once. Counts are of elements. Collectives are enqueued on the stream.
class Library {
 public:
  virtual ~Library() = default;
  virtual std::string version() const = 0;  ///< "2.28.9"
  virtual UniqueId unique_id() = 0;         ///< for one rank to give to the others; throws Error
  /// `comm` is set at once, and of use when state(comm) is success.
  virtual Status init(Comm& comm, int size, const UniqueId& id, int rank) = 0;
  /// Collective over `parent`. A negative colour takes part and gets null. Done when state(parent) is
  /// success, and then the child's.
  virtual Status split(Comm& child, Comm parent, int color, int key) = 0;
  virtual Status state(Comm comm) = 0;  ///< of the calls so far, and of what the network says since
  virtual void abort(Comm comm) = 0;    ///< ends what is enqueued, on this rank
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

/// Has NCCL start the work of all groups in the order of their calls. Before NCCL is opened.
void keep_order();
/// Has NCCL take this rank for one on a host of its own, reached over the loopback's sockets, so that several
/// ranks can have one GPU. Before NCCL is opened, and on every rank.
void share_gpu(int rank);
/// Empty where NCCL can be opened, else what is missing.
std::string missing_library();
/// NCCL of this machine, opened once. Throws Error (usage) with what is missing and what would help.
std::shared_ptr<Library> open_library();

}  // namespace ltrain::nccl
