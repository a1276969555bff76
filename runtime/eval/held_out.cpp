#include "runtime/eval/held_out.h"

#include <algorithm>

#include "runtime/data/indexed_dataset.h"

namespace ltrain {

std::vector<EvalSet> eval_sets(const Recipe& recipe) {
  std::vector<EvalSet> sets;
  for (const DataSource& s : recipe.data.eval) {
    auto at = std::find_if(sets.begin(), sets.end(), [&](const EvalSet& set) { return set.name == s.name; });
    if (at == sets.end()) at = sets.insert(sets.end(), EvalSet{s.name, {}});
    at->sources.push_back({s.path, s.weight});
  }
  return sets;
}

bool has_sidecars(const EvalSet& set) {
  return std::all_of(set.sources.begin(), set.sources.end(),
                     [](const data::SourceSpec& s) { return data::inspect_source(s.path).has_sidecar; });
}

bool is_of_tokenizer(const EvalSet& set, const data::Tokenizer& tokenizer) {
  return std::all_of(set.sources.begin(), set.sources.end(), [&](const data::SourceSpec& s) {
    const data::SourceInfo info = data::inspect_source(s.path);
    return info.has_sidecar && info.tokenizer_hash == tokenizer.hash();
  });
}

std::vector<int32_t> text_bytes(const data::Tokenizer& tokenizer) {
  std::vector<int32_t> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < bytes.size(); ++id)
    bytes[id] = static_cast<int32_t>(tokenizer.text_bytes(static_cast<int32_t>(id)));
  return bytes;
}

}  // namespace ltrain
