// Pipeline schedules as data: the order of forwards and backwards of each rank.
//
// A model is divided into stages of consecutive layers, numbered from the input; a rank holds `chunks` of
// them. One simulator times a schedule (simulate.h), one lowering makes a rank's program with its transfers
// (lowering.h), one printer draws it (draw.h).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::pipeline {

/// F, B, I, W of PyTorch's schedule files. B is I and W together.
enum class ActionKind : uint8_t {
  forward,
  backward,        ///< gradients of the stage's input and weights
  backward_input,  ///< gradient of the input, which the stage before waits for
  /// gradient of the weights; no action waits for it, so that it can fill a bubble (arXiv:2401.10241)
  backward_weight,
};
inline char letter(ActionKind k) { return "FBIW"[static_cast<int>(k)]; }

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;           ///< global: 0 to ranks * chunks - 1
  int micro = 0;           ///< micro-batch: 0 to micros - 1
  bool with_next = false;  ///< a pair with the next action: a forward and a backward that run interleaved
  bool operator==(const Action&) const = default;
  /// True if it computes the gradient of the stage's input, which another stage waits for.
  bool gives_gradient() const { return kind == ActionKind::backward || kind == ActionKind::backward_input; }
};
/// "3F12": stage, kind, micro-batch, as in PyTorch's files.
std::string to_string(const Action& a);

struct Schedule {
  std::string name;
  int ranks = 1;
  int chunks = 1;  ///< stages for each rank
  int micros = 1;
  bool forward_only = false;               ///< evaluation: no backward
  std::vector<int> rank_of_stage;          ///< indexed by stage
  std::vector<std::vector<Action>> order;  ///< indexed by rank

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  /// Number of stages before `stage` on the same rank: 0 to chunks - 1.
  int chunk_of(int stage) const;
  bool has_pairs(int rank) const;
  bool has_pairs() const;  ///< on any rank
};

/// Number of actions that begin at `at`: 2 for a pair, else 1.
inline int actions_at(const std::vector<Action>& order, size_t at) { return order[at].with_next ? 2 : 1; }
/// True for the second action of a pair.
inline bool ends_pair(const std::vector<Action>& order, size_t at) {
  return at > 0 && order[at - 1].with_next;
}
/// The schedule with the actions of each pair one after the other.
Schedule without_pairs(Schedule schedule);
/// Removes actions from an order; the rest of a pair runs alone.
void erase_actions(std::vector<Action>& order, const std::function<bool(const Action&)>& gone);

/// Pairs of a schedule: adjacent forwards and backwards that may run interleaved.
enum class Pairs : uint8_t {
  none,
  possible,  ///< its order has some, at the cost of one more activation
  intended,  ///< the schedule is designed for them
};

/// Description and requirements of a schedule.
struct ScheduleInfo {
  std::string_view name, paper, summary;
  int least_chunks, most_chunks;  ///< most 0: unlimited
  bool splits_backward;
  Pairs pairs;
};
const std::vector<ScheduleInfo>& schedules();
const ScheduleInfo* find_schedule(std::string_view name);

/// Empty if the schedule exists for these numbers, else the violated rule and a valid choice: "needs a
/// multiple of 4 ranks as micro-batches, and there are 6; nearest valid number: 4 or 8". `nearest_micros`:
/// the nearest valid numbers, set if only another number of micro-batches would fix it.
struct BrokenRule {
  std::string text;
  std::vector<int> nearest_micros;
  explicit operator bool() const { return !text.empty(); }
};
BrokenRule schedule_rule(std::string_view name, int ranks, int chunks, int micros);

/// Schedule::rank_of_stage of a schedule with that name.
std::vector<int> place_stages(std::string_view name, int ranks, int chunks);

/// gpipe | 1f1b | interleaved | zb-h1 | zb-h2 | zbv | dualpipev. Throws Error (usage) for a violation or an
/// unknown name. `chunks` 0: the smallest number for the schedule. `pairs`: marks pairs, if the schedule has
/// them.
Schedule make_schedule(const std::string& name, int ranks, int chunks, int micros, bool pairs = false);

/// Throws Error (usage) for an invalid schedule. Every stage must run every micro-batch forward once and
/// backward once (B, or I and then W), on its rank, in an order without deadlock; a pair waits for the
/// dependencies of both actions. A pair must be a forward and a backward of different micro-batches. `source`
/// begins the message: a file name, or the schedule's name.
void check(const Schedule& schedule, const std::string& source);

}  // namespace ltrain::pipeline
