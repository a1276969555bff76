// Output of profiles as YAML, for `ltrain profile import`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "runtime/machines/cluster.h"
#include "runtime/machines/profile_file.h"

namespace ltrain {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "\"";
}

/// Writes figures and curves with their references.
class Writer {
 public:
  std::string body;

  void line(int indent, const std::string& text) {
    body += std::string(static_cast<size_t>(indent), ' ') + text + "\n";
  }
  void figure(int indent, const std::string& key, const Figure& f) {
    if (f.given)
      line(indent, fmt::format("{}: {{value: {}, {}}}", key, f.value, origin(f.source, f.reference)));
  }
  void curve(int indent, const std::string& key, const Curve& c) {
    if (!c.given()) return;
    std::string rows;
    for (const auto& [x, y] : c.points) rows += fmt::format("{}[{}, {}]", rows.empty() ? "" : ", ", x, y);
    line(indent, fmt::format("{}: {{value: [{}], {}}}", key, rows, origin(c.source, c.reference)));
  }
  void levels(const std::string& key, const std::vector<NetworkLevel>& levels) {
    if (levels.empty()) return;
    line(0, key + ":");
    for (const NetworkLevel& l : levels) {
      line(2, "- name: " + quoted(l.name));
      if (l.ranks > 0) line(4, fmt::format("ranks: {}", l.ranks));
      if (l.parts > 1) line(4, fmt::format("parts: {}", l.parts));
      if (l.ranks_a_link != 1) line(4, fmt::format("ranks_a_link: {}", l.ranks_a_link));
      figure(4, "seconds", l.seconds);
      figure(4, "bytes_per_second", l.bytes_per_second);
      figure(4, "sustained", l.sustained);
      curve(4, "all_reduce", l.all_reduce);
    }
  }
  std::string references() const {
    if (keys_.empty()) return "";
    std::string out = "references:\n";
    for (const auto& [text, key] : keys_) out += fmt::format("  {}: {}\n", key, quoted(text));
    return out;
  }

 private:
  std::string origin(FigureSource source, const std::string& reference) {
    std::string named = quoted(reference);
    if (source != FigureSource::assumed)
      named = keys_.try_emplace(reference, fmt::format("source_{}", keys_.size() + 1)).first->second;
    const bool none = source == FigureSource::assumed && reference.empty();
    return fmt::format("source: {}{}", figure_source_name(source), none ? "" : ", reference: " + named);
  }
  std::map<std::string, std::string> keys_;  // keyed by text
};

}  // namespace

std::string device_profile_yaml(const DeviceProfile& d) {
  Writer w;
  w.line(0, "memory:");
  w.figure(2, "bytes", d.memory_bytes);
  w.figure(2, "bytes_per_second", d.memory_bytes_per_second);
  w.figure(2, "sustained", d.memory_sustained);
  w.figure(2, "half_access_bytes", d.half_access_bytes);
  w.line(0, "matmul:");
  w.line(2, "peak:");
  for (const auto& [type, figure] : d.matmul.peak) w.figure(4, type, figure);
  w.figure(2, "sustained", d.matmul.sustained);
  w.figure(2, "units", d.matmul.units);
  w.figure(2, "tile_fill", d.matmul.tile_fill);
  w.figure(2, "sparse_speedup", d.matmul.sparse_speedup);
  std::string tiles;
  for (const MatmulTile& t : d.matmul.tiles)
    tiles += fmt::format("{}[{}, {}, {}]", tiles.empty() ? "" : ", ", t.rows, t.columns, t.share);
  if (!tiles.empty()) w.line(2, "tiles: [" + tiles + "]");
  w.line(0, "attention:");
  w.curve(2, "forward", d.attention.forward);
  w.curve(2, "backward", d.attention.backward);
  w.figure(2, "half_length", d.attention.half_length);
  w.curve(2, "deterministic_backward", d.attention.deterministic_backward);
  w.figure(2, "deterministic_backward_half_length", d.attention.deterministic_backward_half_length);
  w.figure(0, "launch_seconds", d.launch_seconds);
  w.figure(0, "under_load", d.under_load);
  w.figure(0, "overlap", d.overlap);
  w.figure(0, "host_bytes_per_second", d.host_bytes_per_second);
  w.figure(0, "host_memory_bytes_per_second", d.host_memory_bytes_per_second);
  w.figure(0, "power_watts", d.power_watts);
  w.levels("links", d.links);
  std::string head = fmt::format("format: {}\nname: {}\ntext: {}\nkind: {}\n", kDeviceFormat, quoted(d.name),
                                 quoted(d.text), d.cpu ? "cpu" : "gpu");
  std::string driver;
  for (const std::string& word : d.driver) driver += (driver.empty() ? "" : ", ") + quoted(word);
  if (!driver.empty()) head += "driver: [" + driver + "]\n";
  if (d.compute_capability > 0) head += fmt::format("compute_capability: {}\n", d.compute_capability);
  head += fmt::format("node: {{name: {}, cards: {}{}}}\n", quoted(d.node), d.cards_a_node,
                      d.network.empty() ? "" : ", network: " + quoted(d.network));
  return head + w.references() + w.body;
}

std::string cluster_yaml(const std::string& name, const std::string& profile, int nodes, int64_t cards_a_node,
                         const std::vector<NetworkLevel>& levels) {
  Writer w;
  w.levels("levels", levels);
  return fmt::format("format: {}\nname: {}\nprofile: {}\nnodes: {}\ngpus_per_node: {}\n", kClusterFormat,
                     quoted(name), quoted(profile), nodes, cards_a_node) +
         w.references() + w.body;
}

}  // namespace ltrain
