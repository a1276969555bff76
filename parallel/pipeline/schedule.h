// Pipeline schedules as data: for each rank, in which order it computes forward and backward of its stages.
//
// A model is cut into stages of consecutive layers, numbered from the input; a rank holds `chunks` of them.
// One simulator times a schedule (simulate.h), one lowering makes a rank's program with its transfers
// (lowering.h), one printer draws it (draw.h).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::pipeline {

/// F, B, I, W of PyTorch's schedule files. B is I and W at once.
enum class ActionKind : uint8_t {
  forward,
  backward,         ///< gradients of the stage's input and of its weights
  backward_input,   ///< of its input: what the stage before waits for
  backward_weight,  ///< of its weights: nobody waits, so that it can fill a bubble (arXiv:2401.10241)
};
inline char letter(ActionKind k) { return "FBIW"[static_cast<int>(k)]; }

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;           ///< global: 0 .. ranks * chunks - 1
  int micro = 0;           ///< micro-batch: 0 .. micros - 1
  bool with_next = false;  ///< a pair with the action after it: a forward and a backward that run by turns
  bool operator==(const Action&) const = default;
  /// Forward, or what gives the gradient of the stage's input: what another stage waits for.
  bool gives_gradient() const { return kind == ActionKind::backward || kind == ActionKind::backward_input; }
};
/// "3F12": stage, kind, micro-batch, as in PyTorch's files.
std::string to_string(const Action& a);

struct Schedule {
  std::string name;
  int ranks = 1;
  int chunks = 1;  ///< stages a rank
  int micros = 1;
  bool forward_only = false;               ///< of an evaluation: no action gives a gradient
  std::vector<int> rank_of_stage;          ///< by stage
  std::vector<std::vector<Action>> order;  ///< by rank

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  /// How many stages before `stage` lie on the same rank: 0 .. chunks - 1.
  int chunk_of(int stage) const;
  bool has_pairs(int rank) const;
  bool has_pairs() const;  ///< on any rank
};

/// A pair's two actions, or the one, that begin at `at`.
inline int actions_at(const std::vector<Action>& order, size_t at) { return order[at].with_next ? 2 : 1; }
/// Whether it is the second of a pair.
inline bool ends_pair(const std::vector<Action>& order, size_t at) {
  return at > 0 && order[at - 1].with_next;
}
/// The same with each pair's actions one after the other.
Schedule without_pairs(Schedule schedule);
/// Takes actions out of an order; what is left of a pair runs alone.
void erase_actions(std::vector<Action>& order, const std::function<bool(const Action&)>& gone);

/// Whether a forward and a backward of a schedule stand beside each other and may run by turns.
enum class Pairs : uint8_t {
  none,
  possible,  ///< of its order as it is, at one more activation
  intended,  ///< the schedule is made for them
};

/// What a schedule is, and what it asks for.
struct ScheduleInfo {
  std::string_view name, paper, summary;
  int least_chunks, most_chunks;  ///< most 0: any number
  bool splits_backward;
  Pairs pairs;
};
const std::vector<ScheduleInfo>& schedules();
const ScheduleInfo* find_schedule(std::string_view name);

/// "" when the schedule exists for these numbers, else the rule that is broken and what would work:
/// "needs a multiple of 4 ranks as micro-batches, and there are 6; nearest valid number: 4 or 8".
/// `micros_rule` is set when only another number of micro-batches would fix it; `nearest_micros` are the
/// valid numbers next to it.
struct BrokenRule {
  std::string text;
  std::vector<int> nearest_micros;
  explicit operator bool() const { return !text.empty(); }
};
BrokenRule schedule_rule(std::string_view name, int ranks, int chunks, int micros);

/// Of a schedule of that name: Schedule::rank_of_stage.
std::vector<int> place_stages(std::string_view name, int ranks, int chunks);

/// gpipe | 1f1b | interleaved | zb-h1 | zb-h2 | zbv | dualpipev. Throws Error (usage) for a violation or an
/// unknown name. `chunks` 0: the least that the schedule takes. `pairs`: marked, of those that have them.
Schedule make_schedule(const std::string& name, int ranks, int chunks, int micros, bool pairs = false);

/// Throws Error (usage) unless every stage runs every micro-batch forward once and backward once (B, or I and
/// then W), on the rank that holds it, in an order in which no rank waits forever, a pair for what both of
/// its actions need; and a pair is a forward and a backward of different micro-batches. `source` begins the
/// message: a file's name, or the schedule's.
void check(const Schedule& schedule, const std::string& source);

}  // namespace ltrain::pipeline
