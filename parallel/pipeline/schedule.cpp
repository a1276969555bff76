#include "parallel/pipeline/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "parallel/pipeline/generators.h"

namespace ltrain::pipeline {
namespace {

/// A rank's order takes some 12 bytes for each action; a larger schedule is a mistake.
constexpr int64_t kMaxActions = int64_t{1} << 25;

std::string names() {
  std::string s;
  for (const ScheduleInfo& i : schedules()) s += fmt::format("{}{}", s.empty() ? "" : ", ", i.name);
  return s;
}

std::string count(int n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

}  // namespace

std::string to_string(const Action& a) { return fmt::format("{}{}{}", a.stage, letter(a.kind), a.micro); }

int Schedule::chunk_of(int stage) const {
  int chunk = 0;
  for (int s = 0; s < stage; ++s) chunk += rank_of_stage[s] == rank_of_stage[stage];
  return chunk;
}

bool Schedule::has_pairs(int rank) const {
  const std::vector<Action>& of = order[static_cast<size_t>(rank)];
  return std::any_of(of.begin(), of.end(), [](const Action& a) { return a.with_next; });
}

bool Schedule::has_pairs() const {
  for (size_t r = 0; r < order.size(); ++r)
    if (has_pairs(static_cast<int>(r))) return true;
  return false;
}

Schedule without_pairs(Schedule s) {
  for (auto& order : s.order)
    for (Action& a : order) a.with_next = false;
  return s;
}

void erase_actions(std::vector<Action>& order, const std::function<bool(const Action&)>& gone) {
  for (size_t i = 0; i + 1 < order.size(); ++i)
    order[i].with_next = order[i].with_next && !gone(order[i + 1]);
  std::erase_if(order, gone);
}

const std::vector<ScheduleInfo>& schedules() {
  static const std::vector<ScheduleInfo> table = {
      {"gpipe", "arXiv:1811.06965", "all forwards, then all backwards", 1, 1, false, Pairs::none},
      {"1f1b", "arXiv:2006.09503", "one forward, one backward: at most ranks - r activations on rank r", 1, 1,
       false, Pairs::none},
      {"interleaved", "arXiv:2104.04473", "1f1b over several chunks a rank: a smaller bubble, more transfers",
       2, 0, false, Pairs::possible},
      {"zb-h1", "arXiv:2401.10241", "backward split in two; the activations of 1f1b's first rank everywhere",
       1, 1, true, Pairs::none},
      {"zb-h2", "arXiv:2401.10241",
       "backward split in two; no idle time within a rank, twice the activations", 1, 1, true, Pairs::none},
      {"zbv", "arXiv:2401.10241", "two chunks in a V, backward split in two; no idle time within a rank", 2,
       2, true, Pairs::none},
      {"dualpipev", "arXiv:2412.19437", "two chunks in a V; a forward of one beside a backward of the other",
       2, 2, true, Pairs::intended},
  };
  return table;
}

const ScheduleInfo* find_schedule(std::string_view name) {
  for (const ScheduleInfo& i : schedules())
    if (i.name == name) return &i;
  return nullptr;
}

BrokenRule schedule_rule(std::string_view name, int ranks, int chunks, int micros) {
  const ScheduleInfo* info = find_schedule(name);
  if (!info) return {fmt::format("is not one of {}", names()), {}};
  if (ranks < 1) return {fmt::format("needs at least 1 rank, and there are {}", ranks), {}};
  if (micros < 1) return {fmt::format("needs at least 1 micro-batch, and there are {}", micros), {1}};
  if (chunks < info->least_chunks || (info->most_chunks > 0 && chunks > info->most_chunks)) {
    const bool exact = info->least_chunks == info->most_chunks;
    return {fmt::format("needs {}{} a rank, and there {} {}; nearest valid number: {}",
                        exact ? "exactly " : "at least ", count(info->least_chunks, "chunk"),
                        chunks == 1 ? "is" : "are", chunks, info->least_chunks),
            {}};
  }
  if (name == "interleaved" && micros % ranks != 0) {
    const int low = micros / ranks * ranks;
    BrokenRule rule;
    if (low > 0) rule.nearest_micros.push_back(low);
    rule.nearest_micros.push_back(low + ranks);
    rule.text = fmt::format(
        "needs a multiple of its {} as micro-batches, and there are {}; nearest valid "
        "number: {}{}",
        count(ranks, "rank"), micros, low > 0 ? fmt::format("{} or ", low) : "", low + ranks);
    return rule;
  }
  if (name == "dualpipev" && micros < 2 * ranks)
    return {
        fmt::format("needs at least two micro-batches for each of its {}, and there are {}; nearest valid "
                    "number: {}",
                    count(ranks, "rank"), micros, 2 * ranks),
        {2 * ranks}};
  return {};
}

std::vector<int> place_stages(std::string_view name, int ranks, int chunks) {
  const bool in_v = name == "zbv" || name == "dualpipev";
  return in_v ? placed_in_v(ranks) : placed_in_loops(ranks, chunks);
}

Schedule make_schedule(const std::string& name, int ranks, int chunks, int micros, bool pairs) {
  const ScheduleInfo* info = find_schedule(name);
  if (!info) fail(ExitCode::usage, "pipeline schedule {}: is not one of {}", name, names());
  if (chunks == 0) chunks = info->least_chunks;
  if (const BrokenRule rule = schedule_rule(name, ranks, chunks, micros))
    fail(ExitCode::usage, "pipeline schedule {}: {}", name, rule.text);
  const int64_t actions = int64_t{3} * ranks * chunks * micros;
  if (actions > kMaxActions)
    fail(ExitCode::usage,
         "pipeline schedule {}: {} ranks * {} chunks * {} micro-batches make {} actions, more than {}; use "
         "fewer "
         "micro-batches",
         name, ranks, chunks, micros, actions, kMaxActions);

  Schedule s;
  s.name = name;
  s.ranks = ranks;
  s.chunks = chunks;
  s.micros = micros;
  s.rank_of_stage = place_stages(name, ranks, chunks);
  for (int r = 0; r < ranks; ++r) {
    if (name == "gpipe") s.order.push_back(gpipe_order(r, micros));
    if (name == "1f1b") s.order.push_back(one_f_one_b_order(r, ranks, micros));
    if (name == "interleaved") s.order.push_back(interleaved_order(r, ranks, chunks, micros));
    if (name == "zb-h1") s.order.push_back(zero_bubble_order(r, micros, ranks - r, r));
    if (name == "zb-h2") s.order.push_back(zero_bubble_order(r, micros, 2 * (ranks - r) - 1, 2 * r));
    if (name == "zbv") s.order.push_back(zbv_order(r, ranks, micros));
    if (name == "dualpipev") s.order.push_back(dualpipev_order(r, ranks, micros));
  }
  return pairs ? s : without_pairs(std::move(s));
}

}  // namespace ltrain::pipeline
