#include "runtime/machines/profile_file.h"

#include <fmt/format.h>
#include <algorithm>

#include "runtime/machines/machine_profile.h"

namespace ltrain {
namespace {

using recipe::Node;

const std::vector<std::string> kTypes{"bf16", "f16", "f32", "f64", "fp8", "tf32"};

MatmulRates read_matmul(CheckedMap m, bool cpu) {
  MatmulRates r;
  CheckedMap peak = m.map("peak");
  for (const std::string& type : peak.keys()) {
    if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) continue;  // finish() reports it
    r.peak[type] = peak.figure(type, 1e6, 1e24);
  }
  for (const std::string& type : kTypes)
    if (!peak.has(type)) peak.figure(type, 0, 0, false);  // makes the keys known, for suggestions
  if (r.peak.empty()) m.wrong("peak", fmt::format("must have at least one of {}", fmt::join(kTypes, ", ")));
  peak.finish();
  r.sustained = m.figure("sustained", 0.01, 1);
  r.units = m.figure("units", 1, 1e6, false);
  r.tile_fill = m.figure("tile_fill", 0, 1e6, false);
  if (m.has("sparse_speedup") && !cpu) m.wrong("sparse_speedup", "is for kind: cpu; leave it out");
  r.sparse_speedup = m.figure("sparse_speedup", kLeastSparseSpeedup, kMostSparseSpeedup, false);
  for (const std::vector<double>& row : m.rows("tiles", 3)) {
    if (row[0] < 1 || row[1] < 1 || row[2] > 1) {
      m.wrong("tiles", "must be rows of [rows, columns, share], the share at most 1");
      continue;
    }
    r.tiles.push_back({static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), row[2]});
  }
  if (r.units.given && r.tiles.empty()) m.wrong("tiles", "must be given with units");
  m.finish();
  return r;
}

NetworkLevel read_level(CheckedMap& m) {
  NetworkLevel level;
  level.name = m.text("name");
  level.ranks = m.whole("ranks", 0, 1 << 24, 0);
  level.parts = m.whole("parts", 1, 1 << 20, 1);
  if (level.ranks > 0 && level.parts > 1) m.wrong("parts", "must not be given with ranks");
  level.seconds = m.figure("seconds", 0, 10);
  level.bytes_per_second = m.figure("bytes_per_second", 1, 1e15);
  level.sustained = m.figure("sustained", 0.01, 1);
  level.ranks_a_link = m.whole("ranks_a_link", 0, 1 << 24, 1);
  level.all_reduce = m.curve("all_reduce", 1, 1e15, false);
  m.finish();
  return level;
}

}  // namespace

void read_references(CheckedFile& file, CheckedMap& m) {
  if (!m.has("references")) {
    m.text("references", false);
    return;
  }
  CheckedMap list = m.map("references");
  for (const std::string& key : list.keys()) file.references[key] = list.text(key);
  list.finish();
}

AttentionRates read_attention(CheckedMap& m) {
  AttentionRates rates;
  rates.forward = m.curve("forward", 0.001, 1);
  rates.backward = m.curve("backward", 0.001, 1);
  rates.half_length = m.figure("half_length", 0, 1e9, false);
  rates.deterministic_backward = m.curve("deterministic_backward", 0.001, 1, false);
  rates.deterministic_backward_half_length = m.figure("deterministic_backward_half_length", 0, 1e9, false);
  m.finish();
  return rates;
}

std::vector<NetworkLevel> read_levels(CheckedMap& m, const std::string& key) {
  std::vector<NetworkLevel> levels;
  for (CheckedMap& level : m.maps(key)) {
    levels.push_back(read_level(level));
    const size_t n = levels.size();
    if (n > 1 && levels[n - 2].ranks > 0 && levels[n - 1].ranks > 0 &&
        levels[n - 1].ranks % levels[n - 2].ranks != 0)
      level.wrong("ranks",
                  fmt::format("must be a multiple of the {} of the level inside", levels[n - 2].ranks));
    if (n > 1 && levels[n - 2].ranks == 0 && levels[n - 2].parts == 1 && key != "links")
      level.wrong("name", "comes after a level that joins all ranks");
  }
  return levels;
}

DeviceProfile parse_device_profile(const std::string& text, const std::string& name) {
  DeviceProfile d =
      parse_profile<DeviceProfile>(text, name, kDeviceFormat, [](CheckedMap& m, DeviceProfile& p) {
        p.name = m.text("name");
        p.text = m.text("text");
        p.aliases = m.words("aliases");
        p.driver = m.words("driver");
        p.compute_capability = m.whole("compute_capability", 30, 999, 0);
        if (m.has("kind")) p.cpu = m.choice("kind", {"gpu", "cpu"}) == "cpu";
        CheckedMap node = m.map("node");
        p.node = node.text("name");
        p.cards_a_node = node.whole("cards", 1, 1 << 16, 1);
        p.cores_a_node = node.whole("cores", 1, 1 << 20, 0);
        p.network = node.text("network", false);
        node.finish();
        CheckedMap memory = m.map("memory");
        p.memory_bytes = memory.figure("bytes", 1e6, 1e15);
        p.memory_bytes_per_second = memory.figure("bytes_per_second", 1e6, 1e15);
        p.memory_sustained = memory.figure("sustained", 0.01, 1);
        p.half_access_bytes = memory.figure("half_access_bytes", 0, 1e12, false);
        memory.finish();
        p.matmul = read_matmul(m.map("matmul"), p.cpu);
        CheckedMap attention = m.map("attention");
        p.attention = read_attention(attention);
        p.launch_seconds = m.figure("launch_seconds", 0, 1);
        p.under_load = m.figure("under_load", 0.01, 1, false);
        if (!p.under_load.given) p.under_load.value = 1;
        p.overlap = m.figure("overlap", 0, 1, false);
        p.host_bytes_per_second = m.figure("host_bytes_per_second", 1, 1e15);
        p.host_memory_bytes_per_second = m.figure("host_memory_bytes_per_second", 1, 1e15, false);
        p.power_watts = m.figure("power_watts", 1, 1e6, false);
        p.links = read_levels(m, "links");
      });
  d.file = name;
  return d;
}

NetworkProfile parse_network_profile(const std::string& text, const std::string& name) {
  return parse_profile<NetworkProfile>(text, name, kNetworkFormat, [](CheckedMap& m, NetworkProfile& p) {
    p.name = m.text("name");
    p.text = m.text("text");
    p.levels = read_levels(m, "levels");
    if (p.levels.empty()) m.wrong("levels", "must have at least one level");
  });
}

}  // namespace ltrain
