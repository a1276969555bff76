#include "tests/support/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace ltrain::test {

using nccl::Comm;
using nccl::Status;
using nccl::UniqueId;

namespace {

struct FakeComm {
  std::string id;  // id of the group, the same on its ranks
  int rank = -1, size = 0;
  std::vector<int> members;  // world ranks
  int splits = 0;
  bool aborted = false;
  int queued = 0;                   // work that was enqueued and has not ended
  std::set<std::string> connected;  // with whom: all, or the lane's other end
};

}  // namespace

struct FakeNetwork::State {
  std::mutex mutex;
  std::condition_variable changed;
  int ids = 0, alive = 0;
  bool closed = false;
  std::map<std::string, std::map<int, int>> joined;  // for each group: rank in it -> world rank
  struct Split {
    int color, key, world;
  };
  std::map<std::string, std::map<int, Split>> splits;  // for each split: rank of the parent
  std::map<std::string, std::set<int>> meeting;        // for each connection: ranks that have come
  std::map<std::string, std::deque<std::vector<char>>> messages;
  std::set<int> lost;
  std::map<int, std::vector<int>> channels;  // indexed by size of the group
};

namespace {

using State = FakeNetwork::State;

class FakeLibrary final : public nccl::Library {
 public:
  FakeLibrary(std::shared_ptr<State> state, bool early) : state_(std::move(state)), early_(early) {}
  std::string version() const override { return "0.0.0"; }
  UniqueId unique_id() override {
    std::lock_guard lock(state_->mutex);
    UniqueId id{};
    id[0] = static_cast<char>('a' + state_->ids++);
    return id;
  }
  std::function<void()> on_this_gpu() const override {
    return [] {};
  }

  Status init(Comm& comm, int size, const UniqueId& id, int rank) override {
    std::unique_lock lock(state_->mutex);
    const Call call(*this);
    if (call.crossed) return crossed();
    FakeComm* c = add();
    c->id = id.data(), c->rank = rank, c->size = size;
    world_ = rank;
    state_->joined[c->id][rank] = rank;
    for (int r = 0; r < size; ++r) c->members.push_back(r);
    std::atomic_ref(comm).store(handle(c)), ++state_->alive;
    return wait(lock, *c, [&] { return static_cast<int>(state_->joined[c->id].size()) == size; });
  }

  Status split(Comm& child, Comm parent, int color, int key, int most_channels) override {
    std::unique_lock lock(state_->mutex);
    const Call call(*this);
    if (call.crossed) return crossed();
    FakeComm& p = of(parent);
    const Split split{p.id + "/" + std::to_string(p.splits++), &p, color, most_channels, &child};
    state_->splits[split.id][p.rank] = {color, key, world_};
    if (early_) {
      begun_.push_back(split);
      return {};
    }
    if (Status s = wait(lock, p, [&] { return all_split(split); }); s.failed) return s;
    end_split(split);
    return {};
  }

  Status state(Comm comm) override {
    std::lock_guard lock(state_->mutex);
    for (const Split& split : begun_)
      if (split.parent == &of(comm) && all_split(split)) end_split(split);
    std::erase_if(begun_, [&](const Split& s) { return s.parent == &of(comm) && all_split(s); });
    for (int world : of(comm).members)
      if (world != world_ && state_->lost.count(world)) return {true, "remote process exited"};
    return {};
  }

  void abort(const std::vector<Comm>& comms) override {
    std::unique_lock lock(state_->mutex);
    for (const Comm comm : comms) {
      of(comm).aborted = true;
      --state_->alive;
    }
    state_->changed.notify_all();
    for (const Comm comm : comms)
      state_->changed.wait(lock, [&] { return of(comm).queued == 0 || state_->closed; });
  }
  void destroy(Comm comm) override {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return of(comm).queued == 0 || state_->closed; });
    --state_->alive;
  }

  Status all_reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, ReduceOp op) override {
    return enqueue(comm, s, kAll, [=, this, &c = of(comm)] {
      const auto all = from_all(c, data, n * dtype_size(t));
      if (!all.empty()) sum(data, all, 0, n, t, op);
    });
  }
  Status all_gather(Comm comm, Stream& s, void* out, const void* in, int64_t n, DType t) override {
    return enqueue(comm, s, kAll, [=, this, &c = of(comm)] {
      const auto all = from_all(c, in, n * dtype_size(t));
      for (size_t r = 0; r < all.size(); ++r)
        std::memcpy(static_cast<char*>(out) + r * all[r].size(), all[r].data(), all[r].size());
    });
  }
  Status reduce_scatter(Comm comm, Stream& s, void* out, const void* in, int64_t n, DType t) override {
    return enqueue(comm, s, kAll, [=, this, &c = of(comm)] {
      const auto all = from_all(c, in, n * c.size * dtype_size(t));
      if (!all.empty()) sum(out, all, c.rank * n, n, t, ReduceOp::sum);
    });
  }
  Status broadcast(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) override {
    return enqueue(comm, s, kAll, [=, this, &c = of(comm)] {
      const auto all = from_all(c, data, n * dtype_size(t));
      if (!all.empty()) std::memcpy(data, all[root].data(), all[root].size());
    });
  }
  Status reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) override {
    return enqueue(comm, s, kAll, [=, this, &c = of(comm)] {
      const auto all = from_all(c, data, n * dtype_size(t));
      if (!all.empty() && c.rank == root) sum(data, all, 0, n, t, ReduceOp::sum);
    });
  }
  Status send(Comm comm, Stream& s, const void* data, int64_t n, DType t, int peer) override {
    return enqueue(
        comm, s, lane(of(comm), of(comm).rank, peer),
        [=, this, &c = of(comm)] { put(c, peer, data, n * dtype_size(t)); }, false);
  }
  Status recv(Comm comm, Stream& s, void* data, int64_t n, DType t, int peer) override {
    return enqueue(comm, s, lane(of(comm), peer, of(comm).rank), [=, this, &c = of(comm)] {
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
    std::vector<Meeting> meetings = std::exchange(meetings_, {});
    Status status = meet(meetings);
    for (auto* list : {&first_, &second_}) {
      for (auto& work : *list)
        if (!status.failed) launch(work.comm, *work.stream, std::move(work.body));
      list->clear();
    }
    return status;
  }

 private:
  static constexpr const char* kAll = "all";
  struct Meeting {
    FakeComm* comm;
    std::string with;
  };
  struct Work {
    FakeComm* comm;
    Stream* stream;
    std::function<void()> body;
  };
  struct Split {
    std::string id;
    FakeComm* parent;
    int color, most_channels;
    Comm* child;  ///< the caller's
  };
  /// This thread is in a call, unless another one is (`crossed`). Made and ended with the lock held.
  struct Call {
    explicit Call(FakeLibrary& l) : library(l), crossed(l.calling_) {
      if (!crossed) l.calling_ = true;
    }
    ~Call() {
      if (!crossed) library.calling_ = false;
    }
    Call(const Call&) = delete;
    FakeLibrary& library;
    const bool crossed;
  };
  static Status crossed() { return {true, "a call while another thread is in one"}; }

  bool all_split(const Split& s) const {
    return static_cast<int>(state_->splits[s.id].size()) == s.parent->size;
  }
  void end_split(const Split& split) {
    if (split.color < 0) return;
    std::vector<std::pair<std::pair<int, int>, int>> members;  // (key, parent's rank), world rank
    for (const auto& [rank, s] : state_->splits[split.id])
      if (s.color == split.color) members.push_back({{s.key, rank}, s.world});
    std::sort(members.begin(), members.end());
    FakeComm* c = add();
    c->id = split.id + "/" + std::to_string(split.color);
    c->size = static_cast<int>(members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      c->members.push_back(members[i].second);
      if (members[i].second == world_) c->rank = static_cast<int>(i);
    }
    ++state_->alive;
    state_->channels[c->size].push_back(split.most_channels);
    *split.child = handle(c);
  }

  FakeComm* add() {
    comms_.push_back(std::make_unique<FakeComm>());
    return comms_.back().get();
  }
  static FakeComm& of(Comm c) { return *reinterpret_cast<FakeComm*>(c); }
  static Comm handle(FakeComm* c) { return reinterpret_cast<Comm>(c); }

  template <class Ready>
  Status wait(std::unique_lock<std::mutex>& lock, const FakeComm& c, Ready&& ready) {
    state_->changed.notify_all();
    state_->changed.wait(lock, [&] { return ready() || c.aborted || state_->closed; });
    if (ready()) return {};
    return {true, c.aborted ? "aborted" : "the network is gone"};
  }

  /// On the host, until those who are to be connected have all called.
  Status meet(const std::vector<Meeting>& meetings) {
    std::unique_lock lock(state_->mutex);
    const Call call(*this);
    if (call.crossed) return crossed();
    for (const Meeting& m : meetings)
      if (m.comm->aborted) return {true, "a call on what was aborted"};
    const auto key = [](const Meeting& m) { return m.comm->id + " " + m.with; };
    for (const Meeting& m : meetings) state_->meeting[key(m)].insert(m.comm->rank);
    for (const Meeting& m : meetings) {
      if (!m.comm->connected.insert(m.with).second) continue;
      const size_t ranks = m.with == kAll ? static_cast<size_t>(m.comm->size) : 2;
      if (Status s = wait(lock, *m.comm, [&] { return state_->meeting[key(m)].size() == ranks; }); s.failed)
        return s;
    }
    return {};
  }

  void launch(FakeComm* c, Stream& s, std::function<void()> body) {
    const auto begin = [state = state_, c] {
      std::lock_guard lock(state->mutex);
      ++c->queued;
    };
    const bool recorded = s.recording();  // runs later, any number of times
    if (!recorded) begin();
    s.launch([state = state_, c, recorded, begin, body = std::move(body)] {
      if (recorded) begin();
      body();
      std::lock_guard lock(state->mutex);
      --c->queued;
      state->changed.notify_all();
    });
  }

  Status enqueue(Comm comm, Stream& s, const std::string& with, std::function<void()> body,
                 bool waits = true) {
    FakeComm* c = &of(comm);
    if (grouped_) {
      meetings_.push_back({c, with});
      (waits ? second_ : first_).push_back({c, &s, std::move(body)});
      return {};
    }
    Status status = meet({{c, with}});
    if (!status.failed) launch(c, s, std::move(body));
    return status;
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
    state_->changed.wait(lock, [&] { return !queue.empty() || c.aborted || state_->closed; });
    if (queue.empty()) return false;
    message = std::move(queue.front());
    queue.pop_front();
    return true;
  }
  /// Results by rank; empty when this rank has aborted.
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
  const bool early_;
  int world_ = -1;
  bool calling_ = false;
  std::vector<Split> begun_;
  bool grouped_ = false;
  std::vector<Meeting> meetings_;                 // depth of a group of calls
  std::vector<Work> first_, second_;              // calls in it: sends, and receives that wait
  std::vector<std::unique_ptr<FakeComm>> comms_;  // until the end: what is enqueued looks at them
};

}  // namespace

FakeNetwork::FakeNetwork() : state_(std::make_shared<State>()) {}
FakeNetwork::~FakeNetwork() {
  std::lock_guard lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
}
std::shared_ptr<nccl::Library> FakeNetwork::open(bool early) {
  std::lock_guard lock(state_->mutex);
  libraries_.push_back(std::make_shared<FakeLibrary>(state_, early));
  return libraries_.back();
}
void FakeNetwork::lose(int world_rank) {
  std::lock_guard lock(state_->mutex);
  state_->lost.insert(world_rank);
}
int FakeNetwork::alive() const {
  std::lock_guard lock(state_->mutex);
  return state_->alive;
}

std::vector<int> FakeNetwork::channels_of(int ranks) const {
  std::lock_guard lock(state_->mutex);
  const auto at = state_->channels.find(ranks);
  return at == state_->channels.end() ? std::vector<int>() : at->second;
}

}  // namespace ltrain::test
