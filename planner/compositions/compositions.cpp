#include "planner/compositions/compositions.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/check/check_job.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain {
namespace {

/// Choices of a key, including those that this build lacks, because their refusal is part of the table.
std::vector<std::string> choices_of(const char* path) {
  const recipe::Key* key = recipe::find_key(path);
  LT_CHECK(key, "expected a schema row for the key {}, got none", path);
  std::vector<std::string> all = key->choices;
  all.insert(all.end(), key->unbuilt.begin(), key->unbuilt.end());
  return all;
}

/// "parallel.data=2" -> "parallel.data".
std::string key_of(const std::string& override_text) {
  return override_text.substr(0, override_text.find('='));
}

/// Returns why the recipe is refused, by the check of `run`; "": accepted.
std::string refusal(const std::vector<std::string>& overrides) {
  try {
    const Recipe r = parse_recipe(composition_base(), "probe", overrides);
    JobChecks checks;
    checks.part = JobChecks::Part::recipe;
    check_job(r, job_size(r, {}, 0), checks);
    return "";
  } catch (const Error& e) {
    std::string text = e.what(), out;
    // Remove "probe: 2 problems" and the location of each problem.
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      std::string line = text.substr(at, end - at);
      at = end + 1;
      if (line.starts_with("probe: ")) continue;
      const size_t place = line.find("command line: ");
      if (place != std::string::npos) line = line.substr(place + 14);
      out += (out.empty() ? "" : "; ") + line;
    }
    return out;
  }
}

/// Joins two lists of overrides. Returns false if they set one key to two values. Of two numbers of data or
/// expert ranks the larger one serves both.
bool join(const std::vector<std::string>& a, const std::vector<std::string>& b,
          std::vector<std::string>& out) {
  out = a;
  for (const std::string& o : b) {
    const auto same = std::find_if(out.begin(), out.end(),
                                   [&](const std::string& other) { return key_of(other) == key_of(o); });
    if (same == out.end()) {
      out.push_back(o);
    } else if (key_of(o) == "parallel.data" || key_of(o) == "parallel.expert") {
      *same = std::max(*same, o);  // numbers of one digit
    } else if (*same != o) {
      return false;
    }
  }
  return true;
}

std::string words(const std::vector<std::string>& overrides) {
  std::string s;
  for (const std::string& o : overrides) s += (s.empty() ? "" : " ") + o;
  return s;
}

}  // namespace

const std::string& composition_base() {
  static const std::string text =
      "model: {architecture: llama, vocab_size: 257, hidden_size: 32, intermediate_size: 64, "
      "num_hidden_layers: 4, num_attention_heads: 4, max_position_embeddings: 32}\n"
      "data: {train: [text], seq_length: 32}\n"
      "train: {micro_batch_size: 1, global_batch_size: 16, train_steps: 3}\n"
      "parallel: {data: 1}\n"
      "device: cpu\n";
  return text;
}

Recipe composition_recipe(const std::vector<std::string>& overrides) {
  const Recipe r = parse_recipe(composition_base(), "probe", overrides);
  return resolve(r, static_cast<int>(ranks(r)));
}

namespace {

/// Adds tensor parallelism in two and three dims.
void add_tensor_modes(std::vector<CompositionFeature>& all) {
  for (const auto& [mode, ranks] : {std::pair<std::string, int>{"2d", 4}, {"2.5d", 8}, {"3d", 8}}) {
    CompositionFeature f{"tensor, " + mode,
                         {fmt::format("parallel.tensor={}", ranks), "parallel.tensor_mode=" + mode,
                          fmt::format("train.micro_batch_size={}", mode == "2d" ? 2 : 4)}};
    if (mode == "2.5d") f.overrides.push_back("parallel.tensor_depth=2");
    all.push_back(std::move(f));
  }
  // Grids with sides of three and four, so that not all ranks are at an end of their group.
  const auto grid = [&](const std::string& mode, int ranks, int rows, int depth) {
    const int sequences = rows * depth;
    CompositionFeature f{fmt::format("tensor, {} of {}", mode, ranks),
                         {fmt::format("parallel.tensor={}", ranks), "parallel.tensor_mode=" + mode,
                          fmt::format("train.micro_batch_size={}", sequences),
                          fmt::format("train.global_batch_size={}", 4 * sequences)}};
    if (depth > 1) f.overrides.push_back(fmt::format("parallel.tensor_depth={}", depth));
    if (rows == 3)  // hidden units and heads divisible by three
      f.overrides.insert(f.overrides.end(), {"model.hidden_size=36", "model.intermediate_size=72",
                                             "model.num_attention_heads=6"});
    all.push_back(std::move(f));
  };
  grid("2d", 9, 3, 1);
  grid("2d", 16, 4, 1);
  grid("2.5d", 18, 3, 2);
}

/// Adds every schedule of a pipeline, and every communication of context parallelism.
void add_schedules_and_context(std::vector<CompositionFeature>& all) {
  for (const std::string& s : choices_of("parallel.schedule"))
    all.push_back({"pipeline, " + s, {"parallel.pipeline=2", "parallel.schedule=" + s}});
  for (const std::string& c : choices_of("parallel.context_comm"))
    all.push_back(
        {"context, " + c,
         {c == "a2a+p2p" ? "parallel.context=4" : "parallel.context=2", "parallel.context_comm=" + c}});
}

void add_expert_features(std::vector<CompositionFeature>& all) {
  const std::vector<std::string> two{"parallel.data=2", "parallel.expert=2", "model.moe.num_experts=4"};
  const std::vector<std::string> four{"parallel.data=4", "parallel.expert=4", "model.moe.num_experts=4"};
  all.push_back({"expert", two});
  for (const auto& [name, setting] :
       {std::pair<std::string, std::string>{"gathered", "parallel.expert_dispatch=all_gather"},
        {"in chunks", "parallel.expert_chunks=2"},
        {"on two levels", "parallel.hierarchical_all_to_all=2"},
        {"in slices", "model.moe.row_budget=1"},
        {"with copies", "parallel.shadow_experts=1"},
        {"with a capacity", "model.moe.capacity_factor=2"},
        {"expert choice", "model.moe.router.selection=expert_choice"},
        {"top-p", "model.moe.router.selection=top_p"},
        {"zero experts", "model.moe.zero_experts=4"}}) {
    all.push_back({"expert, " + name, name == "on two levels" ? four : two});
    all.back().overrides.push_back(setting);
  }
}

/// Adds every precision, recomputation, dtype of sums and optimizer.
void add_choices(std::vector<CompositionFeature>& all) {
  for (const std::string& p : choices_of("precision"))
    if (p != "no") all.push_back({p, {"precision=" + p}});
  for (const std::string& g : choices_of("recompute.granularity"))
    if (g == "selective") {
      all.push_back(
          {"recompute, " + g, {"recompute.granularity=" + g, "recompute.modules=[core_attn,layernorm]"}});
    } else if (g != "none") {
      all.push_back({"recompute, " + g, {"recompute.granularity=" + g}});
    }
  for (const std::string& d : choices_of("parallel.grad_reduce_dtype"))
    if (d != "fp32") all.push_back({"sums in " + d, {"parallel.grad_reduce_dtype=" + d}});
  for (const std::string& kind : choices_of("optimizer.kind"))
    if (kind != "adamw") all.push_back({kind, {"optimizer.kind=" + kind}});
}

/// Adds settings that are on or off: sparsity, adapters, losses, offload, parts of the model and data.
void add_switches(std::vector<CompositionFeature>& all) {
  all.push_back({"2:4 sparsity", {"sparsity.match=[\"*_proj.weight\"]", "sparsity.at_step=1"}});
  all.push_back(
      {"masks that move",
       {"sparsity.match=[\"*_proj.weight\"]", "sparsity.transposable=true", "sparsity.mask_interval=2"}});
  all.push_back(
      {"sparse gradients",
       {"sparsity.match=[\"*_proj.weight\"]", "sparsity.at_step=1", "sparsity.gradient_estimator=mvue"}});
  all.push_back({"quantized weights", {"quantization.weights=int4", "quantization.group_size=32"}});
  // Matches in every layer of every architecture here: self_attn of llama, attn of gpt2.
  all.push_back({"frozen parameters", {"optimizer.frozen=[\"*attn*\"]"}});
  all.push_back({"LoRA", {"lora.r=4"}});
  all.push_back({"LoRA, dropout", {"lora.r=4", "lora.dropout=0.1"}});
  all.push_back({"LoRA, experts",
                 {"lora.r=4", "lora.dropout=0.1", "model.moe.num_experts=4",
                  "lora.target_modules=[\"*.experts.*\"]", "lora.rank_pattern={\"*.1.*.experts.*\": 2}"}});
  all.push_back({"DoRA", {"lora.r=4", "lora.dora=true"}});
  all.push_back({"preference pairs", {"task=dpo"}});
  all.push_back({"labelled texts", {"task=kto"}});
  all.push_back({"reward model", {"task=reward"}});
  all.push_back({"z-loss", {"train.z_loss_coeff=0.01"}});
  all.push_back({"average of weights", {"train.ema_decay=0.9"}});
  all.push_back(
      {"growing batch",
       {"train.batch_ramp.start=8", "train.batch_ramp.increment=4", "train.batch_ramp.samples=64"}});
  all.push_back({"DiLoCo", {"parallel.data=4", "diloco.sites=2", "diloco.inner_steps=1"}});
  all.push_back({"CUDA graphs", {"device=cuda", "cuda_graphs=on"}});
  const auto to_files = [](const std::string& section) {  // for the base recipe's device: the CPU
    return std::vector<std::string>{"offload." + section + ".device=nvme", "offload." + section + ".path=."};
  };
  all.push_back({"offload, optimizer", to_files("optimizer")});
  all.push_back({"offload, experts with tokens", to_files("optimizer")});
  all.back().overrides.insert(all.back().overrides.end(),
                              {"offload.optimizer.skip_untouched_experts=true", "model.moe.num_experts=4"});
  all.push_back({"offload, weights", to_files("params")});
  all.back().overrides.insert(all.back().overrides.end(), {"parallel.data=2", "parallel.zero_stage=3"});
  all.push_back({"offload, activations", to_files("activations")});
  all.push_back({"compressed activations",
                 {"recompute.granularity=selective",
                  "recompute.tensors={attention_norm: int8, residual: int8, mlp_norm: fp8}"}});
  all.push_back({"gpt2", {"model.architecture=gpt2"}});
  all.push_back({"tied embeddings", {"model.tie_word_embeddings=true"}});
  all.push_back({"dropout", {"model.embd_pdrop=0.1", "model.attn_pdrop=0.1", "model.resid_pdrop=0.1"}});
  if (recipe::find_key("data.reset_attention_mask"))
    all.push_back({"packed documents", {"data.reset_attention_mask=true", "data.reset_position_ids=true"}});
}

}  // namespace

std::vector<CompositionFeature> composition_features() {
  std::vector<CompositionFeature> all{
      {"data", {"parallel.data=2"}},
      {"ZeRO-1", {"parallel.data=2", "parallel.zero_stage=1"}},
      {"ZeRO-2", {"parallel.data=2", "parallel.zero_stage=2"}},
      {"ZeRO-3", {"parallel.data=2", "parallel.zero_stage=3"}},
      {"ZeRO-3, weights kept",
       {"parallel.data=2", "parallel.zero_stage=3", "parallel.reshard_after_forward=false"}},
      {"ZeRO-2 and 3 by layer", {"parallel.data=2", "parallel.zero_stage=3", "parallel.zero_layers=1"}},
      {"two-level sum", {"parallel.data=4", "parallel.hierarchical_reduction=2"}},
      {"hybrid ZeRO-1", {"parallel.data=4", "parallel.zero_stage=1", "parallel.shard_group=2"}},
      {"hybrid ZeRO-2", {"parallel.data=4", "parallel.zero_stage=2", "parallel.shard_group=2"}},
      {"hybrid ZeRO-3", {"parallel.data=4", "parallel.zero_stage=3", "parallel.shard_group=2"}},
      {"tensor", {"parallel.tensor=2"}},
      {"tensor with sequence", {"parallel.tensor=2", "parallel.sequence_parallel=true"}},
  };
  add_tensor_modes(all);
  add_schedules_and_context(all);
  add_expert_features(all);
  add_choices(all);
  add_switches(all);
  return all;
}

std::vector<CompositionCell> compositions() {
  const std::vector<CompositionFeature> features = composition_features();
  std::vector<std::string> alone(features.size());
  std::vector<CompositionCell> cells;
  for (size_t a = 0; a < features.size(); ++a) alone[a] = refusal(features[a].overrides);
  for (size_t a = 0; a < features.size(); ++a)
    for (size_t b = a; b < features.size(); ++b) {
      CompositionCell cell;
      cell.a = a, cell.b = b;
      if (!join(features[a].overrides, features[b].overrides, cell.overrides)) {
        cell.state = CompositionCell::exclusive;
      } else {
        cell.reason = a == b              ? alone[a]
                      : !alone[a].empty() ? alone[a]
                      : !alone[b].empty() ? alone[b]
                                          : refusal(cell.overrides);
        if (!cell.reason.empty()) {
          cell.state = CompositionCell::refused;
          for (const size_t i : {a, b})
            if (a != b && alone[i].empty())
              cell.nearest += (cell.nearest.empty() ? "" : ", or ") + words(features[i].overrides);
          if (cell.nearest.empty()) cell.nearest = "without " + features[a].name;
        }
      }
      cells.push_back(std::move(cell));
    }
  return cells;
}

std::string compositions_text(const std::vector<CompositionCell>& cells) {
  const std::vector<CompositionFeature> features = composition_features();
  const size_t n = features.size();
  std::vector<std::string> marks(n, std::string(n, ' '));
  for (const CompositionCell& c : cells) marks[c.b][c.a] = "+-."[c.state];
  size_t width = 0;
  for (const CompositionFeature& f : features) width = std::max(width, f.name.size());
  std::string out =
      "+ combine   - refused (reasons below)   . two values of one setting   diagonal: the setting alone\n\n";
  out += fmt::format("{:>{}}", "", width + 4);
  for (size_t i = 0; i < n; ++i) out += fmt::format("{:>3}", i + 1);
  out += "\n";
  for (size_t i = 0; i < n; ++i) {
    out += fmt::format("{:<{}} {:>2} ", features[i].name, width, i + 1);
    for (size_t j = 0; j <= i; ++j) out += fmt::format("{:>3}", marks[i][j]);
    out += "\n";
  }
  // List settings that are refused alone once, then pairs of settings that work alone.
  std::string refused;
  std::vector<bool> broken(n);
  for (const CompositionCell& c : cells)
    if (c.a == c.b && c.state == CompositionCell::refused) {
      broken[c.a] = true;
      refused += fmt::format("  {}: {}\n", features[c.a].name, c.reason);
    }
  for (const CompositionCell& c : cells)
    if (c.a != c.b && c.state == CompositionCell::refused && !broken[c.a] && !broken[c.b])
      refused += fmt::format("  {} and {}: {}\n    works: {}\n", features[c.a].name, features[c.b].name,
                             c.reason, c.nearest);
  return out + (refused.empty() ? "" : "\nrefused\n" + refused);
}

std::string compositions_json(const std::vector<CompositionCell>& cells) {
  const std::vector<CompositionFeature> features = composition_features();
  nlohmann::ordered_json j{{"schema", "ltrain.compositions.v1"}, {"base", composition_base()}};
  for (const CompositionFeature& f : features)
    j["features"].push_back({{"name", f.name}, {"settings", f.overrides}});
  for (const CompositionCell& c : cells) {
    constexpr const char* kStates[] = {"supported", "refused", "exclusive"};
    nlohmann::ordered_json cell{
        {"a", features[c.a].name}, {"b", features[c.b].name}, {"state", kStates[c.state]}};
    if (c.state == CompositionCell::refused) cell["reason"] = c.reason, cell["nearest"] = c.nearest;
    j["cells"].push_back(std::move(cell));
  }
  return j.dump(1);
}

}  // namespace ltrain
