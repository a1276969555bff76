#include "parallel/comm/communicator.h"

#include "base/fault_point.h"
#include "base/progress.h"
#include "kernels/tensor/timeline.h"
#include "parallel/comm/flight_ring.h"

namespace ltrain {

std::string to_string(const CollectiveInfo& i) {
  std::string text = fmt::format("{} #{}", collective_name(i.op), i.sequence);
  if (i.op == CollectiveOp::barrier) return text;
  text += fmt::format(" of {} {}", i.elements, dtype_name(i.dtype));
  if (i.op == CollectiveOp::all_reduce && i.reduce != ReduceOp::sum)
    text += fmt::format(" ({})", reduce_op_name(i.reduce));
  if (i.op == CollectiveOp::broadcast) text += fmt::format(" from rank {}", i.peer);
  if (i.op == CollectiveOp::reduce || i.op == CollectiveOp::send || i.op == CollectiveOp::send_recv)
    text += fmt::format(" to rank {}", i.peer);
  if (i.op == CollectiveOp::recv) text += fmt::format(" from rank {}", i.peer);
  return text;
}

bool same_call(const CollectiveInfo& a, const CollectiveInfo& b) {
  return a.op == b.op && a.sequence == b.sequence && a.elements == b.elements && a.dtype == b.dtype &&
         a.reduce == b.reduce &&
         ((a.op != CollectiveOp::broadcast && a.op != CollectiveOp::reduce) || a.peer == b.peer);
}

std::string mismatch_text(const std::string& group, int rank_a, const CollectiveInfo& a, int rank_b,
                          const CollectiveInfo& b) {
  return fmt::format(
      "ranks of group \"{}\" make different calls: rank {} entered {}, rank {} entered {}; all ranks of a "
      "group must "
      "make the same collectives in the same order with the same sizes",
      group, rank_a, to_string(a), rank_b, to_string(b));
}

void FlightRecord::enter(const CollectiveInfo& info) {
  std::lock_guard lock(mutex_);
  last_ = info;
  flight_ring().enter(this, ++entered_, info);
}

void FlightRecord::complete() {
  note_progress();
  std::lock_guard lock(mutex_);
  flight_ring().complete(this, ++completed_);
}

FlightRecord::View FlightRecord::view() const {
  std::lock_guard lock(mutex_);
  return {group_, last_, completed_, entered_};
}

Communicator::Communicator(int rank, int size, std::string name, AxisSet axes)
    : rank_(rank),
      size_(size),
      axes_(axes),
      name_(std::move(name)),
      flight_(std::make_shared<FlightRecord>(name_)) {
  LT_CHECK(size >= 1 && rank >= 0 && rank < size, "expected a rank of a group of {}, got rank {}", size,
           rank);
}

void Communicator::record_meta(Stream&, const CollectiveCall& call) {
  LT_CHECK(false, "group \"{}\": expected a recording group for {} on a meta stream, got another one", name_,
           to_string(call.info));
}

void Communicator::check_tensor(const Stream& s, CollectiveOp op, const Tensor& t) const {
  LT_CHECK(t.device == s.device(),
           "group \"{}\": expected a tensor on the device of stream \"{}\" for {}, got one on another device",
           name_, s.name(), collective_name(op));
  LT_CHECK(t.defined() || t.elements() == 0,
           "group \"{}\": expected a defined tensor for {}, got an undefined one", name_,
           collective_name(op));
}

void Communicator::check_peer(CollectiveOp op, int peer) const {
  LT_CHECK(peer >= 0 && peer < size_, "group \"{}\": expected a peer from 0 to {} for {}, got rank {}", name_,
           size_ - 1, collective_name(op), peer);
}

namespace {

bool is_transfer(CollectiveOp op) {
  return op == CollectiveOp::send || op == CollectiveOp::recv || op == CollectiveOp::send_recv;
}

}  // namespace

/// Calls of one capture, in order.
struct Communicator::Recorded {
  const Recording* recording = nullptr;
  std::vector<CollectiveInfo> calls;
  int64_t wire_bytes = 0;
};

uint64_t Communicator::next_sequence(const CollectiveInfo& info) {
  return is_transfer(info.op) ? ++transfers_issued_ : ++collectives_issued_;
}

void Communicator::note_recorded(Stream& s, const CollectiveInfo& info, int64_t wire_bytes) {
  Recording* now = s.recording();
  if (!recorded_ || recorded_->recording != now) {
    recorded_ = std::make_shared<Recorded>();
    recorded_->recording = now;
    now->after.push_back([this, &s, calls = recorded_] { count_recorded(s, *calls); });
  }
  recorded_->calls.push_back(info);
  recorded_->wire_bytes += wire_bytes;
}

void Communicator::count_recorded(Stream& s, const Recorded& recorded) {
  CollectiveInfo last;
  for (CollectiveInfo info : recorded.calls) {
    info.sequence = next_sequence(info);
    flight_->enter(last = info);
  }
  wire_bytes_.fetch_add(recorded.wire_bytes, std::memory_order_relaxed);
  watch_recorded(s, last, recorded.calls.size());
}

void Communicator::run(Stream& s, CollectiveCall call, std::function<void()> body) {
  const CollectiveOp op = call.info.op;
  const bool transfer = is_transfer(op);
  // Fault injection: one rank skips a collective, or changes its size.
  const FaultAction fault = transfer ? FaultAction::none : LT_FAULT_POINT("collective.enter");
  if (fault == FaultAction::skip) return;
  if (fault == FaultAction::corrupt) call.info.elements += 1;
  const bool recorded = s.recording() && enqueues();
  if (!recorded) call.info.sequence = next_sequence(call.info);
  s.last_axes = axes_;
  // Counted when it is issued, so that a call in flight belongs to the step that began it. Captured work
  // counts itself, in each run.
  const bool captured = s.recording() && !recorded;
  if (!s.recording()) wire_bytes_.fetch_add(call.wire_bytes, std::memory_order_relaxed);
  if (s.device() == DeviceKind::meta) {
    record_meta(s, call);
    return;
  }
  const OpRange range(s, collective_name(op), call.wire_bytes);
  if (enqueues()) stream_ = &s;
  if (recorded) {
    check_same(call.info);
    body();
    return note_recorded(s, call.info, call.wire_bytes);
  }
  auto work = [this, captured, info = call.info, wire = call.wire_bytes, body = std::move(body)] {
    if (broken_.load(std::memory_order_relaxed))
      fail(ExitCode::rank_lost, "group \"{}\": {} after an earlier failure of this group", name_,
           to_string(info));
    flight_->enter(info);
    try {
      check_same(info);
      body();
    } catch (...) {
      broken_.store(true, std::memory_order_relaxed);
      throw;
    }
    if (captured) wire_bytes_.fetch_add(wire, std::memory_order_relaxed);
    if (!enqueues()) complete();
  };
  enqueues() ? work() : s.launch(std::move(work));
}

void Communicator::all_reduce(Stream& s, Tensor t, ReduceOp reduce) {
  const CollectiveOp op = CollectiveOp::all_reduce;
  check_tensor(s, op, t);
  LT_CHECK(reducible(t.dtype), "group \"{}\": expected a reducible dtype for all_reduce, got {}", name_,
           dtype_name(t.dtype));
  const int64_t wire = collective_wire_bytes(op, t.bytes(), size_, rank_, dtype_size(t.dtype));
  run(s, {{op, 0, t.elements(), t.dtype, reduce}, t, t, wire},
      [this, t, reduce] { do_all_reduce(t, reduce); });
}

void Communicator::all_gather(Stream& s, Tensor out, Tensor in) {
  const CollectiveOp op = CollectiveOp::all_gather;
  check_tensor(s, op, out);
  check_tensor(s, op, in);
  LT_CHECK(out.dtype == in.dtype, "group \"{}\": expected out of {} for all_gather, got {}", name_,
           dtype_name(in.dtype), dtype_name(out.dtype));
  LT_CHECK(out.elements() == size_ * in.elements(),
           "group \"{}\": expected out of {} times the elements of in for all_gather, got in {} and out {}",
           name_, size_, to_string(in.shape), to_string(out.shape));
  const int64_t wire = collective_wire_bytes(op, out.bytes(), size_, rank_);
  run(s, {{op, 0, out.elements(), out.dtype}, out, in, wire}, [this, out, in] { do_all_gather(out, in); });
}

void Communicator::reduce_scatter(Stream& s, Tensor out, Tensor in) {
  const CollectiveOp op = CollectiveOp::reduce_scatter;
  check_tensor(s, op, out);
  check_tensor(s, op, in);
  LT_CHECK(out.dtype == in.dtype, "group \"{}\": expected out of {} for reduce_scatter, got {}", name_,
           dtype_name(in.dtype), dtype_name(out.dtype));
  LT_CHECK(reducible(in.dtype), "group \"{}\": expected a reducible dtype for reduce_scatter, got {}", name_,
           dtype_name(in.dtype));
  LT_CHECK(
      in.elements() == size_ * out.elements(),
      "group \"{}\": expected in of {} times the elements of out for reduce_scatter, got in {} and out {}",
      name_, size_, to_string(in.shape), to_string(out.shape));
  const int64_t wire = collective_wire_bytes(op, in.bytes(), size_, rank_);
  run(s, {{op, 0, in.elements(), in.dtype}, out, in, wire}, [this, out, in] { do_reduce_scatter(out, in); });
}

void Communicator::all_to_all(Stream& s, Tensor out, Tensor in) {
  const CollectiveOp op = CollectiveOp::all_to_all;
  check_tensor(s, op, out);
  check_tensor(s, op, in);
  LT_CHECK(out.dtype == in.dtype && out.elements() == in.elements(),
           "group \"{}\": expected in and out of the same dtype and elements for all_to_all, got in {} {} "
           "and out {} {}",
           name_, to_string(in.shape), dtype_name(in.dtype), to_string(out.shape), dtype_name(out.dtype));
  LT_CHECK(in.elements() % size_ == 0,
           "group \"{}\": expected a multiple of {} elements for all_to_all, got {}", name_, size_,
           in.elements());
  const int64_t wire = collective_wire_bytes(op, in.bytes(), size_, rank_);
  std::vector<int64_t> parts(static_cast<size_t>(size_), in.elements() / size_);
  run(s, {{op, 0, in.elements(), in.dtype}, out, in, wire},
      [this, out, in, parts = std::move(parts)] { do_all_to_all_v(out, parts, in, parts); });
}

void Communicator::all_to_all_v(Stream& s, Tensor out, const std::vector<int64_t>& out_rows, Tensor in,
                                const std::vector<int64_t>& in_rows) {
  const CollectiveOp op = CollectiveOp::all_to_all;
  check_tensor(s, op, out);
  check_tensor(s, op, in);
  LT_CHECK(out.dtype == in.dtype, "group \"{}\": expected out of {} for all_to_all_v, got {}", name_,
           dtype_name(in.dtype), dtype_name(out.dtype));
  LT_CHECK(static_cast<int>(out_rows.size()) == size_ && static_cast<int>(in_rows.size()) == size_,
           "group \"{}\": expected {} row counts for all_to_all_v, got {} of in and {} of out", name_, size_,
           in_rows.size(), out_rows.size());
  auto row_elements = [](const Tensor& t) {
    int64_t n = 1;
    for (int i = 1; i < t.shape.rank; ++i) n *= t.shape[i];
    return n;
  };
  const int64_t row = row_elements(in);
  LT_CHECK(in.shape.rank >= 1 && out.shape.rank >= 1 && row == row_elements(out),
           "group \"{}\": expected rows of equal length for all_to_all_v, got in {} and out {}", name_,
           to_string(in.shape), to_string(out.shape));
  std::vector<int64_t> out_parts, in_parts;
  int64_t out_sum = 0, in_sum = 0;
  for (int r = 0; r < size_; ++r) {
    LT_CHECK(
        out_rows[r] >= 0 && in_rows[r] >= 0,
        "group \"{}\": expected row counts >= 0 for all_to_all_v, got {} of out and {} of in for rank {}",
        name_, out_rows[r], in_rows[r], r);
    out_sum += out_rows[r], in_sum += in_rows[r];
    out_parts.push_back(out_rows[r] * row);
    in_parts.push_back(in_rows[r] * row);
  }
  LT_CHECK(
      out_sum <= out.shape[0] && in_sum <= in.shape[0],
      "group \"{}\": expected at least {} rows of in and {} of out for all_to_all_v, got in {} and out {}",
      name_, in_sum, out_sum, to_string(in.shape), to_string(out.shape));
  LT_CHECK(in_rows[rank_] == out_rows[rank_],
           "group \"{}\": expected equal counts of rows that stay on rank {} for all_to_all_v, got {} of in "
           "and {} of out",
           name_, rank_, in_rows[rank_], out_rows[rank_]);
  const int64_t size = dtype_size(in.dtype);
  const int64_t wire =
      collective_wire_bytes(op, in_sum * row * size, size_, rank_, size, 0, in_parts[rank_] * size);
  // All ranks agree on the length of a row; counts are compared for each pair.
  const int64_t received = (out_sum * row - out_parts[rank_]) * size;
  run(s, {{op, 0, row, in.dtype}, out, in, wire, received},
      [this, out, in, a = std::move(out_parts), b = std::move(in_parts)] { do_all_to_all_v(out, a, in, b); });
}

void Communicator::broadcast(Stream& s, Tensor out, Tensor own, int root) {
  const CollectiveOp op = CollectiveOp::broadcast;
  check_tensor(s, op, out);
  check_tensor(s, op, own);
  check_peer(op, root);
  LT_CHECK(
      out.dtype == own.dtype && out.elements() == own.elements() && (rank_ != root || out.data == own.data),
      "group \"{}\": expected out and own of the same dtype and elements for broadcast, and the same memory "
      "on the root; got own {} {} and out {} {}",
      name_, to_string(own.shape), dtype_name(own.dtype), to_string(out.shape), dtype_name(out.dtype));
  const int64_t wire = collective_wire_bytes(op, out.bytes(), size_, rank_, 1, root);
  run(s, {{op, 0, out.elements(), out.dtype, ReduceOp::sum, root}, out, own, wire},
      [this, out, root] { do_broadcast(out, root); });
}

void Communicator::reduce(Stream& s, Tensor t, int root) {
  const CollectiveOp op = CollectiveOp::reduce;
  check_tensor(s, op, t);
  check_peer(op, root);
  LT_CHECK(reducible(t.dtype), "group \"{}\": expected a reducible dtype for reduce, got {}", name_,
           dtype_name(t.dtype));
  const int64_t wire = collective_wire_bytes(op, t.bytes(), size_, rank_, 1, root);
  run(s, {{op, 0, t.elements(), t.dtype, ReduceOp::sum, root}, t, t, wire},
      [this, t, root] { do_reduce(t, root); });
}

void Communicator::send(Stream& s, Tensor t, int peer) {
  const CollectiveOp op = CollectiveOp::send;
  check_tensor(s, op, t);
  check_peer(op, peer);
  LT_CHECK(peer != rank_, "group \"{}\": expected another rank than {} to send to, got itself", name_, rank_);
  run(s, {{op, 0, t.elements(), t.dtype, ReduceOp::sum, peer}, {}, t, t.bytes()},
      [this, t, peer] { do_send(t, peer); });
}

void Communicator::recv(Stream& s, Tensor t, int peer) {
  const CollectiveOp op = CollectiveOp::recv;
  check_tensor(s, op, t);
  check_peer(op, peer);
  LT_CHECK(peer != rank_, "group \"{}\": expected another rank than {} to receive from, got itself", name_,
           rank_);
  run(s, {{op, 0, t.elements(), t.dtype, ReduceOp::sum, peer}, t, {}, 0},
      [this, t, peer] { do_recv(t, peer); });
}

void Communicator::send_recv(Stream& s, Tensor out, int to, Tensor in, int from) {
  const CollectiveOp op = CollectiveOp::send_recv;
  check_tensor(s, op, out);
  check_tensor(s, op, in);
  check_peer(op, to);
  check_peer(op, from);
  LT_CHECK(to != rank_ && from != rank_,
           "group \"{}\": expected other ranks than {} to exchange with, got to {} and from {}", name_, rank_,
           to, from);
  run(s, {{op, 0, out.elements(), out.dtype, ReduceOp::sum, to}, in, out, out.bytes()},
      [this, out, to, in, from] { do_send_recv(out, to, in, from); });
}

void Communicator::barrier(Stream& s) {
  run(s, {{CollectiveOp::barrier}, {}, {}, 0}, [this] { do_barrier(); });
  s.synchronize();
}

}  // namespace ltrain
