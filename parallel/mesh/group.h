// A group of the mesh in a step: collectives as ops on tensors, with automatic ordering.
//
// A collective runs on the group's own stream, so that it overlaps with compute. `s` is the stream that made
// its operands and reads its result. A collective runs after all earlier work of `s`, and later work of `s`
// runs after the collective. The start_ form leaves the second half to AsyncHandle::wait; until then no work
// of `s` may touch the operands, and their memory must live.
#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"

namespace ltrain {

/// A collective, or several in order, in flight on a group's stream. Copies refer to the same one.
class [[nodiscard]] AsyncHandle {
 public:
  AsyncHandle() = default;  ///< empty: no wait needed
  explicit AsyncHandle(Event done) : done_(std::move(done)), under_way_(true) {}
  /// Makes later work of `s` run after it. If two micro-batches overlap on `s` (micro_batch_overlap.h), the
  /// other one has its turn first.
  void wait(Stream& s) const;
  /// wait() that keeps the turn: other work of `s` already hides the collective.
  void wait_hidden(Stream& s) const { s.wait(done_); }

 private:
  Event done_;
  bool under_way_ = false;
};

/// Placement of operands whose rows belong to each rank's own tokens: they vary (V) over the axes of the
/// group with different tokens. For the collective they are slices, S(0), of the rows of all ranks; results
/// for one rank vary again. `op` is the name in errors. Empty: operands are placed as in Communicator.
struct VaryingRows {
  std::string_view op;
};

class Group {
 public:
  Group() = default;
  Group(Communicator* comm, Stream* stream) : comm_(comm), stream_(stream) {}
  int size() const { return comm_->size(); }
  int rank() const { return comm_->rank(); }
  AxisSet axes() const { return comm_->axes(); }  ///< mesh axes that it spans
  /// For work outside a step, on another stream.
  Communicator& communicator() const { return *comm_; }

  // Operands, aliasing and placements are those of the Communicator functions with the same names.

  /// No effect in a group of one.
  void all_reduce(Stream& s, Tensor t, ReduceOp op = ReduceOp::sum) const;
  AsyncHandle start_all_reduce(Stream& s, Tensor t, ReduceOp op = ReduceOp::sum) const;
  void all_gather(Stream& s, Tensor out, Tensor in, VaryingRows rows = {}) const;
  AsyncHandle start_all_gather(Stream& s, Tensor out, Tensor in, VaryingRows rows = {}) const;
  void reduce_scatter(Stream& s, Tensor out, Tensor in, VaryingRows rows = {}) const;
  AsyncHandle start_reduce_scatter(Stream& s, Tensor out, Tensor in, VaryingRows rows = {}) const;
  void all_to_all(Stream& s, Tensor out, Tensor in) const;
  void all_to_all_v(Stream& s, Tensor out, const std::vector<int64_t>& out_rows, Tensor in,
                    const std::vector<int64_t>& in_rows, VaryingRows rows = {}) const;
  AsyncHandle start_broadcast(Stream& s, Tensor out, Tensor own, int root) const;
  /// With `rows`, the root's block of the sum is a slice of the blocks of all roots.
  void reduce(Stream& s, Tensor t, int root, VaryingRows rows = {}) const;
  AsyncHandle start_reduce(Stream& s, Tensor t, int root) const;
  AsyncHandle start_send(Stream& s, Tensor t, int peer) const;
  AsyncHandle start_recv(Stream& s, Tensor t, int peer) const;
  AsyncHandle start_send_recv(Stream& s, Tensor out, int to, Tensor in, int from,
                              VaryingRows rows = {}) const;

  /// Several collectives with work between them: work(on) gets the group's stream `on`, after all earlier
  /// work of `s`. Collectives of this group, and of others on the same stream, then use `on` as their stream.
  template <class F>
  AsyncHandle start(Stream& s, F&& work) const {
    if (&s == stream_) {  // same stream: already in order
      work(s);
      return {};
    }
    stream_->wait(s.record());
    work(*stream_);
    return AsyncHandle(stream_->record());
  }
  /// start() after `before` instead of a stream's work.
  template <class F>
  AsyncHandle start(const AsyncHandle& before, F&& work) const {
    before.wait(*stream_);
    work(*stream_);
    return AsyncHandle(stream_->record());
  }
  /// Makes `s` wait for all work of the group's stream.
  void wait(Stream& s) const { s.wait(stream_->record()); }

 private:
  friend struct Groups;
  friend class GroupSet;
  void claim(VaryingRows rows, Stream& s, Tensor t, Placement from, Placement to) const;

  Communicator* comm_ = nullptr;
  Stream* stream_ = nullptr;
};

}  // namespace ltrain
