#include "parallel/nccl/communicator_nccl.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/base/deadline.h"

namespace ltrain {
namespace {

using nccl::Status;

constexpr auto kPoll = std::chrono::milliseconds(20);  // of errors and ages
constexpr auto kSettle = std::chrono::microseconds(20);

}  // namespace

/// All communicators of a process, and the thread that watches them.
class NcclWorld {
 public:
  /// What the thread knows of a communicator.
  struct Watched {
    nccl::Comm comm = nullptr;
    std::string name;
    int rank = 0;
    struct Call {
      CollectiveInfo info;
      Event end;
      SteadyTime deadline;
      size_t recorded = 0;  // calls that go together, of which `info` is the last; 0: one by itself
    };
    std::deque<Call> calls;  // enqueued and not known to be done
    std::function<void()> complete;
  };

  NcclWorld(std::shared_ptr<nccl::Library> library, int rank, const NcclOptions& options)
      : library(std::move(library)), options(options), rank(rank) {}

  ~NcclWorld() {
    {
      std::lock_guard lock(mutex);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    if (own_) leave(*own_);
  }

  void connect(KeyValueStore& store, const std::string& key, int size) {
    const std::string where = fmt::format("{}/id", key);
    nccl::UniqueId id;
    if (rank == 0) {
      id = library->unique_id();
      store.set(where, std::string(id.begin(), id.end()));
    } else {
      const std::string text = store.get(where, options.connect_timeout_seconds);
      LT_CHECK(text.size() == id.size(), "an NCCL address of {} bytes", text.size());
      std::copy(text.begin(), text.end(), id.begin());
    }
    own_ = std::make_shared<Watched>();
    own_->name = "world of NCCL";
    own_->rank = rank;
    std::unique_lock lock(mutex);
    const Status begun = library->init(own_->comm, size, id, rank);
    settle(lock, begun, {own_->comm}, after(options.connect_timeout_seconds),
           fmt::format("rank {} of {} connects to the others", rank, size));
    watched_.push_back(own_);
    lock.unlock();
    thread_ = std::thread([this] { watch(); });
  }

  /// Null for a colour below zero.
  std::shared_ptr<Watched> split(int color, int key, const std::string& name, int group_rank) {
    std::unique_lock lock(mutex);
    throw_failure(name);
    nccl::Comm child = nullptr;
    const auto deadline = after(options.connect_timeout_seconds);
    const std::string what = fmt::format("rank {} makes the group \"{}\" with the others", rank, name);
    settle(lock, library->split(child, own_->comm, color, key), {own_->comm}, deadline, what);
    if (!child) return nullptr;
    settle(lock, {Status::in_progress, {}}, {child}, deadline, what);
    auto group = std::make_shared<Watched>();
    group->comm = child;
    group->name = name;
    group->rank = group_rank;
    watched_.push_back(group);
    return group;
  }

  /// Calls of the library, begun with the lock held, until all of `comms` are done with them.
  void settle(std::unique_lock<std::mutex>& lock, Status begun, const std::vector<nccl::Comm>& comms,
              SteadyTime deadline, const std::string& what) {
    const auto give_up = [&](const std::string& why) {
      std::vector<nccl::Comm> new_ones;  // that the thread does not know yet
      for (nccl::Comm c : comms)
        if (std::none_of(watched_.begin(), watched_.end(), [&](const auto& w) { return w->comm == c; }))
          new_ones.push_back(c);
      abort_all(fmt::format("{}: {}", what, why));
      for (nccl::Comm c : new_ones)
        if (c) library->abort(c);
      if (watched_.empty()) own_->comm = nullptr;
      throw Error(ExitCode::rank_lost, failure_);
    };
    if (begun.code == Status::failed) give_up(begun.text);
    for (nccl::Comm comm : comms) {
      Status state = begun.code == Status::success ? begun : library->state(comm);
      while (state.code == Status::in_progress) {
        if (steady_now() >= deadline)
          give_up("not done in time: a rank has not come, or its network is not reached");
        lock.unlock();
        std::this_thread::sleep_for(kSettle);
        lock.lock();
        if (!failure_.empty()) throw Error(ExitCode::rank_lost, failure_);
        state = library->state(comm);
      }
      if (state.code == Status::failed) give_up(state.text);
    }
  }

  /// With the lock held.
  void throw_failure(const std::string& group) const {
    if (!failure_.empty())
      fail(ExitCode::rank_lost, "group \"{}\": after an earlier failure: {}", group, failure_);
  }
  void check() const {
    std::lock_guard lock(mutex);
    if (!failure_.empty()) throw Error(ExitCode::rank_lost, failure_);
  }

  /// The group leaves: with the others, or at once where something has failed.
  void leave(Watched& group) {
    std::lock_guard lock(mutex);
    watched_.erase(
        std::remove_if(watched_.begin(), watched_.end(), [&](const auto& w) { return w.get() == &group; }),
        watched_.end());
    if (!group.comm) return;  // aborted
    if (std::uncaught_exceptions() > 0)
      library->abort(group.comm);
    else
      library->destroy(group.comm);
    group.comm = nullptr;
  }

  const std::shared_ptr<nccl::Library> library;
  const NcclOptions options;
  const int rank;
  mutable std::mutex mutex;  // of the library's calls, and of all below

 private:
  void watch() {
    std::unique_lock lock(mutex);
    while (!stopping_) {
      changed_.wait_for(lock, kPoll);
      if (!failure_.empty()) continue;
      for (const auto& w : watched_) {
        const std::string why = what_is_wrong(*w);
        if (why.empty()) continue;
        const std::string in = w->calls.empty() ? "" : fmt::format(" in {}", where(w->calls.front()));
        abort_all(fmt::format("group \"{}\": rank {}{}: {}", w->name, w->rank, in, why));
        break;
      }
    }
  }

  static std::string where(const Watched::Call& call) {
    const std::string last = to_string(call.info);
    return call.recorded ? fmt::format("{} recorded calls up to {}", call.recorded, last) : last;
  }

  std::string what_is_wrong(Watched& w) {
    try {
      while (!w.calls.empty() && w.calls.front().end.happened()) {
        const size_t done = std::max<size_t>(1, w.calls.front().recorded);
        w.calls.pop_front();
        for (size_t i = 0; w.complete && i < done; ++i) w.complete();
      }
    } catch (const std::exception& e) {
      return e.what();
    }
    if (const Status state = library->state(w.comm); state.code == Status::failed) return state.text;
    if (!w.calls.empty() && steady_now() > w.calls.front().deadline)
      return fmt::format("waited {:g} s for the others", options.timeout_seconds);
    return "";
  }

  /// Kernels that wait for a rank that does not come end, and with them whoever waits for the stream.
  void abort_all(const std::string& why) {
    if (!failure_.empty()) return;
    failure_ = why;
    for (const auto& w : watched_) {
      library->abort(w->comm);
      w->comm = nullptr;
    }
  }

  std::shared_ptr<Watched> own_;
  std::vector<std::shared_ptr<Watched>> watched_;
  std::string failure_;
  bool stopping_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

namespace {

class NcclGroup final : public Communicator {
 public:
  NcclGroup(std::shared_ptr<NcclWorld> world, std::shared_ptr<NcclWorld::Watched> watched, int rank, int size,
            std::string name, AxisSet axes)
      : Communicator(rank, size, std::move(name), axes),
        world_(std::move(world)),
        watched_(std::move(watched)) {
    std::lock_guard lock(world_->mutex);
    watched_->complete = [this] { complete(); };
  }
  ~NcclGroup() override { world_->leave(*watched_); }

  std::unique_ptr<Communicator> split(int, int, std::string name, AxisSet) override {
    fail(ExitCode::internal, "group \"{}\": groups of NCCL are split from the world (\"{}\" is not)",
         Communicator::name(), name);
  }
  void check() const override { world_->check(); }

 private:
  bool enqueues() const override { return true; }
  void check_same(const CollectiveInfo& info) override { info_ = info; }

  /// Enqueues what `body(library, comm, stream)` says, and has it watched.
  template <class F>
  void call(F&& body) {
    Stream& s = *stream();
    if (world_->options.wait_before_calls) s.synchronize();
    std::unique_lock lock(world_->mutex);
    world_->throw_failure(name());
    const auto deadline = after(world_->options.timeout_seconds);
    world_->settle(lock, body(*world_->library, watched_->comm, s), {watched_->comm}, deadline,
                   fmt::format("group \"{}\": rank {} enqueues {}", name(), rank(), to_string(info_)));
    if (!s.recording()) watched_->calls.push_back({info_, s.record(), deadline});
  }
  void watch_recorded(Stream& s, const CollectiveInfo& last, size_t calls) override {
    std::lock_guard lock(world_->mutex);
    world_->throw_failure(name());
    watched_->calls.push_back({last, s.record(), after(world_->options.timeout_seconds), calls});
  }

  void do_all_reduce(Tensor t, ReduceOp op) override {
    call([&](auto& n, auto c, auto& s) { return n.all_reduce(c, s, t.data, t.elements(), t.dtype, op); });
  }
  void do_all_gather(Tensor out, Tensor in) override {
    call([&](auto& n, auto c, auto& s) {
      return n.all_gather(c, s, out.data, in.data, in.elements(), in.dtype);
    });
  }
  void do_reduce_scatter(Tensor out, Tensor in) override {
    call([&](auto& n, auto c, auto& s) {
      return n.reduce_scatter(c, s, out.data, in.data, out.elements(), in.dtype);
    });
  }
  void do_broadcast(Tensor t, int root) override {
    call([&](auto& n, auto c, auto& s) { return n.broadcast(c, s, t.data, t.elements(), t.dtype, root); });
  }
  void do_reduce(Tensor t, int root) override {
    call([&](auto& n, auto c, auto& s) { return n.reduce(c, s, t.data, t.elements(), t.dtype, root); });
  }
  void do_send(Tensor t, int peer) override {
    call([&](auto& n, auto c, auto& s) { return n.send(c, s, t.data, t.elements(), t.dtype, peer); });
  }
  void do_recv(Tensor t, int peer) override {
    call([&](auto& n, auto c, auto& s) { return n.recv(c, s, t.data, t.elements(), t.dtype, peer); });
  }
  void do_send_recv(Tensor out, int to, Tensor in, int from) override {
    call([&](auto& n, auto c, auto& s) {
      return together(n, [&](auto&& add) {
        add(n.send(c, s, out.data, out.elements(), out.dtype, to));
        add(n.recv(c, s, in.data, in.elements(), in.dtype, from));
      });
    });
  }
  void do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                       const std::vector<int64_t>& in_elements) override {
    char* to = static_cast<char*>(out.data);
    const char* from = static_cast<const char*>(in.data);
    const int64_t width = dtype_size(in.dtype);
    call([&](auto& n, auto c, auto& s) {
      return together(n, [&](auto&& add) {
        for (int r = 0; r < size(); ++r) {
          // NCCL waits for a message of no elements as for any other: both sides leave it out.
          if (in_elements[r] > 0 && r == rank()) s.copy(to, from, in_elements[r] * width);
          if (in_elements[r] > 0 && r != rank()) add(n.send(c, s, from, in_elements[r], in.dtype, r));
          if (out_elements[r] > 0 && r != rank()) add(n.recv(c, s, to, out_elements[r], in.dtype, r));
          from += in_elements[r] * width;
          to += out_elements[r] * width;
        }
      });
    });
  }
  void do_barrier() override {
    fail(ExitCode::internal, "group \"{}\": a barrier of GPUs has no data to wait for; agree on the host",
         name());
  }

  /// The first failure of calls that go together, else what ends them.
  template <class F>
  static Status together(nccl::Library& n, F&& calls) {
    Status failed = n.group_start();
    if (failed.code == Status::failed) return failed;
    calls([&](Status s) {
      if (s.code == Status::failed && failed.code != Status::failed) failed = std::move(s);
    });
    Status end = n.group_end();
    return failed.code == Status::failed ? failed : end;
  }

  std::shared_ptr<NcclWorld> world_;
  std::shared_ptr<NcclWorld::Watched> watched_;
  CollectiveInfo info_;
};

}  // namespace

std::shared_ptr<NcclWorld> make_nccl_world(std::shared_ptr<nccl::Library> library, KeyValueStore& store,
                                           const std::string& key, int rank, int size,
                                           const NcclOptions& options) {
  auto world = std::make_shared<NcclWorld>(std::move(library), rank, options);
  world->connect(store, key, size);
  return world;
}

std::unique_ptr<Communicator> make_nccl_group(std::shared_ptr<NcclWorld> world, const std::vector<int>& ranks,
                                              std::string name, AxisSet axes) {
  const auto here = std::find(ranks.begin(), ranks.end(), world->rank);
  LT_CHECK(ranks.empty() || here != ranks.end(), "rank {} makes the group \"{}\" of others", world->rank,
           name);
  const int size = static_cast<int>(ranks.size()), place = static_cast<int>(here - ranks.begin());
  auto watched =
      world->split(size > 1 ? *std::min_element(ranks.begin(), ranks.end()) : -1, place, name, place);
  if (size == 0) return nullptr;
  if (size == 1) return make_single_group(std::move(name), axes);
  return std::make_unique<NcclGroup>(std::move(world), std::move(watched), place, size, std::move(name),
                                     axes);
}

}  // namespace ltrain
