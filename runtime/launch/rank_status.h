// What a rank is doing, as its heartbeat tells the coordinator; and the sentences made from it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/launch/message.h"

namespace ltrain {

struct GroupStatus {
  std::string group;    ///< "data[0-3]": name and member ranks, the same text on every member
  CollectiveInfo last;  ///< entered last
  uint64_t entered = 0, completed = 0;
};

struct RankStatus {
  std::string section = "start";
  int64_t step = -1;
  double idle_seconds = 0;  ///< since anything was done (base/progress.h), while the process ran
  double idle_limit = 1e9;  ///< a rank of which nothing is seen for so long hangs
  std::string waits_for;    ///< other ranks, beside collectives: "the other ranks of group data[0-3]"
  std::vector<GroupStatus> groups;

  bool stuck() const { return idle_seconds >= idle_limit; }
  /// In a collective, or until others come: it is not this rank that holds up the job.
  bool waits() const;
};

std::string write_status(const RankStatus& status);  ///< a whole frame
std::optional<RankStatus> read_status(const Message& message);

/// "in step 12, in all_reduce #304 of 4096 f32 of group data[0-3]".
std::string where(const RankStatus& status);
/// Of a rank that cannot tell any more: "last heard of 0.4 s before, in section step 12", and its call unless
/// others have said, later than its last heartbeat, which one they lost it in (`peers_know`).
std::string last_heard(const RankStatus& status, double seconds_before, bool peers_know);

/// The rank that hangs, if one does (index = rank; nullopt: not to be judged): one that has done nothing for
/// its limit and waits for no other; or the first of all when all have done nothing for so long. A rank that
/// waits for others may do so for as long as one of them gets on.
int hung_rank(const std::vector<std::optional<RankStatus>>& ranks);

/// For ranks that stall (index = rank; nullopt: never heard of): who holds the others up, one line each, most
/// likely culprit first. "rank 3 last completed #304, never entered #305 (all_reduce of 4096 f32, group
/// data[0-3])".
struct StallReport {
  std::vector<int> culprits;
  std::vector<std::string> lines;
};
StallReport explain_stall(const std::vector<std::optional<RankStatus>>& ranks);

}  // namespace ltrain
