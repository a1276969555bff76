// Machine profile of a built-in card or of a profile file: rates from its figures, without measurements.
#include <fmt/format.h>

#include "base/error.h"
#include "runtime/machines/builtin_profiles.h"
#include "runtime/machines/machine_profile.h"

namespace ltrain {
namespace {

constexpr const char* kCardTypes[] = {"bf16", "f16", "f32", "f64"};

/// A rank on `threads` of the cores has the corresponding share of all rates.
RankProfile rank_of_cpu(const DeviceProfile& d, int threads) {
  const double part = threads / static_cast<double>(d.cards_a_node);
  RankProfile r;
  r.threads = threads;
  const double memory = d.memory_bytes_per_second.value * d.memory_sustained.value * part;
  for (const char* type : kCardTypes) {
    const auto it = d.matmul.peak.find(type);
    const double peak = (it == d.matmul.peak.end() ? d.matmul.peak.begin() : it)->second.value * part;
    const double products = peak * d.matmul.sustained.value;
    for (const char* op : {"matmul_nt", "matmul_nn", "matmul_tn", "matmul_tn_add"})
      r.ops[fmt::format("{}/{}", op, type)] = {{0, products, 1, 0, 0, 0}};
    for (const char* op : kAttentionOps) {
      const bool forward = std::string_view(op).find("forward") != std::string_view::npos;
      const Curve& share = forward ? d.attention.forward : d.attention.backward;
      r.ops[fmt::format("{}/{}", op, type)] = {{0, peak * share.at(64), 1, 0, 0, 0}};
    }
    r.ops[fmt::format("cast/{}", type)] = {{memory, 0, 1, 0, 0, 0}};
    r.peak_flops[type] = peak;
  }
  return r;
}

}  // namespace

MachineProfile profile_of_device(const DeviceHandle& handle) {
  const DeviceProfile& d = *handle;
  MachineProfile p;
  p.machine = d.text;
  p.source =
      d.file.empty() || find_builtin_device(d.name) == handle ? fmt::format("{}, built in", d.name) : d.file;
  p.built_in = true;
  p.device = handle;
  p.levels = d.links;
  p.cores_per_node = static_cast<int>(d.cpu ? d.cards_a_node : d.cores_a_node);
  if (!d.links.empty()) {
    p.link_bytes_per_second = d.links[0].bytes_per_second.value * d.links[0].sustained.value;
    p.link_seconds = d.links[0].seconds.value;
  }
  p.offload_read_bytes_per_second = p.offload_write_bytes_per_second = d.host_bytes_per_second.value;
  if (const Figure& f = d.host_memory_bytes_per_second; f.given) {
    p.host_memory_bytes_per_second = f.value;
    p.host_memory_source = figure_source_name(f.source);
  }
  p.sparse_matmul_speedup = d.matmul.sparse_speedup.value;
  if (d.cpu) {
    p.cores = static_cast<int>(d.cards_a_node);
    for (int threads = 1; threads <= p.cores; threads *= 2) p.ranks.push_back(rank_of_cpu(d, threads));
  } else {
    p.cores = 1 << 30;  // collectives take a share of the card instead
    p.device_bytes = static_cast<int64_t>(d.memory_bytes.value);
    p.card = d.name;
    p.cards_per_node = static_cast<int>(d.cards_a_node);
    RankProfile r;
    for (const char* type : kCardTypes)
      if (const auto it = d.matmul.peak.find(type); it != d.matmul.peak.end())
        r.peak_flops[type] = it->second.value;
    p.ranks.push_back(std::move(r));
  }
  if (const NetworkProfile* network = find_builtin_network(d.network))
    set_network(p, network->levels, fmt::format("assumed: {}, as in {}", network->text, d.node));
  return p;
}

void set_network(MachineProfile& p, const std::vector<NetworkLevel>& network, const std::string& source) {
  p.network_source = source;
  p.levels.resize(p.device ? std::min(p.levels.size(), p.device->links.size()) : 0);
  p.levels.insert(p.levels.end(), network.begin(), network.end());
  if (network.empty()) return;
  const NetworkLevel& level = network.front();
  p.network_seconds = level.seconds.value;
  p.network_bytes_per_second = level.bytes_per_second.value * level.sustained.value;
  p.adapter_bytes_per_second =
      level.ranks_a_link > 0 ? p.network_bytes_per_second / static_cast<double>(level.ranks_a_link) : 0;
}

MachineProfile card_profile(const std::string& card) {
  DeviceHandle device = find_builtin_device(card);
  if (!device) device = device_of_driver(card);
  if (!device) {
    MachineProfile none;
    none.machine = card;
    return none;
  }
  MachineProfile p = profile_of_device(device);
  p.machine = card;
  return p;
}

std::vector<std::string> built_in_cards() {
  std::vector<std::string> names;
  for (const DeviceHandle& d : builtin_devices()) names.push_back(d->name);
  return names;
}

}  // namespace ltrain
