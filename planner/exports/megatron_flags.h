// The one table of Megatron-LM's flags and the keys of recipes: both directions of plan's translation and the
// page docs/coming-from.md are made of it. Names and defaults: megatron/training/arguments.py of August 2026.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::exports {

enum class FlagKind : uint8_t {
  value,     ///< what follows is the key's value, in the same words or those of `words`
  on,        ///< its presence sets the key true
  off,       ///< its presence sets the key false
  combined,  ///< with other flags or another unit: to_megatron.cpp and from_megatron.cpp
  how,       ///< changes how, not what: fusions, overlaps, logs. Read and passed over
  left_out,  ///< of files and machines: has to be set in the recipe by hand
  refused,   ///< changes what is computed, and no key does that
};

struct MegatronFlag {
  std::string_view flag;
  FlagKind kind = FlagKind::value;
  int arguments = 1;          ///< -1: any number, up to the next flag
  std::string_view key;       ///< of kind combined: what it takes part in
  std::string_view standard;  ///< Megatron-LM's default where it is a value; of `value` and `refused` alone
  std::string_view words;     ///< "alltoall=all_to_all ...": theirs and ours
  std::string_view differs;
};

const std::vector<MegatronFlag>& megatron_flags();
const MegatronFlag* find_flag(std::string_view flag);
/// Their word for ours, and back; the word itself where the row has no words; "" where there is none.
std::string word_of_megatron(const MegatronFlag& flag, const std::string& ours);
std::string word_of_recipe(const MegatronFlag& flag, const std::string& theirs);
/// The rows with keys as a table of Markdown, for docs/coming-from.md.
std::string megatron_flags_markdown();

/// How a family of models is said in Megatron-LM's flags.
struct MegatronFamily {
  std::string_view architecture;
  bool rotary = true, rms_norm = true, gated = true, biases = false, qkv_bias = false, qk_norm = false,
       experts = false, latent = false, sigmoid = false;
};
const std::vector<MegatronFamily>& megatron_families();

}  // namespace ltrain::exports
