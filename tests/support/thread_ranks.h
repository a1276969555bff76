// Ranks that are threads of one process.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "parallel/mesh/groups.h"

namespace ltrain::test {

/// In-process groups by name and members, made by whichever rank asks first.
class ThreadGroups {
 public:
  std::unique_ptr<Communicator> take(const GroupRequest& request, int world_rank);
  /// All groups of a rank, each on a worker of its own.
  GroupSet on(const Mesh& mesh, const GroupSet::Options& options = {});

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, std::vector<std::unique_ptr<Communicator>>> groups_;
};

/// body(rank) on a thread each. Of what they throw it throws first what went wrong by itself, then what
/// others saw of it.
void on_threads(int ranks, const std::function<void(int rank)>& body);

}  // namespace ltrain::test
