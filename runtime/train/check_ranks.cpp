#include "runtime/train/check_ranks.h"

#include <vector>

#include "base/error.h"
#include "parallel/comm/host_collectives.h"

namespace ltrain {

void check_devices(DeviceKind device, const DeviceInfo& card, bool shared, Communicator& group,
                   Stream& stream) {
  const int world = group.size();
  if (world == 1) return;
  const std::vector<int64_t> all =
      gather_numbers(group, stream, {static_cast<int64_t>(device), card.identity[0], card.identity[1]});
  for (int a = 0; a < world; ++a)
    for (int b = 0; b < a; ++b) {
      const int64_t *x = &all[3 * static_cast<size_t>(a)], *y = &all[3 * static_cast<size_t>(b)];
      if (x[0] != y[0])
        fail(ExitCode::usage,
             "ranks {} and {} run on different devices ({} and {}): give device: cpu or cuda", b, a,
             device_name(static_cast<DeviceKind>(y[0])), device_name(static_cast<DeviceKind>(x[0])));
      if (device != DeviceKind::cpu && !shared && x[1] == y[1] && x[2] == y[2])
        fail(ExitCode::usage,
             "ranks {} and {} have the same GPU: each rank needs one of its own; device: cpu works", b, a);
    }
}

void check_nodes(const Parallel& p, Communicator& group, Stream& stream) {
  if (p.shard_group != kNode && p.hierarchical_reduction != kNode) return;
  const std::vector<int64_t> most = max_over(group, stream, {p.shard_ranks, -p.shard_ranks});
  if (most[0] != -most[1])
    fail(
        ExitCode::usage,
        "nodes have {} to {} ranks, and parallel.{}: node needs as many on each: give a number of ranks that "
        "divides every node's, or start as many on each node",
        -most[1], most[0], p.levels_key());
}

void throw_work_error(const std::optional<Error>& mine, Communicator& group, Stream& stream) {
  const auto failed = gather_numbers(group, stream, {mine.has_value()});
  if (mine) throw *mine;
  for (size_t rank = 0; rank < failed.size(); ++rank)
    if (failed[rank]) fail(ExitCode::rank_lost, "rank {} cannot make the later token files", rank);
}

}  // namespace ltrain
