// Table of Megatron-LM's flags and recipe keys, for plan's translation in both directions and for
// docs/coming-from.md. Names and defaults: megatron/training/arguments.py of August 2026.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::exports {

enum class FlagKind : uint8_t {
  value,     ///< its argument is the key's value, in the same words or those of `words`
  on,        ///< its presence sets the key true
  off,       ///< its presence sets the key false
  combined,  ///< combined with other flags, or in another unit: to_megatron.cpp and from_megatron.cpp
  how,       ///< affects only speed or output: fusions, overlaps, logs; ignored
  left_out,  ///< concerns files and machines; must be set in the recipe by hand
  refused,   ///< changes the computation and has no key
};

struct MegatronFlag {
  std::string_view flag;
  FlagKind kind = FlagKind::value;
  int arguments = 1;          ///< -1: any number, up to the next flag
  std::string_view key;       ///< kind combined: key that it affects
  std::string_view standard;  ///< Megatron-LM's default value; only for `value` and `refused`
  std::string_view words;     ///< "alltoall=all_to_all ...": their word and ours
  std::string_view differs;
};

const std::vector<MegatronFlag>& megatron_flags();
const MegatronFlag* find_flag(std::string_view flag);
/// Megatron-LM's word for ours, and back. The word itself if the row has no words; "" if there is no
/// translation.
std::string word_of_megatron(const MegatronFlag& flag, const std::string& ours);
std::string word_of_recipe(const MegatronFlag& flag, const std::string& theirs);
/// Rows with keys as a Markdown table, for docs/coming-from.md.
std::string megatron_flags_markdown();

/// Megatron-LM's flags for a model family.
struct MegatronFamily {
  std::string_view architecture;
  bool rotary = true, rms_norm = true, gated = true, biases = false, qkv_bias = false, qk_norm = false,
       experts = false, latent = false, sigmoid = false;
};
const std::vector<MegatronFamily>& megatron_families();

}  // namespace ltrain::exports
