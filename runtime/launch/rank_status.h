// What a rank is doing, as its heartbeat tells the coordinator; and the sentences made from it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.h"
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
  double section_seconds = 0;  ///< since the section was entered
  double seconds_left = 1e9;   ///< until its deadline
  std::vector<GroupStatus> groups;
};

std::string write_status(const RankStatus& status);  ///< a whole frame
std::optional<RankStatus> read_status(const Message& message);

/// "in step 12, in all_reduce #304 of 4096 f32 of group data[0-3]".
std::string where(const RankStatus& status);
/// Of a rank that cannot tell any more: "last heard of 0.4 s before, in section step 12", and its call unless
/// others have said, later than its last heartbeat, which one they lost it in (`peers_know`).
std::string last_heard(const RankStatus& status, double seconds_before, bool peers_know);

/// For ranks that stall (index = rank; nullopt: never heard of): who holds the others up, one line each, most
/// likely culprit first. "rank 3 last completed #304, never entered #305 (all_reduce of 4096 f32, group
/// data[0-3])".
struct StallReport {
  std::vector<int> culprits;
  std::vector<std::string> lines;
};
StallReport explain_stall(const std::vector<std::optional<RankStatus>>& ranks);

}  // namespace ltrain
