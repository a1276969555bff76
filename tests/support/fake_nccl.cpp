#include "tests/support/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace ltrain::test {

using nccl::Comm;
using nccl::Status;
using nccl::UniqueId;

namespace {

struct FakeComm {
  std::string id;            // of the group, the same on its ranks
  int rank = -1, size = 0;   // -1: a split that is not done
  std::vector<int> members;  // world ranks
  int splits = 0;
  bool aborted = false;
  FakeComm* child = nullptr;  // of a split that is not done
  int child_color = -1;
};

}  // namespace

struct FakeNetwork::State {
  std::mutex mutex;
  std::condition_variable changed;
  int ids = 0, alive = 0;
  std::map<std::string, std::map<int, int>> joined;  // by group: rank of it -> world rank
  struct Split {
    int color, key, world;
  };
  std::map<std::string, std::map<int, Split>> splits;  // by split: rank of the parent
  std::map<std::string, std::deque<std::vector<char>>> messages;
  std::set<int> lost;
};

namespace {

using State = FakeNetwork::State;

class FakeLibrary final : public nccl::Library {
 public:
  explicit FakeLibrary(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::string version() const override { return "0.0.0"; }
  UniqueId unique_id() override {
    std::lock_guard lock(state_->mutex);
    UniqueId id{};
    id[0] = static_cast<char>('a' + state_->ids++);
    return id;
  }

  Status init(Comm& comm, int size, const UniqueId& id, int rank) override {
    std::lock_guard lock(state_->mutex);
    auto* c = new FakeComm{std::string(id.data()), rank, size, {}, 0, false, nullptr, -1};
    world_ = rank;
    state_->joined[c->id][rank] = rank;
    for (int r = 0; r < size; ++r) c->members.push_back(r);
    comm = c, ++state_->alive;
    return {Status::in_progress, {}};
  }

  Status split(Comm& child, Comm parent, int color, int key) override {
    std::lock_guard lock(state_->mutex);
    FakeComm& p = of(parent);
    p.child = new FakeComm;
    p.child->id = p.id + "/" + std::to_string(p.splits++);
    p.child_color = color;
    state_->splits[p.child->id][p.rank] = {color, key, world_};
    child = nullptr;
    if (color >= 0)
      child = p.child;
    else
      abandoned_.emplace_back(p.child);
    return {Status::in_progress, {}};
  }

  Status state(Comm comm) override {
    std::lock_guard lock(state_->mutex);
    FakeComm& c = of(comm);
    for (int world : c.members)
      if (world != world_ && state_->lost.count(world)) return {Status::failed, "remote process exited"};
    if (c.child) {
      const auto& all = state_->splits[c.child->id];
      if (static_cast<int>(all.size()) < c.size) return {Status::in_progress, {}};
      std::vector<std::pair<std::pair<int, int>, int>> members;  // (key, parent's rank), world rank
      for (const auto& [rank, s] : all)
        if (s.color == c.child_color) members.push_back({{s.key, rank}, s.world});
      std::sort(members.begin(), members.end());
      c.child->size = static_cast<int>(members.size());
      for (size_t i = 0; i < members.size(); ++i) {
        c.child->members.push_back(members[i].second);
        if (members[i].second == world_) c.child->rank = static_cast<int>(i);
      }
      c.child->id += "/" + std::to_string(c.child_color);
      state_->alive += c.child_color >= 0;
      c.child = nullptr;
    }
    const bool world = c.id.find('/') == std::string::npos;
    if (world && static_cast<int>(state_->joined[c.id].size()) < c.size) return {Status::in_progress, {}};
    return {};
  }

  void abort(Comm comm) override {
    std::lock_guard lock(state_->mutex);
    of(comm).aborted = true;
    --state_->alive;
    abandoned_.emplace_back(&of(comm));  // what is enqueued still looks at it
    state_->changed.notify_all();
  }
  void destroy(Comm comm) override {
    std::lock_guard lock(state_->mutex);
    --state_->alive;
    abandoned_.emplace_back(&of(comm));
  }

  Status all_reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, ReduceOp op) override {
    return enqueue(s, [=, this, &c = of(comm)] {
      const auto all = from_all(c, data, n * dtype_size(t));
      if (!all.empty()) sum(data, all, 0, n, t, op);
    });
  }
  Status all_gather(Comm comm, Stream& s, void* out, const void* in, int64_t n, DType t) override {
    return enqueue(s, [=, this, &c = of(comm)] {
      const auto all = from_all(c, in, n * dtype_size(t));
      for (size_t r = 0; r < all.size(); ++r)
        std::memcpy(static_cast<char*>(out) + r * all[r].size(), all[r].data(), all[r].size());
    });
  }
  Status reduce_scatter(Comm comm, Stream& s, void* out, const void* in, int64_t n, DType t) override {
    return enqueue(s, [=, this, &c = of(comm)] {
      const auto all = from_all(c, in, n * c.size * dtype_size(t));
      if (!all.empty()) sum(out, all, c.rank * n, n, t, ReduceOp::sum);
    });
  }
  Status broadcast(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) override {
    return enqueue(s, [=, this, &c = of(comm)] {
      const auto all = from_all(c, data, n * dtype_size(t));
      if (!all.empty()) std::memcpy(data, all[root].data(), all[root].size());
    });
  }
  Status reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) override {
    return enqueue(s, [=, this, &c = of(comm)] {
      const auto all = from_all(c, data, n * dtype_size(t));
      if (!all.empty() && c.rank == root) sum(data, all, 0, n, t, ReduceOp::sum);
    });
  }
  Status send(Comm comm, Stream& s, const void* data, int64_t n, DType t, int peer) override {
    return enqueue(
        s, [=, this, &c = of(comm)] { put(c, peer, data, n * dtype_size(t)); }, false);
  }
  Status recv(Comm comm, Stream& s, void* data, int64_t n, DType t, int peer) override {
    return enqueue(s, [=, this, &c = of(comm)] {
      std::vector<char> message;
      if (!get(c, peer, message)) return;
      LT_CHECK(static_cast<int64_t>(message.size()) == n * dtype_size(t), "a message of another size");
      std::memcpy(data, message.data(), message.size());
    });
  }
  Status group_start() override {
    grouped_ = true;
    return {};
  }
  Status group_end() override {
    grouped_ = false;
    for (auto* list : {&first_, &second_}) {
      for (auto& work : *list) stream_->launch(std::move(work));
      list->clear();
    }
    return {Status::in_progress, {}};
  }

 private:
  static FakeComm& of(Comm c) { return *static_cast<FakeComm*>(c); }

  Status enqueue(Stream& s, std::function<void()> work, bool waits = true) {
    stream_ = &s;
    if (grouped_)
      (waits ? second_ : first_).push_back(std::move(work));
    else
      s.launch(std::move(work));
    return {grouped_ ? Status::success : Status::in_progress, {}};
  }

  static std::string lane(const FakeComm& c, int from, int to) {
    return fmt::format("{} {} {}", c.id, from, to);
  }
  void put(const FakeComm& c, int to, const void* data, int64_t bytes) {
    const char* from = static_cast<const char*>(data);
    std::lock_guard lock(state_->mutex);
    state_->messages[lane(c, c.rank, to)].emplace_back(from, from + bytes);
    state_->changed.notify_all();
  }
  /// False when this rank has aborted: what a kernel that is ended leaves is undefined.
  bool get(const FakeComm& c, int from, std::vector<char>& message) {
    std::unique_lock lock(state_->mutex);
    auto& queue = state_->messages[lane(c, from, c.rank)];
    state_->changed.wait(lock, [&] { return !queue.empty() || c.aborted; });
    if (queue.empty()) return false;
    message = std::move(queue.front());
    queue.pop_front();
    return true;
  }
  /// By rank; empty when this rank has aborted.
  std::vector<std::vector<char>> from_all(const FakeComm& c, const void* data, int64_t bytes) {
    std::vector<std::vector<char>> all(c.size);
    for (int r = 0; r < c.size; ++r) put(c, r, data, bytes);
    for (int r = 0; r < c.size; ++r)
      if (!get(c, r, all[r])) return {};
    return all;
  }
  static void sum(void* out, const std::vector<std::vector<char>>& all, int64_t first, int64_t n, DType t,
                  ReduceOp op) {
    std::vector<const void*> sources;
    for (const auto& a : all) sources.push_back(a.data() + first * dtype_size(t));
    reduce_ordered(out, sources.data(), static_cast<int>(sources.size()), n, t, op);
  }

  std::shared_ptr<State> state_;
  int world_ = -1;
  bool grouped_ = false;
  Stream* stream_ = nullptr;
  std::vector<std::function<void()>> first_, second_;  // of a group: sends, and what waits
  std::vector<std::unique_ptr<FakeComm>> abandoned_;
};

}  // namespace

FakeNetwork::FakeNetwork() : state_(std::make_shared<State>()) {}
FakeNetwork::~FakeNetwork() = default;
std::shared_ptr<nccl::Library> FakeNetwork::library() { return std::make_shared<FakeLibrary>(state_); }
void FakeNetwork::lose(int world_rank) {
  std::lock_guard lock(state_->mutex);
  state_->lost.insert(world_rank);
}
int FakeNetwork::alive() const {
  std::lock_guard lock(state_->mutex);
  return state_->alive;
}

}  // namespace ltrain::test
