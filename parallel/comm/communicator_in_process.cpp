// A group of threads of one process. Each rank publishes its pointers, and all meet at a barrier. Each then
// copies or sums directly from the others' memory, and all meet again before any continues.
#include <condition_variable>
#include <cstring>
#include <map>
#include <optional>

#include "base/deadline.h"
#include "parallel/comm/communicator.h"

namespace ltrain {
namespace {

/// Data that one rank publishes to the others during a call.
struct Slot {
  CollectiveInfo info;
  char* data = nullptr;           // tensor that others read
  std::vector<int64_t> parts;     // all_to_all_v: elements for each rank
  std::vector<int64_t> expected;  // all_to_all_v: elements from each rank
};

struct SplitKey {
  int color = 0, key = 0;
};

struct Shared {
  Shared(int size, std::string name, InProcessOptions options)
      : size(size), name(std::move(name)), options(options), slots(size), splits(size) {}

  const int size;
  const std::string name;
  const InProcessOptions options;
  std::vector<Slot> slots;
  std::vector<SplitKey> splits;
  // for each colour, filled by rank 0
  std::map<int, std::vector<std::unique_ptr<Communicator>>> split_groups;

  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;
  uint64_t generation = 0;
  std::string broken;                                                  // reason why the group cannot continue
  std::map<std::pair<int, int>, std::vector<std::vector<char>>> mail;  // (from, to) -> messages, oldest first

  SteadyTime deadline() const { return after(options.timeout_seconds); }

  [[noreturn]] void fail_broken() { fail(ExitCode::rank_lost, "group \"{}\": {}", name, broken); }

  void break_group(const std::string& why) {
    std::lock_guard lock(mutex);
    if (broken.empty()) broken = why;
    changed.notify_all();
  }

  void barrier(int rank, const CollectiveInfo& info) {
    std::unique_lock lock(mutex);
    if (!broken.empty()) fail_broken();
    const uint64_t mine = generation;
    if (++waiting == size) {
      waiting = 0;
      ++generation;
      changed.notify_all();
      return;
    }
    const bool in_time =
        changed.wait_until(lock, deadline(), [&] { return generation != mine || !broken.empty(); });
    if (generation != mine) return;
    --waiting;
    if (in_time) fail_broken();
    broken = fmt::format("rank {} waited {:g} s in {} for {} of {} ranks", rank, options.timeout_seconds,
                         to_string(info), size - waiting - 1, size);
    changed.notify_all();
    fail_broken();
  }
};

class InProcessGroup final : public Communicator {
 public:
  InProcessGroup(std::shared_ptr<Shared> shared, int rank, AxisSet axes)
      : Communicator(rank, shared->size, shared->name, axes), shared_(std::move(shared)) {}

  ~InProcessGroup() override { shared_->break_group(fmt::format("rank {} has left", rank())); }

  std::unique_ptr<Communicator> split(int color, int key, std::string name, AxisSet axes) override {
    Shared& s = *shared_;
    const CollectiveInfo info;
    s.splits[rank()] = {color, key};
    s.barrier(rank(), info);
    if (rank() == 0) {
      std::map<int, int> sizes;
      for (const SplitKey& k : s.splits)
        if (k.color >= 0) ++sizes[k.color];
      s.split_groups.clear();
      for (const auto& [c, n] : sizes) s.split_groups[c] = make_in_process_group(n, name, axes, s.options);
    }
    s.barrier(rank(), info);
    std::unique_ptr<Communicator> mine;
    if (color >= 0) {
      int place = 0;
      for (int r = 0; r < size(); ++r) {
        const SplitKey& k = s.splits[r];
        if (k.color == color && (k.key < key || (k.key == key && r < rank()))) ++place;
      }
      mine = std::move(s.split_groups[color][place]);
    }
    s.barrier(rank(), info);
    return mine;
  }

 private:
  void check_same(const CollectiveInfo& info) override {
    info_ = info;
    shared_->slots[rank()] = Slot{};
    shared_->slots[rank()].info = info;
  }

  /// Publishes `data` and waits for all; then every rank compares all calls.
  void meet(void* data, const std::vector<int64_t>& parts = {}, const std::vector<int64_t>& expected = {}) {
    Slot& mine = shared_->slots[rank()];
    mine.data = static_cast<char*>(data);
    mine.parts = parts;
    mine.expected = expected;
    shared_->barrier(rank(), info_);
    // Every rank compares the same slots, so that all reach the same verdict.
    for (int r = 1; r < size(); ++r)
      if (!same_call(shared_->slots[0].info, shared_->slots[r].info))
        throw Error(ExitCode::internal,
                    mismatch_text(name(), 0, shared_->slots[0].info, r, shared_->slots[r].info));
    if (parts.empty()) return;
    for (int from = 0; from < size(); ++from)
      for (int to = 0; to < size(); ++to) {
        const int64_t sent = shared_->slots[from].parts[to],
                      expected_count = shared_->slots[to].expected[from];
        if (sent != expected_count)
          fail(ExitCode::internal, "group \"{}\", {}: rank {} sends {} elements to rank {}, which expects {}",
               name(), to_string(info_), from, sent, to, expected_count);
      }
  }
  void part_ways() { shared_->barrier(rank(), info_); }

  void do_all_reduce(Tensor t, ReduceOp op) override {
    meet(t.data);
    const int64_t width = dtype_size(t.dtype);
    // This rank sums its part of all tensors into its own, where no other rank reads.
    const PartRange mine = part_of(t.elements(), size(), rank());
    reduce_part(static_cast<char*>(t.data) + mine.begin * width, mine.begin, mine.count, t.dtype, op);
    part_ways();
    for (int r = 0; r < size(); ++r) {
      const PartRange part = part_of(t.elements(), size(), r);
      if (r != rank() && part.count > 0)
        std::memcpy(static_cast<char*>(t.data) + part.begin * width,
                    shared_->slots[r].data + part.begin * width, static_cast<size_t>(part.count * width));
    }
    part_ways();
  }

  void do_reduce_scatter(Tensor out, Tensor in) override {
    meet(in.data);
    reduce_part(out.data, rank() * out.elements(), out.elements(), in.dtype, ReduceOp::sum);
    part_ways();
  }

  void reduce_part(void* out, int64_t begin, int64_t count, DType dtype, ReduceOp op) {
    std::vector<const void*> sources;
    for (const Slot& s : shared_->slots) sources.push_back(s.data + begin * dtype_size(dtype));
    if (count > 0) reduce_ordered(out, sources.data(), size(), count, dtype, op);
  }

  void do_all_gather(Tensor out, Tensor in) override {
    meet(in.data);
    for (int r = 0; r < size(); ++r) {
      char* to = static_cast<char*>(out.data) + r * in.bytes();
      const char* from = shared_->slots[r].data;
      if (to != from && in.bytes() > 0) std::memcpy(to, from, static_cast<size_t>(in.bytes()));
    }
    part_ways();
  }

  void do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                       const std::vector<int64_t>& in_elements) override {
    meet(in.data, in_elements, out_elements);
    const int64_t width = dtype_size(in.dtype);
    char* to = static_cast<char*>(out.data);
    for (int r = 0; r < size(); ++r) {
      const std::vector<int64_t>& parts = shared_->slots[r].parts;
      int64_t before = 0;
      for (int j = 0; j < rank(); ++j) before += parts[j];
      const int64_t bytes = out_elements[r] * width;
      if (bytes > 0) std::memcpy(to, shared_->slots[r].data + before * width, static_cast<size_t>(bytes));
      to += bytes;
    }
    part_ways();
  }

  void do_broadcast(Tensor t, int root) override {
    meet(t.data);
    if (rank() != root && t.bytes() > 0)
      std::memcpy(t.data, shared_->slots[root].data, static_cast<size_t>(t.bytes()));
    part_ways();
  }

  void do_reduce(Tensor t, int root) override {
    meet(t.data);
    if (rank() == root) reduce_part(t.data, 0, t.elements(), t.dtype, ReduceOp::sum);
    part_ways();
  }

  void do_barrier() override {
    meet(nullptr);
    part_ways();  // no rank publishes the next call while another still compares this one
  }

  void do_send(Tensor t, int peer) override {
    const char* p = static_cast<const char*>(t.data);
    std::lock_guard lock(shared_->mutex);
    shared_->mail[{rank(), peer}].emplace_back(p, p + t.bytes());
    shared_->changed.notify_all();
  }

  void do_recv(Tensor t, int peer) override {
    Shared& s = *shared_;
    std::unique_lock lock(s.mutex);
    auto& box = s.mail[{peer, rank()}];
    const bool in_time =
        s.changed.wait_until(lock, s.deadline(), [&] { return !box.empty() || !s.broken.empty(); });
    if (box.empty()) {
      if (in_time) s.fail_broken();
      fail(ExitCode::rank_lost, "group \"{}\": rank {} waited {:g} s for a message from rank {}", name(),
           rank(), s.options.timeout_seconds, peer);
    }
    const std::vector<char> message = std::move(box.front());
    box.erase(box.begin());
    if (static_cast<int64_t>(message.size()) != t.bytes())
      fail(ExitCode::internal, "group \"{}\": rank {} sent {} bytes to rank {}, which expects {}", name(),
           peer, message.size(), rank(), t.bytes());
    if (t.bytes() > 0) std::memcpy(t.data, message.data(), message.size());
  }

  void do_send_recv(Tensor out, int to, Tensor in, int from) override {
    do_send(out, to);
    do_recv(in, from);
  }

  std::shared_ptr<Shared> shared_;
  CollectiveInfo info_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size, std::string name, AxisSet axes,
                                                                 InProcessOptions options) {
  LT_CHECK(size >= 1, "expected a group of at least 1 rank, got {}", size);
  auto shared = std::make_shared<Shared>(size, std::move(name), options);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int r = 0; r < size; ++r) group.push_back(std::make_unique<InProcessGroup>(shared, r, axes));
  return group;
}

}  // namespace ltrain
