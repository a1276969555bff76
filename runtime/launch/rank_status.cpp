#include "runtime/launch/rank_status.h"

#include <algorithm>
#include <map>

#include "base/printable.h"
#include "runtime/launch/environment/hostlist.h"

namespace ltrain {
namespace {
constexpr size_t kMostTextBytes = 1000;
}

std::string write_status(const RankStatus& s) {
  MessageWriter w(MessageType::status);
  w.text(s.section).number(s.step).real(s.idle_seconds).real(s.idle_limit).text(s.waits_for);
  const size_t count = std::min<size_t>(s.groups.size(), 64);
  w.number(static_cast<int64_t>(count));
  for (size_t i = 0; i < count; ++i) {
    const GroupStatus& g = s.groups[i];
    w.text(g.group).number(static_cast<int>(g.last.op)).number(static_cast<int64_t>(g.last.sequence));
    w.number(g.last.elements).number(static_cast<int>(g.last.dtype)).number(static_cast<int>(g.last.reduce));
    w.number(g.last.peer).number(static_cast<int64_t>(g.entered)).number(static_cast<int64_t>(g.completed));
  }
  return w.frame();
}

std::optional<RankStatus> read_status(const Message& message) {
  MessageReader r(message);
  RankStatus s;
  s.section = printable(r.text(), kMostTextBytes);
  s.step = r.number(), s.idle_seconds = r.real(), s.idle_limit = r.real();
  s.waits_for = printable(r.text(), kMostTextBytes);
  const int64_t count = r.number();
  if (!r.ok() || count < 0 || count > 64) return {};
  for (int64_t i = 0; i < count; ++i) {
    GroupStatus g;
    g.group = printable(r.text(), kMostTextBytes);
    const int64_t op = r.number();
    g.last.sequence = static_cast<uint64_t>(r.number());
    g.last.elements = r.number();
    const int64_t dtype = r.number(), reduce = r.number();
    g.last.peer = static_cast<int>(r.number());
    g.entered = static_cast<uint64_t>(r.number()), g.completed = static_cast<uint64_t>(r.number());
    if (!r.ok() || op < 0 || op >= kCollectiveOpCount || dtype < 0 || dtype > static_cast<int>(DType::u32) ||
        reduce < 0 || reduce > 2)
      return {};
    g.last.op = static_cast<CollectiveOp>(op);
    g.last.dtype = static_cast<DType>(dtype);
    g.last.reduce = static_cast<ReduceOp>(reduce);
    s.groups.push_back(std::move(g));
  }
  return s;
}

namespace {

std::string section_text(const RankStatus& s) {
  return s.step >= 0 ? fmt::format("{} {}", s.section, s.step) : s.section;
}

bool transfer(const CollectiveInfo& i) {
  return i.op == CollectiveOp::send || i.op == CollectiveOp::recv || i.op == CollectiveOp::send_recv;
}

}  // namespace

std::string where(const RankStatus& s) {
  std::string text = "in section " + section_text(s);
  for (const GroupStatus& g : s.groups)
    if (g.entered > g.completed) return text + fmt::format(", in {} of group {}", to_string(g.last), g.group);
  if (!s.waits_for.empty()) return text + ", waiting for " + s.waits_for;
  const GroupStatus* latest = nullptr;
  for (const GroupStatus& g : s.groups)
    if (g.entered > 0 && (!latest || g.entered > latest->entered)) latest = &g;
  if (latest) text += fmt::format(", after {} of group {}", to_string(latest->last), latest->group);
  return text;
}

std::string last_heard(const RankStatus& s, double seconds, bool peers_know) {
  return fmt::format("last heard of {:.1f} s before, {}", std::max(0.0, seconds),
                     peers_know ? "in section " + section_text(s) : where(s));
}

bool RankStatus::waits() const {
  return !waits_for.empty() || std::any_of(groups.begin(), groups.end(),
                                           [](const GroupStatus& g) { return g.entered > g.completed; });
}

int hung_rank(const std::vector<std::optional<RankStatus>>& ranks) {
  int first = -1;
  bool all = true;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r]) continue;
    if (ranks[r]->stuck() && !ranks[r]->waits()) return static_cast<int>(r);
    all = all && ranks[r]->stuck();
    if (first < 0) first = static_cast<int>(r);
  }
  return all ? first : -1;
}

StallReport explain_stall(const std::vector<std::optional<RankStatus>>& ranks) {
  StallReport report;
  std::map<std::string, std::vector<std::pair<int, const GroupStatus*>>> groups;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r])
      for (const GroupStatus& g : ranks[r]->groups) groups[g.group].emplace_back(static_cast<int>(r), &g);
  auto blame = [&](int rank, std::string line) {
    if (std::find(report.culprits.begin(), report.culprits.end(), rank) != report.culprits.end()) return;
    report.culprits.push_back(rank);
    report.lines.push_back(std::move(line));
  };
  // A rank is behind if another member of its group waits in a collective that it has not entered.
  for (const auto& [name, members] : groups) {
    const GroupStatus* ahead = nullptr;
    for (const auto& [r, g] : members)
      if (!transfer(g->last) && g->entered > g->completed &&
          (!ahead || g->last.sequence > ahead->last.sequence))
        ahead = g;
    if (!ahead) continue;
    for (const auto& [r, g] : members) {
      if (transfer(g->last) || g->last.sequence >= ahead->last.sequence) continue;
      const RankStatus& s = *ranks[static_cast<size_t>(r)];
      // It may itself wait elsewhere, for the actual culprit.
      if (s.waits()) continue;
      blame(r, fmt::format("rank {} last completed #{}, never entered #{} ({}, group {}); it is {}", r,
                           g->last.sequence, g->last.sequence + 1, to_string(ahead->last), name, where(s)));
    }
  }
  if (!report.culprits.empty()) return report;
  // No rank is behind: no collective is running, or all ranks of a group are in one and no data flow.
  for (const auto& [name, members] : groups) {
    // A rank that receives everything may be a call ahead of one that receives nothing.
    const bool inside = std::all_of(members.begin(), members.end(), [&](const auto& m) {
      return !transfer(m.second->last) && m.second->entered > m.second->completed;
    });
    if (!inside || members.size() < 2 || members.size() < report.without_data.size()) continue;
    report.without_data.clear();
    for (const auto& [r, g] : members) report.without_data.push_back(r);
  }
  std::map<std::string, std::vector<int>> inside;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r]) inside[where(*ranks[r])].push_back(static_cast<int>(r));
  for (const auto& [text, list] : inside)
    report.lines.push_back(
        fmt::format("rank{} {}: {}", list.size() > 1 ? "s" : "", format_ranges(list), text));
  return report;
}

}  // namespace ltrain
