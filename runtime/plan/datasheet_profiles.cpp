// What NVIDIA's datasheets promise of a card. Nothing here was measured: real kernels reach less, so that a
// plan priced by them is a bound, and says so.
#include <algorithm>
#include <cctype>

#include "runtime/plan/machine_profile.h"

namespace ltrain {
namespace {

/// Dense rates, without sparsity, at boost clock.
struct Datasheet {
  const char* name;
  double bf16, f32, tf32, fp8, f64;  ///< (bf16: f16, too) operations a second of matrix products; f32 without
                                     ///< TF32, fp8 0 where the card has none, f64 with tensor cores
  double memory_bytes, memory_bytes_per_second;
  double nvlink_bytes_per_second;   ///< one way
  double host_bytes_per_second;     ///< PCIe, one way
  double adapter_bytes_per_second;  ///< one way, of the network adapter that each card has in `node`
  const char* node;                 ///< a machine with such cards, and how many it has
  int cards_per_node;
};

constexpr Datasheet kCards[] = {
    // NVIDIA A100 Tensor Core GPU datasheet (June 2021), A100 80GB SXM
    {"a100", 312e12, 19.5e12, 156e12, 0, 19.5e12, 80e9, 2.039e12, 300e9, 32e9, 25e9, "DGX A100", 8},
    // NVIDIA H100 Tensor Core GPU datasheet, H100 SXM; its figures for tensor cores are with sparsity, twice
    // these
    {"h100", 989.4e12, 66.9e12, 494.7e12, 1978.9e12, 66.9e12, 80e9, 3.35e12, 450e9, 64e9, 50e9, "DGX H100",
     8},
    // NVIDIA H200 Tensor Core GPU datasheet, H200 SXM
    {"h200", 989.4e12, 66.9e12, 494.7e12, 1978.9e12, 66.9e12, 141e9, 4.8e12, 450e9, 64e9, 50e9, "DGX H200",
     8},
};

/// `word` stands in `text` with no letter or digit beside it: H100 is in "NVIDIA H100 80GB HBM3", and not in
/// "h1000".
bool has_word(const std::string& text, const std::string& word) {
  const auto part = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i]));
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if ((at == 0 || !part(at - 1)) && !part(at + word.size())) return true;
  return false;
}

}  // namespace

std::vector<std::string> datasheet_names() {
  std::vector<std::string> names;
  for (const Datasheet& d : kCards) names.emplace_back(d.name);
  return names;
}

MachineProfile datasheet_profile(const std::string& card) {
  std::string lower = card;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  MachineProfile p;
  for (const Datasheet& d : kCards) {
    if (!has_word(lower, d.name)) continue;
    p.machine = card;
    p.source = fmt::format("datasheet of {}", d.name);
    p.datasheet = true;
    p.cores = 1 << 30;  // collectives take nothing from compute
    p.device_bytes = static_cast<int64_t>(d.memory_bytes);
    p.card = d.name;
    p.cards_per_node = d.cards_per_node;
    p.link_bytes_per_second = d.nvlink_bytes_per_second;
    p.adapter_bytes_per_second = d.adapter_bytes_per_second;
    p.network_source = fmt::format("assumed: an adapter of {:.0f} Gbit/s for each GPU, as in a {}",
                                   d.adapter_bytes_per_second * 8e-9, d.node);
    p.offload_read_bytes_per_second = p.offload_write_bytes_per_second = d.host_bytes_per_second;
    RankProfile r;
    for (const auto& [type, flops] :
         {std::pair{"bf16", d.bf16}, {"f16", d.bf16}, {"f32", d.f32}, {"f64", d.f64}}) {
      r.ops[fmt::format("matmul_nt/{}", type)] = {{0, flops, 1, 0, 0, 0}};
      for (const char* op : kAttentionOps) r.ops[fmt::format("{}/{}", op, type)] = {{0, flops, 1, 0, 0, 0}};
      r.ops[fmt::format("cast/{}", type)] = {{d.memory_bytes_per_second, 0, 1, 0, 0, 0}};
      r.peak_flops[type] = flops;
    }
    r.ops["matmul_tf32/f32"] = {{0, d.tf32, 1, 0, 0, 0}};
    if (d.fp8 > 0) r.ops["matmul_fp8/f8e4m3"] = {{0, d.fp8, 1, 0, 0, 0}};
    p.ranks.push_back(std::move(r));
  }
  return p;
}

}  // namespace ltrain
