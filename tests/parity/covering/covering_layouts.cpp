#include "tests/parity/covering/covering_layouts.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace ltrain::test {

const char* const kBase =
    "model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 4, num_attention_heads: 4, "
    "max_position_embeddings: 16}\n"
    "data: {seq_length: 16}\n"
    "train: {global_batch_size: 16, train_steps: 2}\n";

const std::vector<Factor>& factors() {
  static const std::vector<Factor> all{
      {"data", {"1", "2", "4"}},
      {"tensor", {"1", "2", "2 with sequence", "4", "4 in 2d", "8 in 2.5d", "8 in 3d"}},
      {"schedule",
       {"none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev", "1f1b on 4"}},
      {"context", {"none", "p2p", "all_gather", "a2a", "a2a+p2p"}},
      {"ZeRO", {"0", "1", "2", "3", "3 that keeps weights"}},
      {"levels", {"one", "two"}},
      {"micro-batches", {"1", "2", "4"}},
      {"model",
       {"gpt2", "llama", "llama with 2 key-value heads", "moe", "MoE over 2 ranks",
        "olmoe with a bias, noise and GShard's random second expert, over 2 ranks", "olmo2",
        "smollm3 with a window", "phi3", "gemma2 with windows", "gemma3 with windows",
        "gpt_oss with windows, over 2 ranks", "deepseek_v3 that predicts a token more, over 2 ranks"}},
      {"tied", {"false", "true"}},
      {"dropout", {"0.0", "0.1"}},
      {"vocabulary", {"264", "257"}},  // 257 divides over no axis
      {"packing", {"false", "true"}},
      {"dispatch",
       {"all_to_all", "all_gather", "in two parts", "with a budget of rows", "in two parts with a budget"}}};
  return all;
}

namespace {

/// Indexed by level of the tensor factor.
constexpr const char* kTensorModes[] = {"1d", "1d", "1d", "1d", "2d", "2.5d", "3d"};

/// Indexed by level of the model factor.
constexpr const char* kArchitectures[] = {"gpt2",        "llama",   "llama",      "qwen3_moe", "qwen3_moe",
                                          "olmoe",       "olmo2",   "smollm3",    "phi3",      "gemma2",
                                          "gemma3_text", "gpt_oss", "deepseek_v3"};

}  // namespace

int at(const Row& row, At factor) { return row[static_cast<size_t>(factor)]; }

namespace {

const std::string& level_of(const Row& row, At factor) {
  const size_t f = static_cast<size_t>(factor);
  return factors()[f].levels[static_cast<size_t>(row[f])];
}
int number(const Row& row, At factor) { return std::atoi(level_of(row, factor).c_str()); }
int context_ranks(const Row& row) {
  return at(row, At::context) == 0 ? 1 : at(row, At::context) == 4 ? 4 : 2;
}
int stages(const Row& row) { return at(row, At::schedule) == 0 ? 1 : at(row, At::schedule) == 8 ? 4 : 2; }

}  // namespace

int world(const Row& row) {
  return number(row, At::data) * number(row, At::tensor) * stages(row) * context_ranks(row);
}

std::vector<std::string> settings(const Row& row) {
  const auto level = [&](At factor) { return level_of(row, factor); };
  const int samples = 16 / (number(row, At::data) * number(row, At::micros));
  std::vector<std::string> s{"parallel.data=" + level(At::data),
                             fmt::format("parallel.tensor={}", number(row, At::tensor)),
                             fmt::format("parallel.sequence_parallel={}", at(row, At::tensor) == 2),
                             std::string("parallel.tensor_mode=") + kTensorModes[at(row, At::tensor)],
                             fmt::format("parallel.zero_stage={}", number(row, At::zero)),
                             fmt::format("parallel.reshard_after_forward={}", at(row, At::zero) != 4),
                             fmt::format("train.micro_batch_size={}", samples),
                             std::string("model.architecture=") + kArchitectures[at(row, At::model)],
                             fmt::format("model.num_key_value_heads={}", at(row, At::model) == 2 ? 2 : 4)};
  const int model = at(row, At::model);
  const bool has_experts = (model >= 3 && model <= 5) || model >= 11;
  if (has_experts) {
    s.push_back("model.moe.num_experts=4");
    s.push_back("model.moe.top_k=2");
    s.push_back(fmt::format("parallel.expert={}", at(row, At::model) == 3 ? 1 : 2));
  }
  if (model == 7)
    for (const char* setting :
         {"sliding_window=5",
          "layer_types=[full_attention, sliding_attention, sliding_attention, full_attention]",
          "no_rope_layers=[1, 0, 1, 0]"})
      s.push_back(std::string("model.") + setting);
  if (model == 8) s.push_back("model.partial_rotary_factor=0.5");
  if (model == 9)
    for (const char* setting : {"sliding_window=5", "query_pre_attn_scalar=2", "attn_logit_softcapping=0.7",
                                "final_logit_softcapping=0.9"})
      s.push_back(std::string("model.") + setting);
  if (model == 10)
    for (const char* setting : {"sliding_window=5", "query_pre_attn_scalar=2", "rope_local_base_freq=50"})
      s.push_back(std::string("model.") + setting);
  if (model == 11) s.push_back("model.sliding_window=5");
  if (model == 12)
    for (const char* setting :
         {"q_lora_rank=10", "kv_lora_rank=12", "qk_nope_head_dim=6", "qk_rope_head_dim=4", "v_head_dim=7",
          "moe.dense_layers=[0]", "moe.router.n_group=2", "moe.router.topk_group=1",
          "moe.router.bias_update_rate=0.05", "num_nextn_predict_layers=1", "mtp_loss_scaling_factor=0.7"})
      s.push_back(std::string("model.") + setting);
  if (model == 5)
    for (const char* setting :
         {"selection=gshard", "norm_topk_prob=true", "jitter_eps=0.1", "bias_update_rate=0.05"})
      s.push_back(std::string("model.moe.router.") + setting);
  if (level(At::tensor) == "8 in 2.5d") s.push_back("parallel.tensor_depth=2");
  if (stages(row) > 1) {
    s.push_back(fmt::format("parallel.pipeline={}", stages(row)));
    s.push_back("parallel.schedule=" +
                (at(row, At::schedule) == 8 ? std::string("1f1b") : level(At::schedule)));
  }
  if (context_ranks(row) > 1) {
    s.push_back(fmt::format("parallel.context={}", context_ranks(row)));
    s.push_back("parallel.context_comm=" + level(At::context));
  }
  if (at(row, At::levels) == 1)
    s.push_back(fmt::format("parallel.{}={}", at(row, At::zero) ? "shard_group" : "hierarchical_reduction",
                            number(row, At::data) * context_ranks(row) / 2));
  if (row.size() <= kBound) return s;
  // Only rows without overlapped micro-batches; rows with more of them have those.
  if (at(row, At::tensor) >= 1 && at(row, At::tensor) <= 3 && number(row, At::micros) == 1)
    s.push_back("parallel.async_tensor_parallel=on");
  s.push_back("model.tie_word_embeddings=" + level(At::tied));
  for (const char* key : {"embd_pdrop", "attn_pdrop", "resid_pdrop"})
    s.push_back(fmt::format("model.{}={}", key, level(At::dropout)));
  s.push_back("model.vocab_size=" + level(At::vocab));
  s.push_back("data.reset_attention_mask=" + level(At::packing));
  s.push_back("data.reset_position_ids=" + level(At::packing));
  if (at(row, At::dispatch) == 1) s.push_back("parallel.expert_dispatch=all_gather");
  const int dispatch = at(row, At::dispatch);
  if (dispatch == 2 || dispatch == 4) s.push_back("parallel.expert_chunks=2");
  if (dispatch >= 3 && has_experts) s.push_back("model.moe.row_budget=1");
  return s;
}

Recipe recipe_of(const Row& row) { return resolve(parse_recipe(kBase, "row", settings(row)), world(row)); }

namespace {

bool accepted(const Row& row) {
  if (world(row) > kMostRanks) return false;
  try {
    recipe_of(row);
    return true;
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return false;
  }
}

}  // namespace

const std::vector<Row>& allowed() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> found{{}};
    for (size_t f = 0; f < kBound; ++f) {
      std::vector<Row> longer;
      for (const Row& row : found)
        for (int l = 0; l < static_cast<int>(factors()[f].levels.size()); ++l) {
          longer.push_back(row);
          longer.back().push_back(l);
        }
      found = std::move(longer);
    }
    std::erase_if(found, [](const Row& row) { return !accepted(row); });
    return found;
  }();
  return rows;
}

const char* const kArrayFile = LTRAIN_SOURCE_DIR "/tests/parity/covering/covering_rows.txt";

const std::vector<Row>& array() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> read;
    std::ifstream in(kArrayFile);
    for (std::string line; std::getline(in, line);) {
      std::istringstream levels(line);
      Row& row = read.emplace_back();
      for (int l; levels >> l;) row.push_back(l);
      REQUIRE(row.size() == factors().size());
      for (size_t f = 0; f < row.size(); ++f)
        REQUIRE((row[f] >= 0 && row[f] < static_cast<int>(factors()[f].levels.size())));
    }
    REQUIRE(!read.empty());
    return read;
  }();
  return rows;
}

std::string text(const Row& row) {
  std::string s;
  for (size_t f = 0; f < row.size(); ++f)
    s += fmt::format("{}{} {}", s.empty() ? "" : ", ", factors()[f].name, factors()[f].levels[row[f]]);
  return s;
}

}  // namespace ltrain::test
