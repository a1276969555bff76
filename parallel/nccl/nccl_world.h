// All NCCL communicators of a process, and the thread that watches them.
//
// The world checks every communicator for errors and every call for its age, including a call that blocks on
// the host. After a failure or a missed deadline it stores the reason for later calls, and then aborts all
// communicators at once, with no lock held: a kernel of one may wait behind a kernel of another.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "parallel/comm/call_description.h"
#include "parallel/comm/key_value_store.h"
#include "parallel/nccl/communicator_nccl.h"

namespace ltrain {

class NcclWorld {
 public:
  /// Watched state of a communicator. Its members are accessed with the world's lock held.
  struct Watched {
    nccl::Comm comm = nullptr;  ///< null after an abort
    std::string name;
    int rank = 0;
    struct Call {
      CollectiveInfo info;
      Event end;
      SteadyTime deadline;
      /// number of captured calls that go together, the last one in `info`; 0: a single call
      size_t recorded = 0;
      bool counted = true;  ///< complete() is called for it
    };
    std::optional<Call> calling;  ///< blocks on the host; its event is not set yet
    std::deque<Call> calls;       ///< enqueued, and not known to be done
    std::function<void()> complete;
  };
  using Body = std::function<nccl::Status(nccl::Library&, nccl::Comm)>;

  NcclWorld(std::shared_ptr<nccl::Library> library, int rank, const NcclOptions& options);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;

  void connect(KeyValueStore& store, const std::string& key, int size);
  /// Returns null for a negative colour.
  std::shared_ptr<Watched> split(int color, int key, const std::string& name, int group_rank,
                                 int most_channels);
  /// Enqueues the work of `body` on `s`, and watches it from now on. `counted`: it is one of the group's
  /// calls.
  void enqueue(Watched& group, const CollectiveInfo& info, Stream& s, const Body& body, bool counted = true);
  /// Watches `calls` captured calls that were enqueued again on `s`.
  void enqueue_recorded(Watched& group, const CollectiveInfo& last, Stream& s, size_t calls);
  /// Ends the use of the group: it is destroyed together with the others, or aborted after a failure.
  void leave(Watched& group);
  void watch_completions(Watched& group, std::function<void()> complete);
  void check() const;  ///< throws the failure, if any
  /// Reports another failure of this rank: calls end, here and then on the others.
  void abort(const std::string& why);

  int rank() const { return rank_; }
  const NcclOptions& options() const { return options_; }

 private:
  struct Making;
  /// Runs a call that waits for the other ranks on its own thread, since it may never return.
  nccl::Comm make(const std::string& what,
                  const std::function<nccl::Status(nccl::Library&, nccl::Comm&)>& call);
  void watch();
  std::string what_is_wrong(Watched& w);
  void throw_failure(const std::string& group) const;  // with the lock held
  void note_failure(const std::string& why);           // with the lock held
  void abort_all(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<nccl::Library> library_;
  const NcclOptions options_;
  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Watched> own_;
  std::vector<std::shared_ptr<Watched>> watched_;
  std::string failure_;
  bool aborted_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace ltrain
