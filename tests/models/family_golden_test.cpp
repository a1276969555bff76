// Tiny models of each family against transformers' own code: logits, gradients of the first step, and the
// losses of twenty steps of AdamW. The files are written by scripts/golden/make-family-golden.py; the model
// is read from the config.json that transformers made its own from.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "tests/models/hf_golden.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Relative to the largest value of a tensor; losses are relative to themselves.
struct FamilyDifferences {
  double logits = 0, gradient = 0, loss = 0, mtp_loss = 0;
  std::string worst;  ///< bound of gradients
};

/// `tensor`: all of the file's tensor, of which `want` is a part. The gradient of a key's bias is zero where
/// positions are learned, and noise beside those of queries and values in one tensor.
double relative_to_tensor(const std::vector<double>& got, const std::vector<float>& want,
                          const std::vector<float>& tensor) {
  REQUIRE(got.size() == want.size());
  double largest = 0, difference = 0;
  for (const float v : tensor) largest = std::max(largest, std::abs(static_cast<double>(v)));
  for (size_t i = 0; i < want.size(); ++i) difference = std::max(difference, std::abs(got[i] - want[i]));
  REQUIRE(largest > 0);
  return difference / largest;
}

template <class T>
FamilyDifferences compare_family(const HfGolden& g, const ModelConfig& model, const char* precision) {
  ProgramOptions o;
  o.model = model;
  o.model.moe.bias_update_rate = 0;  // transformers has no rule that moves it
  o.precision = precision_policy(precision);
  o.bucket_elements = 3000;
  // transformers' loss for balance is over the whole batch.
  o.micro_batch = model.moe.num_experts > 0 ? kHfBatch : 1;
  o.seq_length = kHfSeq;
  o.accumulation = kHfBatch / o.micro_batch;
  o.clip_grad = 0;
  auto compute = make_inline_stream("compute");
  CpuArena arena(64 << 20);
  const GroupSet alone;
  TrainProgram program(o, {*compute, arena, alone.groups()});
  program.initialize();
  ParameterStore& store = program.parameters();
  int64_t weights = 0;
  for (const SafetensorsEntry& e : g.file.entries())
    weights += e.name.rfind("weight.", 0) == 0 && e.name != "weight.lm_head.weight";
  std::set<std::string> names;
  for (int id = 0; id < store.count(); ++id) names.insert(store.spec(id).name);
  if (model.family == g.model.family)  // a trait less may be a parameter less
    REQUIRE(static_cast<int64_t>(names.size()) == weights + (model.tie_word_embeddings ? 0 : 1));
  for (int id = 0; id < store.count(); ++id) {
    const auto w = part_of(store.spec(id), g.read<bf16>("weight." + store.spec(id).name));
    Tensor value = store.value(id);
    REQUIRE(value.elements() == static_cast<int64_t>(w.size()));
    for (size_t i = 0; i < w.size(); ++i) value.ptr<T>()[i] = static_cast<T>(static_cast<float>(w[i]));
  }
  for (const RegisteredBuffer& k : store.kept(false)) {
    const auto values = g.read<float>("buffer." + k.name);
    REQUIRE(k.tensor.elements() == static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), k.tensor.ptr<T>());
  }
  const auto tokens = g.read<int32_t>("tokens"), targets = g.read<int32_t>("targets");
  const auto row = [&](const std::vector<int32_t>& of, int64_t step, int64_t sample) {
    const auto first = of.begin() + (step * kHfBatch + sample) * kHfSeq;
    return std::vector<int32_t>(first, first + kHfSeq);
  };
  FamilyDifferences d;
  std::vector<double> logits;
  KeyValueCache cache = program.make_cache();
  for (int64_t sample = 0; sample < kHfBatch;
       ++sample) {  // token by token, beside the keys and values of those before
    cache.clear();
    cache.text_length = kHfSeq;  // longrope chooses its angles by this length
    for (const int32_t token : row(tokens, 0, sample)) {
      const auto next = program.extend({{&cache, {token}}});
      logits.insert(logits.end(), next[0].begin(), next[0].end());
    }
  }
  const auto wanted = g.read<float>("logits");
  d.logits = relative_to_tensor(logits, wanted, wanted);
  const auto losses = g.read<double>("loss");
  REQUIRE(losses.size() == kHfSteps);
  const int64_t modules = model.num_nextn_predict_layers;
  std::vector<double> mtp_losses(kHfSteps, 0.0);
  if (g.model.num_nextn_predict_layers > 0) mtp_losses = g.read<double>("mtp_loss");
  REQUIRE(losses.back() < 0.95 * losses.front());  // it learns, so the updates matter
  for (int64_t step = 0; step < kHfSteps; ++step) {
    std::vector<HostBatch> batches(static_cast<size_t>(o.accumulation));
    for (int64_t k = 0; k < kHfBatch; ++k) {
      HostBatch& b = batches[static_cast<size_t>(k / o.micro_batch)];
      const auto t = row(tokens, step, k), u = row(targets, step, k);
      b.tokens.insert(b.tokens.end(), t.begin(), t.end());
      b.targets.insert(b.targets.end(), u.begin(), u.end());
      b.sample_index.push_back(0);
    }
    for (HostBatch& b : batches)
      for (int64_t n = 1; n <= modules; ++n)
        for (size_t at = 0; at < b.tokens.size(); ++at) {
          const bool has = static_cast<int64_t>(at % kHfSeq) + n < kHfSeq;
          b.mtp_tokens.push_back(has ? b.tokens[at + static_cast<size_t>(n)] : 0);
          b.mtp_targets.push_back(has ? b.targets[at + static_cast<size_t>(n)] : -1);
        }
    OptimizerStep args;
    args.lr = g.number("lr");
    args.beta1 = g.number("beta1");
    args.beta2 = g.number("beta2");
    args.eps = g.number("eps");
    args.weight_decay = g.number("weight_decay");
    args.step = step + 1;
    const StepResult r = program.train_step(batches, args);
    d.loss = std::max(d.loss, std::abs(r.loss - losses[step]) / losses[step]);
    if (modules > 0)
      d.mtp_loss = std::max(d.mtp_loss, std::abs(r.mean("mtp_loss") - mtp_losses[step]) / mtp_losses[step]);
    if (step > 0) continue;
    for (int id = 0; id < store.count(); ++id) {
      const Tensor grad = store.grad(id);
      const std::vector<double> got(grad.ptr<T>(), grad.ptr<T>() + grad.elements());
      const auto tensor = g.read<float>("grad." + store.spec(id).name);
      const double difference = relative_to_tensor(got, part_of(store.spec(id), tensor), tensor);
      if (difference <= d.gradient) continue;
      d.gradient = difference;
      d.worst = store.spec(id).name;
    }
  }
  return d;
}

bool agrees(const FamilyDifferences& d) {
  return d.logits < 1e-5 && d.gradient < 1e-4 && d.loss < 1e-4 && d.mtp_loss < 1e-4;
}

const char* const kFixtures[] = {"llama",        "llama_dynamic",  "llama_linear",
                                 "llama_yarn",   "qwen3_yarn",     "gpt2_gelu",
                                 "llama_bias",   "qwen3_bias",     "olmo2_bias",
                                 "mistral",      "mistral_full",   "qwen2",
                                 "qwen2_window", "qwen3",          "olmo2",
                                 "smollm3",      "phi3",           "phi3_long",
                                 "phi3_short",   "mixtral",        "qwen3_moe",
                                 "olmoe",        "olmoe_clip",     "gemma2",
                                 "gemma2_plain", "gemma3_text",    "gemma3_text_linear",
                                 "gpt_oss",      "deepseek_v2",    "deepseek_v2_groups",
                                 "deepseek_v3",  "deepseek_v3_mtp"};

}  // namespace

TEST_CASE("every family has transformers' logits, gradients and losses of twenty steps") {
  for (const char* name : kFixtures) {
    const HfGolden g(std::string("family_") + name);
    const FamilyDifferences wide = compare_family<double>(g, g.model, "fp64"),
                            d = compare_family<float>(g, g.model, "fp32");
    INFO(name << " in fp64: logits " << wide.logits << ", gradient " << wide.gradient << " of " << wide.worst
              << ", loss " << wide.loss << ", of more tokens " << wide.mtp_loss);
    INFO("in fp32: logits " << d.logits << ", gradient " << d.gradient << " of " << d.worst << ", loss "
                            << d.loss);
    CHECK(wide.logits < 2e-7);  // the files hold logits and gradients as fp32
    CHECK(wide.gradient < 2e-7);
    CHECK(wide.loss < 1e-9);
    CHECK(wide.mtp_loss < 1e-9);
    CHECK(agrees(d));
  }
}

TEST_CASE("negative control: a family whose trait is another's does not agree with transformers") {
  const auto differs = [](const char* fixture, const std::function<void(ModelConfig&, Family&)>& change) {
    const HfGolden g(std::string("family_") + fixture);
    ModelConfig m = g.model;
    Family f = *m.family;
    change(m, f);
    m.family = &f;
    INFO(fixture);
    CHECK_FALSE(agrees(compare_family<double>(g, m, "fp64")));
  };
  differs("mistral", [](ModelConfig& m, Family&) { m.sliding_window = 6; });
  differs("mistral", [](ModelConfig& m, Family&) { m.sliding_window.reset(); });
  differs("qwen2_window", [](ModelConfig& m, Family&) { m.layer_types.clear(); });
  differs("smollm3", [](ModelConfig& m, Family&) { m.no_rope_layers = {1, 1, 0}; });
  differs("smollm3", [](ModelConfig& m, Family&) { m.no_rope_layers.clear(); });
  differs("olmo2", [](ModelConfig& m, Family& f) {
    f.traits.norm_placement = NormPlacement::before;  // the same tensors, elsewhere
  });
  differs("gemma2", [](ModelConfig& m, Family&) { m.attn_logit_softcapping.reset(); });
  differs("gemma2", [](ModelConfig& m, Family&) { m.final_logit_softcapping.reset(); });
  differs("gemma2", [](ModelConfig& m, Family&) { m.query_pre_attn_scalar = 0; });
  differs("gemma2", [](ModelConfig& m, Family&) { m.layer_types.clear(); });
  differs("gemma2", [](ModelConfig&, Family& f) { f.traits.scaled_embedding = false; });
  differs("gemma2", [](ModelConfig&, Family& f) { f.traits.norm_scales_by_one_more = false; });
  differs("gemma2", [](ModelConfig& m, Family&) { m.hidden_act = Activation::silu; });
  for (const char* exact : {"gpt2_gelu", "llama_bias"})
    differs(exact, [](ModelConfig& m, Family&) { m.hidden_act = Activation::gelu_tanh; });
  for (const char* biased : {"llama_bias", "qwen3_bias", "olmo2_bias"})
    differs(biased, [](ModelConfig& m, Family&) { m.attention_bias = false; });
  differs("gemma3_text", [](ModelConfig& m, Family&) { m.rope_local_base_freq = m.rope_theta; });
  differs("gemma3_text", [](ModelConfig& m, Family&) { std::swap(m.rope_local_base_freq, m.rope_theta); });
  differs("gemma3_text", [](ModelConfig&, Family& f) { f.traits.norm_scales_by_one_more = false; });
  differs("gemma3_text", [](ModelConfig& m, Family&) { m.query_pre_attn_scalar = 0; });
  differs("gemma3_text", [](ModelConfig& m, Family&) { m.layer_types.clear(); });
  differs("gemma3_text_linear", [](ModelConfig& m, Family&) { m.rope_scaling.type = RopeType::none; });
  differs("gemma3_text_linear", [](ModelConfig& m, Family&) { m.final_logit_softcapping.reset(); });
  differs("gemma3_text_linear", [](ModelConfig& m, Family&) { m.sliding_window = 4; });
  differs("gpt_oss", [](ModelConfig&, Family& f) { f.traits.feed_forward = FeedForward::swiglu; });
  differs("gpt_oss", [](ModelConfig& m, Family&) { m.sliding_window = 6; });
  differs("gpt_oss", [](ModelConfig& m, Family&) { m.rope_scaling.truncate = true; });
  differs("gpt_oss", [](ModelConfig& m, Family&) { m.moe.balance_coeff *= 2; });
  for (const auto without :
       {&ModelTraits::attention_sinks, &ModelTraits::router_bias, &ModelTraits::expert_bias})
    differs("gpt_oss", [=](ModelConfig&, Family& f) {
      f.traits.*without = false;
      if (!f.traits.attention_sinks) f.names.sinks.clear();
    });
  for (const char* latent : {"deepseek_v2", "deepseek_v2_groups", "deepseek_v3"})
    differs(latent, [](ModelConfig&, Family& f) { f.traits.interleaved_rotation = false; });
  differs("deepseek_v2", [](ModelConfig& m, Family&) { m.rope_scaling.mscale_all_dim.reset(); });
  differs("deepseek_v2", [](ModelConfig& m, Family&) { m.moe.norm_topk_prob = true; });
  differs("deepseek_v2", [](ModelConfig& m, Family&) { m.moe.routed_scaling_factor = 2; });
  differs("deepseek_v2_groups", [](ModelConfig& m, Family&) { m.moe.topk_group = m.moe.n_group; });
  differs("deepseek_v3", [](ModelConfig& m, Family&) { m.moe.n_group = m.moe.topk_group = 1; });
  differs("deepseek_v3", [](ModelConfig& m, Family&) { m.moe.score = RouterScore::softmax; });
  differs("deepseek_v3", [](ModelConfig&, Family& f) { f.traits.correction_bias = false; });
  differs("deepseek_v3_mtp", [](ModelConfig& m, Family&) { m.mtp_loss_scaling_factor *= 1.01; });
  differs("deepseek_v3_mtp", [](ModelConfig& m, Family&) { m.num_nextn_predict_layers = 1; });
  differs("deepseek_v3_mtp", [](ModelConfig& m, Family&) { m.num_nextn_predict_layers = 0; });
  differs("deepseek_v3_mtp", [](ModelConfig&, Family& f) {  // the halves of what is projected
    std::swap(f.names.mtp_embedding_norm, f.names.mtp_hidden_norm);
  });
  differs("qwen3", [](ModelConfig& m, Family&) { m.rope_theta *= 1.05; });
  differs("llama", [](ModelConfig& m, Family&) { m.rope_scaling.factor = 7; });
  // The angles that transformers uses for twice as many tokens: the base times (3 * 2 - 2)^(4 / 2).
  differs("llama_linear", [](ModelConfig& m, Family&) { m.rope_scaling.type = RopeType::none; });
  differs("llama_yarn", [](ModelConfig& m, Family&) { m.rope_scaling.truncate = true; });
  differs("llama_yarn", [](ModelConfig& m, Family&) { m.rope_scaling.mscale.reset(); });
  differs("qwen3_yarn", [](ModelConfig& m, Family&) { m.rope_scaling.attention_factor = 1.0; });
  differs("qwen3_yarn", [](ModelConfig& m, Family&) { m.rope_scaling.beta_fast = 1.0; });
  differs("phi3", [](ModelConfig& m, Family&) { m.sliding_window.reset(); });
  differs("phi3_long", [](ModelConfig& m, Family&) {
    m.rope_scaling.original_max_position_embeddings = 12;  // the short factors
  });
  differs("phi3_short", [](ModelConfig& m, Family&) { m.rope_scaling.short_factor[1] = 1.0; });
  differs("phi3_short", [](ModelConfig& m, Family&) { m.rope_scaling.attention_factor = 1.0; });
  differs("phi3_short", [](ModelConfig& m, Family&) {
    m.partial_rotary_factor = 1.0;
    m.rope_scaling.short_factor.push_back(1.0);
  });
  differs("mixtral", [](ModelConfig& m, Family&) { m.sliding_window.reset(); });
  differs("qwen3_moe", [](ModelConfig& m, Family&) { m.sliding_window.reset(); });
  differs("olmoe_clip", [](ModelConfig& m, Family&) { m.clip_qkv.reset(); });
  differs("olmoe_clip", [](ModelConfig& m, Family&) { m.clip_qkv = 0.51; });
  differs("olmoe", [](ModelConfig& m, Family&) { m.moe.balance_coeff *= 2; });
  differs("llama_dynamic", [](ModelConfig& m, Family&) { m.rope_theta *= 16; });
}
