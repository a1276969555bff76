// Collectives on tensors over one group of ranks.
//
// The public functions check shapes and dtypes, count bytes, record on `meta`, and enqueue on the stream; the do_*
// functions of an implementation (Gloo, in-process, recording) run on the stream's thread and block there.
// Every implementation reduces in ascending rank order, one element at a time, so that an all-reduce equals a
// reduce-scatter followed by an all-gather bit for bit, and two implementations agree bit for bit.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/placement.h"
#include "kernels/core/stream.h"
#include "kernels/core/tensor.h"

namespace ltrain {

enum class ReduceOp : uint8_t { sum, max, min };

/// Identity of one collective call: what the watchdog prints when it stalls, and what ranks compare.
struct CollectiveInfo {
  const char* op = "";
  uint64_t sequence = 0;  ///< counts calls on this communicator from 1
  int64_t elements = 0;
  DType dtype = DType::f32;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  ///< "data", "world"
  Axis axis() const { return axis_; }

  /// t := reduction over the group. Any float or i64 dtype. Placement P -> R (sum).
  void all_reduce(Stream& s, Tensor t, ReduceOp op = ReduceOp::sum);
  /// out[r * n + i] := in of rank r, n = in.elements(). `in` may be this rank's part of `out`. S(0) -> R.
  void all_gather(Stream& s, Tensor out, Tensor in);
  /// out := this rank's n-th part of the sum; in.elements() == size * out.elements(). `out` may be this rank's part
  /// of `in`; the rest of `in` is left undefined. P -> S(0).
  void reduce_scatter(Stream& s, Tensor out, Tensor in);
  /// Equal parts: part j of `in` goes to rank j; part j of `out` came from rank j. Not in place.
  void all_to_all(Stream& s, Tensor out, Tensor in);
  /// Uneven parts, in rows of dim 0, known on the host.
  void all_to_all_v(Stream& s, Tensor out, const std::vector<int64_t>& out_rows, Tensor in,
                    const std::vector<int64_t>& in_rows);
  void broadcast(Stream& s, Tensor t, int root);
  void send(Stream& s, Tensor t, int peer);
  void recv(Stream& s, Tensor t, int peer);
  /// All ranks have entered. Blocks the caller.
  void barrier(Stream& s);

  /// Collective over this group: ranks of equal colour form a new group, ordered by key then rank; a negative
  /// colour takes part and gets null.
  virtual std::unique_ptr<Communicator> split(int color, int key, std::string name, Axis axis) = 0;

  /// Bytes that this rank sent so far by the algorithm's own count; equals the plan's count exactly.
  int64_t wire_bytes() const { return wire_bytes_.load(std::memory_order_relaxed); }
  /// The collective that is running or ran last, for stall reports. Safe from any thread.
  CollectiveInfo last_entered() const;
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 protected:
  Communicator(int rank, int size, std::string name, Axis axis)
      : rank_(rank), size_(size), axis_(axis), name_(std::move(name)) {}

  virtual void do_all_reduce(Tensor t, ReduceOp op) = 0;
  virtual void do_all_gather(Tensor out, Tensor in) = 0;
  virtual void do_reduce_scatter(Tensor out, Tensor in) = 0;
  virtual void do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                               const std::vector<int64_t>& in_elements) = 0;
  virtual void do_broadcast(Tensor t, int root) = 0;
  virtual void do_send(Tensor t, int peer) = 0;
  virtual void do_recv(Tensor t, int peer) = 0;
  virtual void do_barrier() = 0;
  /// Called before each collective on the stream's thread: compares `info` among the ranks, throws if they differ.
  virtual void check_same(const CollectiveInfo& info) {}

 private:
  void run(Stream& s, const char* op, const Tensor& t, int64_t wire, std::function<void()> body);

  int rank_, size_;
  Axis axis_;
  std::string name_;
  std::atomic<int64_t> wire_bytes_{0};
  std::atomic<uint64_t> entered_{0}, completed_{0};
  std::atomic<const char*> last_op_{""};
  std::atomic<int64_t> last_elements_{0};
  std::atomic<DType> last_dtype_{DType::f32};
  uint64_t issued_ = 0;
};

/// `size` communicators for `size` threads of this process. Sums in ascending rank order. For tests.
std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size, std::string name, Axis axis);

/// A group of one that moves nothing: what every axis of size 1 gets.
std::unique_ptr<Communicator> make_single_group(std::string name, Axis axis);

/// Meta device: moves nothing, records placements, bytes and order.
std::unique_ptr<Communicator> make_recording_group(int rank, int size, std::string name, Axis axis);

}  // namespace ltrain
