#include "parallel/nccl/nccl_world.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <utility>

namespace ltrain {
namespace {

using nccl::Status;

constexpr auto kPoll = std::chrono::milliseconds(20);  // interval of checks of errors and ages

}  // namespace

/// Outlives the world if its call does not return.
struct NcclWorld::Making {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Status status;
  nccl::Comm comm = nullptr;  // NCCL may set it before the call returns
};

NcclWorld::NcclWorld(std::shared_ptr<nccl::Library> library, int rank, const NcclOptions& options)
    : library_(std::move(library)), options_(options), rank_(rank), thread_([this] { watch(); }) {}

NcclWorld::~NcclWorld() {
  if (own_) leave(*own_);
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWorld::connect(KeyValueStore& store, const std::string& key, int size) {
  const std::string where = fmt::format("{}/id", key);
  nccl::UniqueId id;
  if (rank_ == 0) {
    id = library_->unique_id();
    store.set(where, std::string(id.begin(), id.end()));
  } else {
    const std::string text = store.get(where, options_.connect_timeout_seconds);
    LT_CHECK(text.size() == id.size(), "expected an NCCL address of {} bytes, got {}", id.size(),
             text.size());
    std::copy(text.begin(), text.end(), id.begin());
  }
  auto own = std::make_shared<Watched>();
  own->name = "world of NCCL";
  own->rank = rank_;
  own->comm =
      make(fmt::format("rank {} of {} connects to the others", rank_, size),
           [=, rank = rank_](nccl::Library& n, nccl::Comm& comm) { return n.init(comm, size, id, rank); });
  std::lock_guard lock(mutex_);
  own_ = own;
  watched_.push_back(own);
}

std::shared_ptr<NcclWorld::Watched> NcclWorld::split(int color, int key, const std::string& name,
                                                     int group_rank, int most_channels) {
  nccl::Comm parent = nullptr;
  {
    std::lock_guard lock(mutex_);
    throw_failure(name);
    parent = own_->comm;
  }
  const nccl::Comm child = make(
      fmt::format("rank {} makes the group \"{}\" with the others", rank_, name),
      [=](nccl::Library& n, nccl::Comm& comm) { return n.split(comm, parent, color, key, most_channels); });
  if (color < 0) return nullptr;
  LT_CHECK(child, "expected a communicator of the group \"{}\" from NCCL, got none", name);
  auto group = std::make_shared<Watched>();
  group->comm = child;
  group->name = name;
  group->rank = group_rank;
  std::lock_guard lock(mutex_);
  watched_.push_back(group);
  return group;
}

nccl::Comm NcclWorld::make(const std::string& what,
                           const std::function<Status(nccl::Library&, nccl::Comm&)>& call) {
  auto making = std::make_shared<Making>();
  const SteadyTime deadline = after(options_.connect_timeout_seconds);
  std::thread thread([making, call, library = library_, on_gpu = library_->on_this_gpu()] {
    on_gpu();
    Status status = call(*library, making->comm);
    std::lock_guard lock(making->mutex);
    making->status = std::move(status);
    making->done = true;
    making->changed.notify_all();
  });
  const auto done_within = [&](auto time) {
    std::unique_lock lock(making->mutex);
    return making->changed.wait_for(lock, time, [&] { return making->done; });
  };
  std::string why;
  while (!done_within(kPoll) && why.empty()) {
    std::lock_guard lock(mutex_);
    if (!failure_.empty())
      why = failure_;
    else if (steady_now() >= deadline)
      why = fmt::format(
          "{}: not done in {:g} s: a rank has not come, or its network is not reached; "
          "LTRAIN_JOIN_TIMEOUT is for jobs that take longer",
          what, options_.connect_timeout_seconds);
  }
  if (!why.empty()) {
    {
      std::lock_guard lock(mutex_);
      note_failure(why);  // ends work that is aborted with the parent
    }
    changed_.notify_all();
    if (const nccl::Comm begun = std::atomic_ref(making->comm).load()) library_->abort({begun});
    if (done_within(std::chrono::seconds(5)))
      thread.join();
    else
      thread.detach();
    throw Error(ExitCode::rank_lost, why);
  }
  thread.join();
  std::string failure;
  {
    std::lock_guard lock(mutex_);
    if (making->status.failed) note_failure(fmt::format("{}: {}", what, making->status.text));
    failure = failure_;
  }
  if (failure.empty()) return making->comm;
  changed_.notify_all();
  if (making->comm) library_->abort({making->comm});
  throw Error(ExitCode::rank_lost, failure);
}

void NcclWorld::enqueue(Watched& group, const CollectiveInfo& info, Stream& s, const Body& body,
                        bool counted) {
  const SteadyTime deadline = after(options_.timeout_seconds);
  nccl::Comm comm = nullptr;
  {
    std::lock_guard lock(mutex_);
    throw_failure(group.name);
    comm = group.comm;
    group.calling = {info, {}, deadline, 0, counted};
  }
  const Status status = body(*library_, comm);
  std::unique_lock lock(mutex_);
  group.calling.reset();
  if (status.failed)
    note_failure(fmt::format("group \"{}\": rank {} enqueues {}: {}", group.name, group.rank, to_string(info),
                             status.text));
  if (!failure_.empty()) {
    changed_.notify_all();
    throw Error(ExitCode::rank_lost, failure_);
  }
  if (!s.recording()) group.calls.push_back({info, s.record(), deadline, 0, counted});
}

void NcclWorld::enqueue_recorded(Watched& group, const CollectiveInfo& last, Stream& s, size_t calls) {
  std::lock_guard lock(mutex_);
  throw_failure(group.name);
  group.calls.push_back({last, s.record(), after(options_.timeout_seconds), calls, true});
}

void NcclWorld::watch_completions(Watched& group, std::function<void()> complete) {
  std::lock_guard lock(mutex_);
  group.complete = std::move(complete);
}

void NcclWorld::throw_failure(const std::string& group) const {
  if (!failure_.empty())
    fail(ExitCode::rank_lost, "group \"{}\": after an earlier failure: {}", group, failure_);
}

void NcclWorld::check() const {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error(ExitCode::rank_lost, failure_);
}

void NcclWorld::note_failure(const std::string& why) {
  if (failure_.empty()) failure_ = why;
}

void NcclWorld::abort(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    note_failure(why);
  }
  changed_.notify_all();
}

void NcclWorld::leave(Watched& group) {
  nccl::Comm comm = nullptr;
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(watched_, [&](const auto& w) { return w.get() == &group; });
    group.complete = nullptr;
    if (std::uncaught_exceptions() > 0 && failure_.empty())
      failure_ = fmt::format("rank {} fails, and leaves the group \"{}\"", rank_, group.name);
    std::swap(comm, group.comm);
    failed = !failure_.empty();
    if (comm && failed && !aborted_) {  // the thread aborts it together with the others
      auto last = std::make_shared<Watched>();
      last->comm = comm;
      last->name = group.name;
      watched_.push_back(last);
      comm = nullptr;
    }
  }
  changed_.notify_all();
  if (!comm) return;
  if (failed)
    library_->abort({comm});
  else
    library_->destroy(comm);
}

void NcclWorld::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!failure_.empty() && !aborted_)
      abort_all(lock);
    else if (stopping_)
      return;
    changed_.wait_for(lock, kPoll, [&] { return stopping_ || (!failure_.empty() && !aborted_); });
    for (size_t i = 0; failure_.empty() && i < watched_.size(); ++i) {
      Watched& w = *watched_[i];
      const auto describe = [](const Watched::Call& call) {
        const std::string last = to_string(call.info);
        return call.recorded ? fmt::format("{} recorded calls up to {}", call.recorded, last) : last;
      };
      const std::string why = what_is_wrong(w);
      if (why.empty()) continue;
      const std::string in = !w.calls.empty() ? " in " + describe(w.calls.front())
                             : w.calling      ? " in " + describe(*w.calling)
                                              : "";
      failure_ = fmt::format("group \"{}\": rank {}{}: {}", w.name, w.rank, in, why);
    }
  }
}

std::string NcclWorld::what_is_wrong(Watched& w) {
  try {
    while (!w.calls.empty() && w.calls.front().end.happened()) {
      const size_t done = w.calls.front().counted ? std::max<size_t>(1, w.calls.front().recorded) : 0;
      w.calls.pop_front();
      for (size_t i = 0; w.complete && i < done; ++i) w.complete();
    }
  } catch (const std::exception& e) {
    return e.what();
  }
  if (const Status state = library_->state(w.comm); state.failed) return state.text;
  const Watched::Call* oldest = !w.calls.empty() ? &w.calls.front() : w.calling ? &*w.calling : nullptr;
  if (oldest && steady_now() > oldest->deadline)
    return fmt::format("waited {:g} s for the others", options_.timeout_seconds);
  return "";
}

/// Aborting ends kernels that wait for a lost rank, and with them every wait for the stream.
void NcclWorld::abort_all(std::unique_lock<std::mutex>& lock) {
  std::vector<nccl::Comm> comms;
  for (const auto& w : watched_)
    if (nccl::Comm comm = std::exchange(w->comm, nullptr)) comms.push_back(comm);
  lock.unlock();
  library_->abort(comms);
  lock.lock();
  aborted_ = true;
}

}  // namespace ltrain
