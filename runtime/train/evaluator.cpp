#include "runtime/train/evaluator.h"

#include <fmt/format.h>

#include <cmath>

#include "base/fault_point.h"
#include "kernels/tensor/timeline.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

Evaluator::Evaluator(const Recipe& recipe, const Mesh& mesh) : recipe_(recipe), mesh_(mesh) {
  if (recipe.train.eval_interval == 0) return;
  for (const EvalSet& set : eval_sets(recipe)) sets_.push_back({set, false, nullptr});
  std::unique_ptr<data::Tokenizer> tokenizer;
  for (Set& set : sets_) {
    if (!has_sidecars(set)) continue;
    if (!tokenizer) tokenizer = load_tokenizer(recipe);
    set.in_bytes = is_of_tokenizer(set, *tokenizer);
  }
  if (tokenizer) text_bytes_ = text_bytes(*tokenizer);
}

void Evaluator::find_references(const ReferencedRun& run) {
  int number = 0;
  for (Set& set : sets_)
    set.references = reference_sums(run, eval_loader_options(recipe_, mesh_, set.sources), ++number);
}

std::optional<EvalResult> Evaluator::pass(const Set& set, TrainProgram& program,
                                          const TrainProgram::AskStop& ask_stop, double divergence) const {
  data::LoaderOptions options = eval_loader_options(recipe_, mesh_, set.sources);
  options.references = set.references;
  if (options.packing.on()) options.packing.eod = end_of_document(recipe_);
  data::BatchLoader loader(options, 0);
  int64_t left = micro_batches_per_evaluation(recipe_);
  HostBatch batch;
  const auto next = [&]() -> const HostBatch* {
    if (left-- <= 0) return nullptr;
    LT_FAULT_POINT("eval.batch");
    loader.next(batch);
    return &batch;
  };
  return program.evaluate(next, ask_stop, set.in_bytes ? text_bytes_ : std::vector<int32_t>{}, divergence);
}

std::optional<std::vector<SetResult>> Evaluator::evaluate(TrainProgram& program,
                                                          const TrainProgram::AskStop& ask_stop) const {
  std::vector<SetResult> results;
  for (const Set& set : sets_) {
    const double begin = steady_seconds();
    auto result = pass(set, program, ask_stop, 0);
    // The divergence is a mean over the set, which the losses need.
    if (result && trains_preferences(recipe_.task) && recipe_.preference.estimates_divergence())
      result = pass(set, program, ask_stop, result->divergence);
    if (!result) return {};
    results.push_back({set.name, *result, steady_seconds() - begin});
  }
  return results;
}

std::string eval_line(int64_t step, const SetResult& set) {
  const EvalResult& r = set.result;
  std::string more = fmt::format(", perplexity {:.2f}", std::exp(r.loss));
  if (r.bytes > 0) more += fmt::format(", {:.4f} bits per byte", r.bits_per_byte());
  if (const auto& p = r.preference) {
    // Labelled texts have no partner to be compared with.
    more = p->desirable > 0 ? "" : fmt::format(", accuracy {:.3f}", p->accuracy);
    more += fmt::format(", margin {:.4f}", p->chosen_reward - p->rejected_reward);
  }
  return fmt::format("eval{} at step {}: loss {:.4f}{} ({:.1f} s)", set.name.empty() ? "" : " of " + set.name,
                     step, r.loss, more, set.seconds);
}

}  // namespace ltrain
