// One group of the mesh as a step uses it: collectives as ops on tensors, whose order is taken care of here.
//
// A collective runs on the group's own stream, so that it overlaps with compute. `s` is the stream that made
// its operands and that reads its result, as an op's is: a collective comes after all that `s` was given
// before, and all that `s` is given after it comes after the collective. The start_ form leaves that second
// half to AsyncHandle::wait; until then nothing that `s` is given may touch the operands, and their memory
// must live.
#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"

namespace ltrain {

/// A collective, or several in order, under way on a group's stream. Copies are of the same.
class [[nodiscard]] AsyncHandle {
 public:
  AsyncHandle() = default;  ///< of nothing: there is nothing to wait for
  explicit AsyncHandle(Event done) : done_(std::move(done)), under_way_(true) {}
  /// What `s` is given from here on comes after it. Of two pieces of work by turns (interleave.h) the other
  /// has its turn first.
  void wait(Stream& s) const;
  /// The same, and the turn stays: other work has been given to `s` since, which hides it.
  void wait_hidden(Stream& s) const { s.wait(done_); }

 private:
  Event done_;
  bool under_way_ = false;
};

/// How a collective's operands lie where each rank has rows of its own tokens: they vary (V) over those axes
/// of the group on which tokens differ. To the collective they are slices, S(0), of the rows of all ranks;
/// what it gives each rank for itself varies again. `op` names it in a refusal. Without a name operands lie
/// as Communicator says.
struct VaryingRows {
  std::string_view op;
};

class Group {
 public:
  Group() = default;
  Group(Communicator* comm, Stream* stream) : comm_(comm), stream_(stream) {}
  int size() const { return comm_->size(); }
  int rank() const { return comm_->rank(); }
  AxisSet axes() const { return comm_->axes(); }  ///< of the mesh, that it spans
  /// For work outside a step, on a stream of one's own.
  Communicator& communicator() const { return *comm_; }

  // Operands, aliasing and placements are those of Communicator's functions of the same names.

  /// Nothing in a group of one.
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
  /// The root's block of the sum is, with `rows`, a slice of the blocks of all roots.
  void reduce(Stream& s, Tensor t, int root, VaryingRows rows = {}) const;
  AsyncHandle start_reduce(Stream& s, Tensor t, int root) const;
  AsyncHandle start_send(Stream& s, Tensor t, int peer) const;
  AsyncHandle start_recv(Stream& s, Tensor t, int peer) const;
  AsyncHandle start_send_recv(Stream& s, Tensor out, int to, Tensor in, int from,
                              VaryingRows rows = {}) const;

  /// Several collectives with work between them: work(on) gives the group's stream, `on`, all of it, after
  /// what `s` was given before. Collectives of this group, and of others on the same stream, then take `on`
  /// as theirs.
  template <class F>
  AsyncHandle start(Stream& s, F&& work) const {
    if (&s == stream_) {  // in its order
      work(s);
      return {};
    }
    stream_->wait(s.record());
    work(*stream_);
    return AsyncHandle(stream_->record());
  }
  /// The same after what `before` stands for, in the place of what a stream was given.
  template <class F>
  AsyncHandle start(const AsyncHandle& before, F&& work) const {
    before.wait(*stream_);
    work(*stream_);
    return AsyncHandle(stream_->record());
  }
  /// `s` goes on after all that the group's stream was given.
  void wait(Stream& s) const { s.wait(stream_->record()); }

 private:
  friend struct Groups;
  friend class GroupSet;
  void claim(VaryingRows rows, Stream& s, Tensor t, Placement from, Placement to) const;

  Communicator* comm_ = nullptr;
  Stream* stream_ = nullptr;
};

}  // namespace ltrain
