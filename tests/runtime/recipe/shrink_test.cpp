// Recipes for a laptop in the shape of large ones: what is kept, how ranks are dropped, and that the result
// is a valid recipe.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "base/json/json.h"
#include "runtime/recipe/recipe.h"
#include "runtime/recipe/shrink.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

Recipe shrunk(const std::string& text, int64_t most = 8) {
  const Recipe large = parse_recipe(text, "large.yaml");
  return parse_recipe(text, "large.yaml", shrink_settings(large, most));
}

int64_t world(const Recipe& r) {
  return r.parallel.data * r.parallel.tensor * r.parallel.pipeline * r.parallel.context;
}

std::string axes(const Recipe& r) {
  const Parallel& p = r.parallel;
  return fmt::format("data {} tensor {} pipeline {} context {} expert {}", p.data, p.tensor, p.pipeline,
                     p.context, p.expert);
}

const std::string kLlama =
    "model: {architecture: llama, vocab_size: 128256, hidden_size: 8192, intermediate_size: 28672, "
    "num_hidden_layers: 80, num_attention_heads: 64, num_key_value_heads: 8}\n"
    "precision: bf16\ndata: {seq_length: 2048}\ntrain: {global_batch_size: 2048}\n";

}  // namespace

TEST_CASE("shrink keeps the kinds of layers of every family, and has few parameters") {
  for (const Family* family : families()) {
    const std::string name(family->name);
    INFO(name);
    const bool moe = parse_recipe("model: {architecture: " + name + "}", name).model.moe.num_experts > 0;
    std::string text = "model: {architecture: " + name +
                       ", hidden_size: 2048, num_hidden_layers: 48, num_attention_heads: 16";
    if (family->grouped_queries && !family->traits.latent_attention) text += ", num_key_value_heads: 4";
    if (moe) text += ", moe: {dense_layers: [0, 1]}";
    if (name == "gemma2" || name == "gemma3_text" || name == "gpt_oss") text += ", sliding_window: 512";
    text += "}\nparallel: {pipeline: 8}\ntrain: {global_batch_size: 64}\n";
    const Recipe large = parse_recipe(text, name), small = shrunk(text);
    CHECK(small.model.family == family);
    CHECK(small.model.moe.num_experts == (moe ? 4 : 0));
    CHECK(small.model.tie_word_embeddings == large.model.tie_word_embeddings);
    CHECK((small.model.num_key_value_heads < small.model.num_attention_heads) ==
          (large.model.num_key_value_heads < large.model.num_attention_heads));
    CHECK(small.model.num_hidden_layers % 2 == 0);
    CHECK(small.model.num_hidden_layers <= 8);
    const auto count = [](const ModelConfig& m, auto has) {
      bool yes = false, no = false;
      for (int64_t i = 0; i < m.num_hidden_layers; ++i) (has(m, i) ? yes : no) = true;
      return std::pair(yes, no);
    };
    const auto slides = [](const ModelConfig& m, int64_t i) { return m.window(i) > 0; };
    const auto rotates = [](const ModelConfig& m, int64_t i) { return m.rotates(i); };
    const auto experts = [](const ModelConfig& m, int64_t i) { return m.has_experts(i); };
    CHECK(count(small.model, slides) == count(large.model, slides));
    CHECK(count(small.model, rotates) == count(large.model, rotates));
    CHECK(count(small.model, experts) == count(large.model, experts));
    CHECK(small.model.hidden_size <= 128);
    CHECK(small.model.vocab_size == 257);
    validate(small, static_cast<int>(world(small)));
  }
}

TEST_CASE("shrink gives each axis two ranks, and drops axes until the ranks are few enough") {
  const std::string all = kLlama + "parallel: {tensor: 8, pipeline: 16, context: 4, data: 8}\n";
  CHECK(axes(shrunk(all, 16)) == "data 2 tensor 2 pipeline 2 context 2 expert 1");
  CHECK(axes(shrunk(all, 8)) == "data 1 tensor 2 pipeline 2 context 2 expert 1");
  CHECK(axes(shrunk(all, 4)) == "data 1 tensor 2 pipeline 2 context 1 expert 1");
  CHECK(axes(shrunk(all, 2)) == "data 1 tensor 1 pipeline 2 context 1 expert 1");
  CHECK(axes(shrunk(all, 1)) == "data 1 tensor 1 pipeline 1 context 1 expert 1");
  // Sharded states and experts need data-parallel ranks.
  const std::string zero =
      kLlama + "parallel: {tensor: 8, pipeline: 16, context: 4, zero_stage: 1, data: 8}\n";
  CHECK(axes(shrunk(zero, 8)) == "data 2 tensor 2 pipeline 2 context 1 expert 1");
  CHECK(axes(shrunk(zero, 2)) == "data 2 tensor 1 pipeline 1 context 1 expert 1");
  const std::string experts =
      "model: {architecture: mixtral, hidden_size: 4096, num_attention_heads: 32, num_key_value_heads: 8}\n"
      "parallel: {expert: 8, data: 16, tensor: 2, sequence_parallel: true, expert_tensor: 1}\ntrain: "
      "{global_batch_size: 64}\n";
  CHECK(axes(shrunk(experts, 8)) == "data 2 tensor 2 pipeline 1 context 1 expert 2");
  CHECK(axes(shrunk(experts, 2)) == "data 2 tensor 1 pipeline 1 context 1 expert 2");
  CHECK(axes(shrunk(experts, 1)) == "data 1 tensor 1 pipeline 1 context 1 expert 1");
}

TEST_CASE("shrink keeps a valid recipe for settings that depend on widths, steps and ranks") {
  const std::vector<std::string> texts{
      "parallel: {tensor: 4, pipeline: 4, virtual_pipeline: 5, schedule: interleaved, data: 2}\n",
      "parallel: {pipeline: 8, schedule: zbv, data: 2, zero_stage: 1}\n",
      "parallel: {pipeline: 8, schedule: auto, data: 2}\n",
      "parallel: {pipeline: 4, pipeline_layers: [18, 20, 20, 22], data: 2}\n",
      "parallel: {tensor: 16, tensor_mode: 2d, data: 1}\ntrain: {micro_batch_size: 16}\n",
      "parallel: {tensor: 8, tensor_mode: 2.5d, tensor_depth: 2, data: 1}\ntrain: {micro_batch_size: 16}\n",
      "parallel: {tensor: 8, tensor_mode: 3d, data: 1}\ntrain: {micro_batch_size: 16}\n",
      "parallel: {context: 8, context_comm: a2a, data: 2}\n",
      "parallel: {context: 8, context_comm: a2a+p2p, context_inner: 4, data: 2}\n",
      "parallel: {data: 64, zero_stage: 3, shard_group: 8}\n",
      "parallel: {data: 64, hierarchical_reduction: 8, grad_reduce_dtype: bf16}\n",
      "fp8: {first_layers_bf16: 4, last_layers_bf16: 4}\nprecision: fp8\n",
      "fp8: {recipe: blockwise}\nprecision: fp8\nparallel: {tensor: 4, context: 2, data: 1}\n",
      "fp8: {recipe: blockwise, output_layer: true}\nprecision: fp8\nparallel: {tensor: 4, data: 1}\n"
      "train: {logits_chunk_size: 1024}\nmodel: {vocab_size: 32768}\n",
      "precision: [{until_step: 1000, precision: fp8}, {precision: bf16}]\n",
      "offload: {optimizer: {device: cpu}}\ndevice: cuda\n",
      "recompute: {granularity: full, num_layers: 8}\n",
      "recompute: {granularity: auto, budget: 70GiB}\n",
      "recompute: {granularity: selective, tensors: {qkv: offload, mlp_hidden: recompute}}\n"
      "offload: {activations: {device: cpu}}\ndevice: cuda\n",
      "schedule: {lr_decay_style: WSD, lr_warmup_steps: 200, lr_wsd_decay_steps: 300}\n",
      "train: {batch_ramp: {start: 64, increment: 64, samples: 100000}, stop_step: 500}\n",
      "train: {train_tokens: 1000000000000}\n",
      "optimizer: {kind: onebit_adam, freeze_step: 500}\n",
      "optimizer: {kind: sophia}\n",
      "task: sft\nlora: {r: 16}\n",
      "task: dpo\n",
      "launch: {max_restarts: 5, restart_wait_seconds: 1, min_nodes: 2}\ntelemetry: {on_end: 'curl "
      "example'}\n",
  };
  for (const std::string& text : texts) {
    INFO(text);
    // Sections of `text` replace those of the common part, whose keys come as overrides.
    std::vector<std::string> common{"model.hidden_size=8192",      "model.intermediate_size=28672",
                                    "model.num_hidden_layers=80",  "model.num_attention_heads=64",
                                    "model.num_key_value_heads=8", "data.seq_length=2048",
                                    "train.global_batch_size=2048"};
    const Recipe large = parse_recipe(text, "large.yaml", common);
    for (const int64_t most : {8, 2, 1}) {
      const std::vector<std::string> settings = shrink_settings(large, most);
      std::vector<std::string> overrides = common;
      overrides.insert(overrides.end(), settings.begin(), settings.end());
      const Recipe small = parse_recipe(text, "large.yaml", overrides);
      CHECK(world(small) <= most);
      const Recipe resolved = resolve(small, static_cast<int>(world(small)));
      CHECK(device_of(resolved) == DeviceKind::cpu);
      CHECK(end_step(resolved) == 3);
      CHECK(small.precision == large.precision);
      CHECK(small.task == large.task);
      CHECK_FALSE(small.telemetry.on_end.has_value());
      CHECK(small.recompute.granularity == large.recompute.granularity);
      CHECK(small.phases.size() == large.phases.size());
    }
  }
}

TEST_CASE("shrink of a recipe with model.from has the family of the file, without its weights") {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/config.json")
      << R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,)"
      << R"( "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,)"
      << R"( "tie_word_embeddings": true, "max_position_embeddings": 40960})";
  std::ofstream(folder.path() + "/tokenizer.json") << "{}";
  const Recipe small = shrunk("model: {from: " + folder.path() + "}\n");
  CHECK(small.model.family->name == "qwen3");
  CHECK(small.model.tie_word_embeddings);
  CHECK(small.model.num_hidden_layers == 2);
  CHECK(small.data.tokenizer.kind == &data::byte_tokenizer_kind());
  CHECK_FALSE(small.checkpoint.load_path.has_value());
}

TEST_CASE("shrink names each key that it changes, once") {
  const std::string text = kLlama + "parallel: {tensor: 8, data: 2}\n";
  const Recipe large = parse_recipe(text, "large.yaml");
  const std::vector<std::string> lines = changed_keys(large, shrunk(text));
  const auto has = [&](const std::string& line) { return std::count(lines.begin(), lines.end(), line); };
  CHECK(has("model.num_hidden_layers: 80 -> 2") == 1);
  CHECK(has("model.vocab_size: 128256 -> 257") == 1);
  CHECK(has("parallel.tensor: 8 -> 2") == 1);
  CHECK(has("device: auto -> cpu") == 1);
  for (const std::string& line : lines) {
    INFO(line);
    CHECK(line.find("parallel.data") == std::string::npos);  // unchanged
    CHECK(line.find("precision") == std::string::npos);
  }
  CHECK(changed_keys(large, large).empty());
}

TEST_CASE("made-up data of a shrunk recipe are JSON of the task") {
  for (const auto& [task, field] : {std::pair(Task::pretrain, "text"), std::pair(Task::sft, "messages"),
                                    std::pair(Task::dpo, "chosen")}) {
    std::istringstream lines(shrunk_data(task));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count)
      CHECK(nlohmann::json::parse(line).contains(field));
    CHECK(count == 400);
  }
}
