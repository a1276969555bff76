// Collectives on tensors over one group of ranks.
//
// The public functions check shapes and dtypes, count bytes, record on `meta`, and enqueue on the stream. The
// do_* functions of an implementation (Gloo, in-process, recording) run on the stream's thread and block
// there. Every implementation reduces in ascending rank order, one element at a time. An all-reduce therefore
// equals a reduce-scatter followed by an all-gather bit for bit, and all implementations agree bit for bit.
//
// A communicator that has thrown is broken: every later call on it throws, too. Use one from one stream at a
// time.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/elementwise/reduce.h"
#include "kernels/tensor/placement.h"
#include "kernels/tensor/stream.h"
#include "kernels/tensor/tensor.h"
#include "parallel/comm/collective_bytes.h"

namespace ltrain {

/// Identity of one call, for the watchdog's message about a stall and for comparisons between ranks.
struct CollectiveInfo {
  CollectiveOp op = CollectiveOp::barrier;
  /// number of the collective on this communicator, from 1; send and recv have their own numbers
  uint64_t sequence = 0;
  /// elements of the full tensor that is reduced, gathered or scattered, equal on all ranks
  int64_t elements = 0;
  DType dtype = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  int peer = -1;  ///< root of a broadcast or reduce; other side of send and recv
};
/// "all_reduce #12 of 4096 f32" for messages.
std::string to_string(const CollectiveInfo& info);

/// Current call of a group, readable from another thread (the heartbeat) while the group's stream is blocked.
class FlightRecord {
 public:
  struct View {
    std::string group;
    CollectiveInfo last;     ///< last entered call
    uint64_t completed = 0;  ///< number of calls completed
    uint64_t entered = 0;
  };
  explicit FlightRecord(std::string group) : group_(std::move(group)) {}
  void enter(const CollectiveInfo& info);
  void complete();
  View view() const;

 private:
  mutable std::mutex mutex_;
  std::string group_;
  CollectiveInfo last_;
  uint64_t entered_ = 0, completed_ = 0;
};

/// Use of a group, which limits the size of its calls.
enum class GroupMessages : uint8_t {
  tensors,    ///< activations, weights, gradients
  transfers,  ///< tensors between two stages; their kernels wait while others compute
  numbers,    ///< values that all ranks agree on: a loss, a norm, choices of each expert; never a tensor
};

/// One call with its tensors, for the recording group.
struct CollectiveCall {
  CollectiveInfo info;
  Tensor out, in;              ///< same tensor for all_reduce and reduce; `in` is the sent one
  int64_t wire_bytes = 0;      ///< bytes that this rank sends
  int64_t received_bytes = 0;  ///< all_to_all of uneven rows: bytes from other ranks
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  ///< "data", "world"
  AxisSet axes() const { return axes_; }             ///< mesh axes that the group spans

  /// t = reduction over the group. f32, f64, bf16, i32 or i64. Placement P -> R (sum).
  void all_reduce(Stream& s, Tensor t, ReduceOp op = ReduceOp::sum);
  /// out[r * n + i] = in of rank r, n = in.elements(). `in` may be this rank's part of `out`. S(0) -> R.
  void all_gather(Stream& s, Tensor out, Tensor in);
  /// out = this rank's n-th part of the sum; in.elements() == size * out.elements(). `out` may be this rank's
  /// part of `in`; the rest of `in` becomes undefined. P -> S(0).
  void reduce_scatter(Stream& s, Tensor out, Tensor in);
  /// Equal parts: part j of `in` goes to rank j; part j of `out` came from rank j. Not in place.
  void all_to_all(Stream& s, Tensor out, Tensor in);
  /// Uneven parts, in rows of dim 0, known on the host.
  void all_to_all_v(Stream& s, Tensor out, const std::vector<int64_t>& out_rows, Tensor in,
                    const std::vector<int64_t>& in_rows);
  void broadcast(Stream& s, Tensor t, int root) { broadcast(s, t, t, root); }
  /// out = `own` of the root. On the root `out` is `own` itself; on other ranks `own` only gives the
  /// placement of the root's tensor: S or V -> R.
  void broadcast(Stream& s, Tensor out, Tensor own, int root);
  /// t on the root = sum over the group; on other ranks t becomes undefined. P -> V.
  void reduce(Stream& s, Tensor t, int root);
  /// Blocks its stream until the peer receives: two ranks that send to each other need send_recv.
  void send(Stream& s, Tensor t, int peer);
  void recv(Stream& s, Tensor t, int peer);
  /// Sends `out` to rank `to` and receives `in` from rank `from` at once, for rings and for neighbours in a
  /// pipeline. The tensors must not overlap.
  void send_recv(Stream& s, Tensor out, int to, Tensor in, int from);
  /// Waits until all ranks have entered. Blocks the caller.
  void barrier(Stream& s);

  /// Collective over this group: ranks of equal colour form a new group, ordered by key, then rank. A rank
  /// with a negative colour takes part and gets null.
  virtual std::unique_ptr<Communicator> split(int color, int key, std::string name, AxisSet axes) = 0;

  /// Throws the failure of enqueued calls. Call it after waiting for their stream, before their results are
  /// used.
  virtual void check() const {}

  /// Collective over two ranks that will send from `from` to `to`. If the first call between them blocks on
  /// the host, it is made now, so that no later schedule can deadlock.
  virtual void connect(Stream&, [[maybe_unused]] int from, [[maybe_unused]] int to) {}

  /// Bytes that this rank sends in the calls issued so far, by the algorithm; equals the plan's count
  /// exactly.
  int64_t wire_bytes() const { return wire_bytes_.load(std::memory_order_relaxed); }
  /// The running or last call, for stall reports. Safe from any thread.
  CollectiveInfo last_entered() const { return flight_->view().last; }
  uint64_t completed() const { return flight_->view().completed; }
  std::shared_ptr<const FlightRecord> flight() const { return flight_; }

 protected:
  Communicator(int rank, int size, std::string name, AxisSet axes);

  // A call is check_same() and one do_*; a vector of parts has one entry (elements) for each rank.
  virtual void do_all_reduce(Tensor t, ReduceOp op) = 0;
  virtual void do_all_gather(Tensor out, Tensor in) = 0;
  virtual void do_reduce_scatter(Tensor out, Tensor in) = 0;
  virtual void do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                               const std::vector<int64_t>& in_elements) = 0;
  virtual void do_broadcast(Tensor t, int root) = 0;
  virtual void do_reduce(Tensor t, int root) = 0;
  virtual void do_send(Tensor t, int peer) = 0;
  virtual void do_recv(Tensor t, int peer) = 0;
  virtual void do_send_recv(Tensor out, int to, Tensor in, int from) = 0;
  virtual void do_barrier() = 0;
  /// Called before each do_* on the stream's thread. An implementation compares `info` among the ranks, here
  /// or at the begin of do_*, and throws on every rank if they differ.
  virtual void check_same(const CollectiveInfo& info) {}
  /// True if do_* enqueues on stream() and returns. complete() is then called after a call is done, on the
  /// caller's thread.
  virtual bool enqueues() const { return false; }
  Stream* stream() const { return stream_; }  ///< stream on which do_* enqueues
  /// Called when `calls` captured calls were enqueued again; `last` is the last of them.
  virtual void watch_recorded(Stream& s, const CollectiveInfo& last, size_t calls) {}
  void complete() { flight_->complete(); }
  /// Called instead of do_* if the stream is a meta stream.
  virtual void record_meta(Stream& s, const CollectiveCall& call);

 private:
  void run(Stream& s, CollectiveCall call, std::function<void()> body);
  struct Recorded;
  void note_recorded(Stream& s, const CollectiveInfo& info, int64_t wire_bytes);
  void count_recorded(Stream& s, const Recorded& calls);
  uint64_t next_sequence(const CollectiveInfo& info);
  void check_tensor(const Stream& s, CollectiveOp op, const Tensor& t) const;
  void check_peer(CollectiveOp op, int peer) const;

  int rank_, size_;
  AxisSet axes_;
  std::string name_;
  std::atomic<int64_t> wire_bytes_{0};
  std::atomic<bool> broken_{false};
  Stream* stream_ = nullptr;
  std::shared_ptr<FlightRecord> flight_;
  uint64_t collectives_issued_ = 0, transfers_issued_ = 0;
  std::shared_ptr<Recorded> recorded_;  // calls being captured
};

struct InProcessOptions {
  double timeout_seconds = 60;  ///< longest wait of a call for the other ranks
};
/// `size` communicators for `size` threads of this process, for tests. Sums in ascending rank order. If a
/// thread leaves (its communicator is destroyed) or throws, the others throw instead of waiting.
std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size, std::string name, AxisSet axes,
                                                                 InProcessOptions options = {});

/// A group of one, which moves nothing: the group of every axis of size 1.
std::unique_ptr<Communicator> make_single_group(std::string name, AxisSet axes);

/// Group for the meta device: moves nothing, records placements, bytes and order. A group must span its full
/// axes unless `whole` is false: then it has only some ranks of the axis (the stages that share a tied
/// weight, the two ends of a link between stages). `network_share`: share of this rank's bytes that go to
/// other hosts. `members`: ranks in the job, for cost models.
std::unique_ptr<Communicator> make_recording_group(int rank, int size, std::string name, AxisSet axes,
                                                   bool whole = true, double network_share = 0,
                                                   std::vector<int> members = {});

/// Text of the error that all ranks throw if their calls differ.
std::string mismatch_text(const std::string& group, int rank_a, const CollectiveInfo& a, int rank_b,
                          const CollectiveInfo& b);
bool same_call(const CollectiveInfo& a, const CollectiveInfo& b);

}  // namespace ltrain
