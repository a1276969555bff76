#include "parallel/mesh/group.h"

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/micro_batch_overlap.h"

namespace ltrain {

void AsyncHandle::wait(Stream& s) const {
  if (under_way_ && s.overlap) s.overlap->pass();
  s.wait(done_);
}

void Group::claim(VaryingRows rows, Stream& s, Tensor t, Placement from, Placement to) const {
  if (rows.op.empty()) return;
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); axes().has(a) && kGradientAxes.has(a))
      place_as(s, rows.op, a, t, from, to);
}

AsyncHandle Group::start_all_reduce(Stream& s, Tensor t, ReduceOp op) const {
  if (size() == 1) return {};
  return start(s, [&](Stream& on) { comm_->all_reduce(on, t, op); });
}

AsyncHandle Group::start_all_gather(Stream& s, Tensor out, Tensor in, VaryingRows rows) const {
  claim(rows, s, in, Placement::V(), Placement::S(0));
  return start(s, [&](Stream& on) { comm_->all_gather(on, out, in); });
}

AsyncHandle Group::start_reduce_scatter(Stream& s, Tensor out, Tensor in, VaryingRows rows) const {
  const AsyncHandle done = start(s, [&](Stream& on) { comm_->reduce_scatter(on, out, in); });
  claim(rows, s, out, Placement::S(0), Placement::V());
  return done;
}

AsyncHandle Group::start_broadcast(Stream& s, Tensor out, Tensor own, int root) const {
  return start(s, [&](Stream& on) { comm_->broadcast(on, out, own, root); });
}

AsyncHandle Group::start_reduce(Stream& s, Tensor t, int root) const {
  return start(s, [&](Stream& on) { comm_->reduce(on, t, root); });
}

AsyncHandle Group::start_send(Stream& s, Tensor t, int peer) const {
  return start(s, [&](Stream& on) { comm_->send(on, t, peer); });
}

AsyncHandle Group::start_recv(Stream& s, Tensor t, int peer) const {
  return start(s, [&](Stream& on) { comm_->recv(on, t, peer); });
}

AsyncHandle Group::start_send_recv(Stream& s, Tensor out, int to, Tensor in, int from,
                                   VaryingRows rows) const {
  claim(rows, s, out, Placement::V(), Placement::S(0));
  const AsyncHandle done = start(s, [&](Stream& on) { comm_->send_recv(on, out, to, in, from); });
  claim(rows, s, out, Placement::S(0), Placement::V());
  claim(rows, s, in, Placement::S(0), Placement::V());
  return done;
}

void Group::all_reduce(Stream& s, Tensor t, ReduceOp op) const { start_all_reduce(s, t, op).wait(s); }

void Group::all_gather(Stream& s, Tensor out, Tensor in, VaryingRows rows) const {
  start_all_gather(s, out, in, rows).wait(s);
}

void Group::reduce_scatter(Stream& s, Tensor out, Tensor in, VaryingRows rows) const {
  start_reduce_scatter(s, out, in, rows).wait(s);
}

void Group::all_to_all(Stream& s, Tensor out, Tensor in) const {
  start(s, [&](Stream& on) { comm_->all_to_all(on, out, in); }).wait(s);
}

void Group::all_to_all_v(Stream& s, Tensor out, const std::vector<int64_t>& out_rows, Tensor in,
                         const std::vector<int64_t>& in_rows, VaryingRows rows) const {
  claim(rows, s, in, Placement::V(), Placement::S(0));
  start(s, [&](Stream& on) { comm_->all_to_all_v(on, out, out_rows, in, in_rows); }).wait(s);
  claim(rows, s, out, Placement::S(0), Placement::V());
}

void Group::reduce(Stream& s, Tensor t, int root, VaryingRows rows) const {
  start_reduce(s, t, root).wait(s);
  claim(rows, s, t, Placement::V(), Placement::S(0));  // on every rank, so that no rank can omit it
}

}  // namespace ltrain
