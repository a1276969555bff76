// Current activity of a rank, as its heartbeat reports it, and sentences about it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/launch/message.h"

namespace ltrain {

struct GroupStatus {
  std::string group;    ///< "data[0-3]": name and member ranks; the same text on every member
  CollectiveInfo last;  ///< the collective entered last
  uint64_t entered = 0, completed = 0;
};

struct RankStatus {
  std::string section = "start";
  int64_t step = -1;
  double idle_seconds = 0;  ///< time without progress (base/progress.h) while the process ran
  double idle_limit = 1e9;  ///< a rank without progress for this long hangs
  /// Wait for other ranks outside collectives: "the other ranks of group data[0-3]".
  std::string waits_for;
  std::vector<GroupStatus> groups;

  bool stuck() const { return idle_seconds >= idle_limit; }
  /// Returns whether the rank is in a collective or waits for other ranks, so that it does not hold up the
  /// job.
  bool waits() const;
};

std::string write_status(const RankStatus& status);  ///< complete frame
std::optional<RankStatus> read_status(const Message& message);

/// "in step 12, in all_reduce #304 of 4096 f32 of group data[0-3]".
std::string where(const RankStatus& status);
/// Last state of a rank that no longer reports: "last heard of 0.4 s before, in section step 12", and its
/// collective. The collective is omitted with `peers_know`: others have reported later in which one they lost
/// it.
std::string last_heard(const RankStatus& status, double seconds_before, bool peers_know);

/// Index of the hanging rank; -1: none. `ranks`: index = rank; nullopt: no status. A rank hangs if it made no
/// progress within its limit and waits for no other. If no rank made progress for that long, the first one
/// hangs. A rank may wait for others as long as one of them makes progress.
int hung_rank(const std::vector<std::optional<RankStatus>>& ranks);

/// Explains a stall (index = rank; nullopt: no status): ranks that hold up the others, one line each, most
/// likely culprit first. "rank 3 last completed #304, never entered #305 (all_reduce of 4096 f32, group
/// data[0-3])".
struct StallReport {
  std::vector<int> culprits;
  std::vector<std::string> lines;
  /// All ranks of a group, if each of them is in a collective of it and none gets on: no data flow.
  std::vector<int> without_data;
};
StallReport explain_stall(const std::vector<std::optional<RankStatus>>& ranks);

}  // namespace ltrain
