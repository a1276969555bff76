#include "runtime/launch/flight_dump.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/file.h"
#include "runtime/files/strict_json.h"
#include "runtime/files/write_file.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/launch/environment/hostlist.h"

namespace ltrain {
namespace {

using nlohmann::json;

constexpr int64_t kMostFlightBytes = 16 << 20;  // limit of a file; a full ring has less than 1 MiB
constexpr size_t kMostLabelBytes = 200;

json seconds_of(int64_t ns) { return ns == 0 ? json(nullptr) : json(static_cast<double>(ns) / 1e9); }

bool moves_between_two(const std::string& op) { return op == "send" || op == "recv" || op == "send_recv"; }

/// "02:11:05.250 UTC".
std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e11) return "an unknown time";
  const double whole = std::floor(seconds);
  const std::time_t t = static_cast<std::time_t>(whole);
  std::tm tm{};
  ::gmtime_r(&t, &tm);
  return fmt::format("{:02}:{:02}:{:02}.{:03} UTC", tm.tm_hour, tm.tm_min, tm.tm_sec,
                     std::min(999, static_cast<int>((seconds - whole) * 1000)));
}

/// A call as a file has it.
struct SeenCall {
  std::string text;  // "all_reduce #12 of 4096 f32"
  int64_t sequence = 0;
  double begin = 0, end = 0;  // end 0: not completed
};

/// One rank's latest call of a group, apart for collectives and for calls between two ranks.
struct SeenGroup {
  std::optional<SeenCall> collective, transfer;
};

struct Seen {
  int rank = 0;
  double written = 0;
  std::map<std::string, SeenGroup> groups;
};

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", format_ranges(ranks));
}

double number_or(const json& j, const char* key, double otherwise) {
  const auto at = j.find(key);
  return at != j.end() && at->is_number() ? at->get<double>() : otherwise;
}

std::string text_of(const json& j, const char* key) {
  const auto at = j.find(key);
  return at != j.end() && at->is_string() ? printable(at->get<std::string>(), kMostLabelBytes) : "";
}

/// Members of every group by its label, over all files.
using Members = std::map<std::string, std::set<int>>;

/// Throws Error (data) with the reason.
Seen read_flight(const std::string& path, Members& members) {
  std::string error;
  const json j = data::parse_strict(data::read_whole(path, kMostFlightBytes), 8, error);
  if (!error.empty() || !j.is_object() || !j.contains("calls") || !j["calls"].is_array() ||
      !j.contains("groups") || !j["groups"].is_array())
    fail(ExitCode::data, "{}: expected an object with \"groups\" and \"calls\"{}", path,
         error.empty() ? "" : ": " + error);
  Seen seen;
  const double rank = number_or(j, "rank", -1);
  if (!(rank >= 0 && rank < kMaxRanks)) fail(ExitCode::data, "{}: expected a rank from 0", path);
  seen.rank = static_cast<int>(rank);
  seen.written = number_or(j, "written_at", 0);
  for (const json& g : j["groups"]) {
    if (!g.is_object()) continue;
    const std::string label = text_of(g, "group");
    seen.groups[label];  // a member that has made no call is behind, too
    if (!g.contains("members") || !g["members"].is_array()) continue;
    for (const json& m : g["members"])
      if (m.is_number_integer() && m.get<int64_t>() >= 0 && m.get<int64_t>() < kMaxRanks)
        members[label].insert(m.get<int>());
  }
  for (const json& c : j["calls"]) {
    if (!c.is_object()) continue;
    const double sequence = number_or(c, "sequence", 0);
    SeenCall call{.text = text_of(c, "call"),
                  .sequence = sequence > 0 && sequence < 1e15 ? static_cast<int64_t>(sequence) : 0,
                  .begin = number_or(c, "begin", 0),
                  .end = number_or(c, "end", 0)};
    SeenGroup& group = seen.groups[text_of(c, "group")];
    (moves_between_two(text_of(c, "op")) ? group.transfer : group.collective) = std::move(call);
  }
  return seen;
}

/// Ranks that wait in the newest collective of a group, and those that have not entered it.
void tell_collective(const std::string& label, const std::set<int>& members, const std::map<int, Seen>& seen,
                     std::vector<std::string>& lines) {
  const SeenCall* newest = nullptr;
  for (const auto& [rank, s] : seen)
    if (const auto g = s.groups.find(label); g != s.groups.end() && g->second.collective)
      if (!newest || g->second.collective->sequence > newest->sequence) newest = &*g->second.collective;
  if (!newest) return;
  std::vector<int> inside, silent;
  std::string behind;
  double first = INFINITY, last = 0;
  for (const int rank : members) {
    const auto at = seen.find(rank);
    if (at == seen.end()) {
      silent.push_back(rank);
      continue;
    }
    const auto g = at->second.groups.find(label);
    const SeenCall* own =
        g != at->second.groups.end() && g->second.collective ? &*g->second.collective : nullptr;
    if (own && own->sequence == newest->sequence) {
      if (own->end != 0) continue;
      inside.push_back(rank);
      first = std::min(first, own->begin), last = std::max(last, at->second.written - own->begin);
      continue;
    }
    behind += fmt::format("; not entered by rank {}{}", rank,
                          !own            ? ", which has made none of the last calls there"
                          : own->end == 0 ? ", which is still in " + own->text
                                          : fmt::format(", whose last call there, {}, ended at {}", own->text,
                                                        clock_text(own->end)));
  }
  if (inside.empty()) return;
  std::string line = fmt::format("group {}, {}: {} wait{} since {} ({:.1f} s)", label, newest->text,
                                 rank_list(inside), inside.size() > 1 ? "" : "s", clock_text(first), last);
  line += behind;
  if (!silent.empty())
    line += fmt::format("; no record of {}, which ended without writing one", rank_list(silent));
  lines.push_back(std::move(line));
}

}  // namespace

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string flight_path(const std::string& folder, int rank) {
  return fmt::format("{}/rank-{:05d}.json", folder, rank);
}

void write_flight(const std::string& folder, const FlightSource& source, const FlightRing& ring) {
  std::map<const FlightRecord*, const FlightGroup*> labels;
  json groups = json::array(), calls = json::array();
  for (const FlightGroup& g : source.groups) {
    labels[g.record] = &g;
    const FlightRecord::View v = g.record->view();
    groups.push_back(
        {{"group", g.label}, {"members", g.members}, {"entered", v.entered}, {"completed", v.completed}});
  }
  const double now = unix_seconds();
  for (const FlightCall& c : ring.calls()) {
    const auto at = labels.find(c.group);
    if (at == labels.end()) continue;  // a group that is gone
    json call{{"group", at->second->label},
              {"op", collective_name(c.info.op)},
              {"call", to_string(c.info)},
              {"sequence", c.info.sequence},
              {"elements", c.info.elements},
              {"dtype", dtype_name(c.info.dtype)},
              {"bytes", c.info.elements * dtype_size(c.info.dtype)},
              {"begin", seconds_of(c.begin_ns)},
              {"end", seconds_of(c.end_ns)}};
    if (c.end_ns == 0) call["waiting_seconds"] = now - static_cast<double>(c.begin_ns) / 1e9;
    calls.push_back(std::move(call));
  }
  const json all{{"version", 1},
                 {"rank", source.rank},
                 {"world_size", source.world_size},
                 {"host", source.host},
                 {"reason", source.reason},
                 {"section", source.section},
                 {"step", source.step},
                 {"written_at", now},
                 {"groups", std::move(groups)},
                 {"calls", std::move(calls)}};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ExitCode::storage, "{}: cannot be made: {}", folder, error.message());
  replace_file(flight_path(folder, source.rank),
               all.dump(1, ' ', true, json::error_handler_t::replace) + "\n");
}

std::vector<std::string> merge_flights(const std::string& folder, double since) {
  std::vector<std::string> lines;
  std::map<int, Seen> seen;
  Members members;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".json")) continue;
    try {
      Seen s = read_flight(at->path().string(), members);
      if (s.written >= since) seen[s.rank] = std::move(s);
    } catch (const std::exception& e) {
      lines.push_back(e.what());
    }
  }
  if (seen.empty()) return lines;
  for (const auto& [label, ranks] : members) {
    tell_collective(label, ranks, seen, lines);
    for (const auto& [rank, s] : seen)
      if (const auto g = s.groups.find(label);
          g != s.groups.end() && g->second.transfer && g->second.transfer->end == 0)
        lines.push_back(fmt::format("group {}, {}: rank {} waits since {} ({:.1f} s)", label,
                                    g->second.transfer->text, rank, clock_text(g->second.transfer->begin),
                                    s.written - g->second.transfer->begin));
  }
  return lines;
}

}  // namespace ltrain
