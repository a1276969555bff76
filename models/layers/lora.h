// LoRA (arXiv:2106.09685): y = x W^T + scale x A^T B^T for matrices W of linear layers that are frozen. A:
// (rank, in), B: (out, rank). Names and defaults are PEFT's.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ltrain {

inline constexpr std::string_view kAllLinear = "all-linear";
inline constexpr int64_t kMaxLoraRank = 4096;

/// Type of the frozen matrices of linear layers.
enum class LoraBase : uint8_t {
  full,  ///< the type of the matmuls
  nf4    ///< 4.5 bits an element (kernels/matmul/nf4.h), dequantised before each matmul
};

/// First values of adapters.
enum class LoraInit : uint8_t {
  zero,  ///< A random, B zero
  pissa  ///< the largest singular vectors of the weights (runtime/weights/pissa.h)
};

struct LoraConfig {
  int64_t rank = 0;  ///< 0: no LoRA
  double alpha = 32;
  /// Ranks and alphas of single modules, by entries as in target_modules; the first that names one counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  /// Dropout of the input of A. Each module has a mask of its own.
  double dropout = 0;
  /// DoRA (arXiv:2402.09353): rows of W + scale B A have trained magnitudes.
  bool dora = false;
  LoraBase base = LoraBase::full;
  LoraInit init = LoraInit::zero;
  bool use_rslora = false;  ///< scale alpha / sqrt(rank) (arXiv:2312.03732) instead of alpha / rank
  /// Modules with adapters: "all-linear", a name ("q_proj": every module whose name ends with it), or a
  /// pattern of whole names, * for any characters, ? for one.
  std::vector<std::string> target_modules = {std::string(kAllLinear)};
  std::vector<std::string> modules_to_save;  ///< modules that train whole, by such names

  bool on() const { return rank > 0; }
  /// Rank, alpha, and factor of B A of the adapter of a weight, such as
  /// "model.layers.0.self_attn.q_proj.weight".
  int64_t rank_of(std::string_view weight) const;
  double alpha_of(std::string_view weight) const;
  double scale_of(std::string_view weight) const;
  /// True if the weight of a linear layer has an adapter.
  bool adapts(std::string_view weight) const;
  /// Patterns of the parameters that train: adapters, and modules_to_save.
  std::vector<std::string> trained() const;
  /// True if an entry of a list of modules stands for the module.
  static bool names_module(std::string_view entry, std::string_view module);
};

/// Name of a module: the name of its parameter without the last part.
std::string_view module_of(std::string_view parameter);
/// Names of the factors of a weight: "MODULE.lora_A.weight".
std::string lora_a_name(std::string_view weight);
std::string lora_b_name(std::string_view weight);
/// Name of the change of a weight's magnitudes, (out): the magnitude of a row less the norm of W's row.
std::string lora_magnitude_name(std::string_view weight);

}  // namespace ltrain
