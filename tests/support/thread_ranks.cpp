#include "tests/support/thread_ranks.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "base/error.h"

namespace ltrain::test {

std::unique_ptr<Communicator> ThreadGroups::take(const GroupRequest& r, int world_rank) {
  std::lock_guard lock(mutex_);
  auto& group = groups_[{r.name, r.ranks}];
  if (group.empty()) group = make_in_process_group(static_cast<int>(r.ranks.size()), r.name, r.axes);
  const auto at = std::find(r.ranks.begin(), r.ranks.end(), world_rank) - r.ranks.begin();
  LT_CHECK(at < static_cast<int64_t>(group.size()), "rank {} is not in group {}", world_rank, r.name);
  return std::move(group[static_cast<size_t>(at)]);
}

GroupSet ThreadGroups::on(const Mesh& mesh, const GroupSet::Options& options) {
  return GroupSet(
      mesh, [&](const GroupRequest& r) { return take(r, mesh.rank); },
      [](const std::string& name) { return make_worker_stream(name); }, options);
}

void on_threads(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (...) {
        errors[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  for (auto& t : threads) t.join();
  for (const bool followed : {false, true})
    for (const std::exception_ptr& e : errors) {
      if (!e) continue;
      try {
        std::rethrow_exception(e);
      } catch (const Error& error) {
        if ((error.code() == ExitCode::rank_lost) == followed) throw;
      }
    }
}

}  // namespace ltrain::test
