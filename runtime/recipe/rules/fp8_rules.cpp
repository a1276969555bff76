// Rules of FP8 matmuls.
#include "runtime/recipe/rules/fp8_rules.h"

#include "models/decoder/decoder.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain {
namespace recipe {
namespace {

int64_t next_multiple(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

/// Columns of the output layer on a rank, padding included.
int64_t output_width(const Recipe& r) {
  return (r.model.vocab_size + r.parallel.tensor - 1) / r.parallel.tensor;
}

/// Widths on a rank that must be whole FP8 blocks: name and number of columns.
std::vector<std::pair<std::string, int64_t>> cut_widths(const Recipe& r) {
  const int64_t t = r.parallel.tensor;
  const ModelConfig& m = r.model;
  std::vector<std::pair<std::string, int64_t>> out{
      {"model.num_attention_heads * model.head_dim", m.num_attention_heads * m.head_dim / t},
      {"model.num_key_value_heads * model.head_dim", m.num_key_value_heads * m.head_dim / t}};
  bool dense = false, experts = false;
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) (m.has_experts(i) ? experts : dense) = true;
  if (dense) out.insert(out.begin(), {"model.intermediate_size", m.intermediate_size / t});
  if (experts && !experts_apart(r))
    out.push_back({"model.moe.intermediate_size", m.moe.intermediate_size / t});
  if (experts && m.moe.shared_experts > 0)
    out.push_back({"model.moe.shared_experts * model.moe.intermediate_size",
                   m.moe.shared_experts * m.moe.intermediate_size / t});
  if (r.fp8.output_layer) out.push_back({"model.vocab_size", output_width(r)});
  return out;
}

/// Refuses layouts that would quantize other token rows together. The token rows of an expert are one
/// operand, and scales or blocks cover the rows of one rank.
void expert_rules(const Recipe& r, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  if (r.model.moe.num_experts == 0 || r.fp8.recipe == Fp8Recipe::delayed) return;
  if (p.expert > 1)
    broken("fp8.recipe",
           fmt::format("with parallel.expert = {} an expert has rows of several micro-batches, and would be "
                       "rounded by all of them; nearest valid value: delayed",
                       p.expert),
           {"parallel.expert", "model.moe.num_experts"});
  else if (r.fp8.recipe == Fp8Recipe::blockwise && p.context > 1)
    broken("fp8.recipe",
           fmt::format("with parallel.context = {} blocks of an expert's rows would be other rows than on "
                       "one rank; nearest valid value: delayed",
                       p.context),
           {"parallel.context", "model.moe.num_experts"});
}

void output_layer_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.fp8.output_layer) return;
  const int64_t rows = r.train.logits_chunk_size, multiple = Head::fp8_chunk_multiple(r.fp8);
  if (rows % multiple != 0)
    broken("train.logits_chunk_size",
           fmt::format("with fp8.output_layer and fp8.recipe: {} must be a multiple of {}; nearest valid "
                       "value: {}",
                       r.fp8.recipe, multiple, next_multiple(rows, multiple)),
           {"fp8.output_layer", "fp8.recipe"});
  if (r.fp8.recipe == Fp8Recipe::tensorwise && r.parallel.context > 1)
    broken("fp8.output_layer",
           fmt::format("with fp8.recipe: tensorwise a chunk of logits is rounded by its own largest "
                       "magnitudes, and with parallel.context = {} chunks have other tokens than on one "
                       "rank; nearest valid value: false, or fp8.recipe: delayed",
                       r.parallel.context),
           {"fp8.recipe", "parallel.context"});
}

}  // namespace

void fp8_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.phases.empty() && r.cuda_graphs == OverlapChoice::on)
    broken(
        "cuda_graphs",
        "repeats the work of the first steps, and precision changes with the step; nearest valid value: off",
        {"precision"});
  if (!computes_in(r, Precision::fp8)) return;
  const Parallel& p = r.parallel;
  const char* key = "precision";
  expert_rules(r, broken);
  output_layer_rules(r, broken);
  if (r.model.traits().latent_attention)
    broken(key,
           fmt::format("attention of {} through latents has no products in FP8; nearest valid value: bf16",
                       r.model.family->name),
           {"model.architecture"});
  if (p.tensor > 1 && p.tensor_mode != TensorModeChoice::one_d)
    broken(key,
           fmt::format("parallel.tensor_mode: {} adds up products of blocks that ranks round apart; nearest "
                       "valid value: bf16, or parallel.tensor_mode: 1d",
                       p.tensor_mode),
           {"parallel.tensor_mode", "parallel.tensor"});
  if (r.fp8.first_layers + r.fp8.last_layers >= r.model.num_hidden_layers)
    broken("fp8.first_layers_bf16",
           fmt::format("with fp8.last_layers_bf16 = {} leaves none of model.num_hidden_layers = {}; nearest "
                       "valid value: {}",
                       r.fp8.last_layers, r.model.num_hidden_layers,
                       std::max<int64_t>(0, r.model.num_hidden_layers - r.fp8.last_layers - 1)),
           {"fp8.last_layers_bf16", "model.num_hidden_layers"});
  if (p.tensor_mode == TensorModeChoice::one_d && p.tensor > r.model.num_key_value_heads)
    broken(key,
           fmt::format("with parallel.tensor = {} ranks share the model's {} key-value heads, and would "
                       "round parts of one gradient apart; nearest valid value: bf16, or parallel.tensor: {}",
                       p.tensor, r.model.num_key_value_heads, r.model.num_key_value_heads),
           {"parallel.tensor", "model.num_key_value_heads"});
  if (r.fp8.recipe != Fp8Recipe::blockwise) return;
  if (p.tensor > 1)
    for (const auto& [name, width] : cut_widths(r))
      if (width % kFp8Block != 0)
        broken("fp8.recipe",
               fmt::format("blocks of {} elements must not cross what parallel.tensor = {} cuts, and a rank "
                           "has {} of {}; nearest valid value: delayed",
                           kFp8Block, p.tensor, width, name),
               {"parallel.tensor"});
  if (p.context > 1 && r.data.seq_length % (2 * p.context * kFp8Block) != 0)
    broken("fp8.recipe",
           fmt::format("blocks of {} tokens must not cross what parallel.context = {} cuts: data.seq_length "
                       "must be a multiple of {}; nearest valid value: delayed",
                       kFp8Block, p.context, 2 * p.context * kFp8Block),
           {"parallel.context", "data.seq_length"});
}

}  // namespace recipe

void check_fp8(const Recipe& r) {
  if (!computes_in(r, Precision::fp8)) return;
  const auto at = [&](const char* key) {
    return r.origins ? r.origins->place(key).text() : std::string("recipe");
  };
  const GroupSet alone;
  ParameterStore store;
  Decoder decoder(r.model, store, alone.groups(), {});
  for (const std::string& pattern : r.fp8.keep) {
    bool found = false;
    for (int id = 0; id < store.count(); ++id) found = found || name_matches(pattern, store.spec(id).name);
    if (!found)
      fail(ExitCode::usage,
           "{}: fp8.keep: {} matches no parameter; names are such as {} and {}, and * stands for any "
           "characters",
           at("fp8.keep"), pattern, store.spec(0).name, store.spec(store.count() / 2).name);
  }
  if (decoder.quantize_operands(store, r.fp8).empty())
    fail(ExitCode::usage,
         "{}: fp8.keep: leaves no linear layer to round; nearest valid value: precision: bf16",
         at("fp8.keep"));
  const std::string& output = store.spec(decoder.head().weight()).name;
  if (r.fp8.output_layer && keeps_type(r.fp8, output))
    fail(ExitCode::usage,
         "{}: fp8.output_layer = true: fp8.keep leaves its weight, {}, in bf16; nearest valid value: false",
         at("fp8.output_layer"), output);
  // Blockwise matmuls use ltrain's kernels, which accept any width.
  if (device_of(r) != DeviceKind::cuda || r.fp8.recipe == Fp8Recipe::blockwise) return;
  const int64_t t = r.parallel.tensor, kv = std::max<int64_t>(1, r.model.num_key_value_heads / t);
  const MoeConfig& m = r.model.moe;
  const int64_t expert = m.intermediate_size / (recipe::experts_apart(r) ? 1 : t);
  for (const auto& [what, n] :
       {std::pair{"model.hidden_size", r.model.hidden_size},
        {"model.intermediate_size over parallel.tensor", r.model.intermediate_size / t},
        {"model.moe.intermediate_size of a rank", m.num_experts > 0 ? expert : 0},
        {"model.moe.shared_experts * model.moe.intermediate_size over parallel.tensor",
         m.num_experts > 0 ? m.shared_experts * m.intermediate_size / t : 0},
        {"the width of heads over parallel.tensor", r.model.num_attention_heads / t * r.model.head_dim},
        {"the width of queries, keys and values over parallel.tensor",
         (r.model.num_attention_heads / t + 2 * kv) * r.model.head_dim},
        {"tokens of a micro-batch over parallel.context",
         r.train.micro_batch_size * r.data.seq_length / r.parallel.context}})
    if (n % kFp8Aligned != 0)
      fail(ExitCode::usage,
           "{}: precision = fp8: FP8 matmuls on a GPU need multiples of {}, and {} is {}; nearest valid "
           "value: bf16",
           at("precision"), kFp8Aligned, what, n);
  if (const int64_t n = recipe::output_width(r); r.fp8.output_layer && n % kFp8Aligned != 0)
    fail(ExitCode::usage,
         "{}: fp8.output_layer = true: FP8 matmuls on a GPU need multiples of {}, and model.vocab_size over "
         "parallel.tensor is {}; nearest valid value: false, or model.vocab_size: {}",
         at("fp8.output_layer"), kFp8Aligned, n, recipe::next_multiple(r.model.vocab_size, kFp8Aligned * t));
}

}  // namespace ltrain
