// Recipes as flags of Megatron-LM, and back. Defaults there: megatron/training/arguments.py and
// transformer_config.py of commit d98e8a64 (August 2026), written out here once more.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "planner/exports/command_words.h"
#include "planner/exports/megatron.h"
#include "planner/exports/megatron_flags.h"
#include "runtime/recipe/schema/schema.h"
#include "tests/support/mutations.h"

using namespace ltrain;
using namespace ltrain::exports;
using Catch::Contains;

namespace {

const std::string kLlama =
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups "
    "8 "
    "--ffn-hidden-size 14336 --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope "
    "--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
    "--micro-batch-size 1 --global-batch-size 128 --train-iters 1000 --lr 3e-4 --bf16 ";
const std::string kVocabulary = "--vocab-size 128256 ";

std::string refusal(const std::string& line, int world = 0) {
  try {
    from_megatron(line, world);
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "accepted";
}

Recipe read(const std::string& line, int world = 0) {
  return parse_recipe(from_megatron(line, world).yaml, "imported");
}

/// Keys that the flags carry: of the model, the layout, the update and the schedule.
std::vector<std::string> settings(const Recipe& recipe) {
  std::vector<std::string> out;
  for (const recipe::Key& key : recipe::schema()) {
    const std::string top = key.path.substr(0, key.path.find('.'));
    for (const char* section :
         {"model", "parallel", "precision", "fp8", "optimizer", "schedule", "recompute", "train"})
      if (top == section && key.in_dump(recipe) && key.path.rfind("train.eval_", 0) != 0)
        out.push_back(key.path + " = " + key.write(key, recipe, false));
  }
  return out;
}

}  // namespace

TEST_CASE("a recipe written as Megatron-LM's flags and read again is the same where it can be said") {
  int same = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LTRAIN_SOURCE_DIR "/recipes")) {
    if (!entry.is_regular_file()) continue;
    INFO(entry.path());
    Recipe recipe = load_recipe(entry.path());
    const Exported written = to_megatron(recipe);
    INFO(written.text);
    Recipe back = read(written.text);
    back.parallel.data = recipe.parallel.data;  // flags of the launch
    if (!written.unsaid.empty()) continue;
    ++same;
    CHECK(settings(back) == settings(recipe));
  }
  CHECK(same >= 6);
}

TEST_CASE("what Megatron-LM has no flags for is named") {
  const auto unsaid = [](const std::vector<std::string>& overrides) {
    return to_megatron(load_recipe(LTRAIN_SOURCE_DIR "/recipes/pipeline.yaml", overrides)).unsaid;
  };
  CHECK(unsaid({}) == std::vector<std::string>{"parallel.schedule = zb-h1"});
  CHECK(unsaid({"parallel.schedule=1f1b"}).empty());
  CHECK(unsaid({"parallel.schedule=1f1b", "optimizer.kind=lamb", "train.ema_decay=0.99"}) ==
        std::vector<std::string>{"train.ema_decay = 0.99", "optimizer.kind = lamb"});
  CHECK_THROWS_WITH(
      unsaid({"model.architecture=gemma2", "parallel.schedule=1f1b"}),
      Contains("model.architecture = gemma2: this build writes no flags of Megatron-LM for it"));
}

TEST_CASE("Megatron-LM's defaults are taken where its command line is silent") {
  const Recipe r = read(kLlama + "--vocab-size 128256 --tensor-model-parallel-size 2");
  CHECK(r.model.family->name == "llama");
  CHECK(r.model.num_key_value_heads == 8);
  CHECK(r.model.vocab_size == 128256);  // 501 * 256
  CHECK(r.optimizer.adam_beta2 == 0.999);
  CHECK(r.optimizer.weight_decay == 0.01);
  CHECK(r.schedule.lr_decay_style == LrDecayStyle::linear);
  CHECK(r.model.attn_pdrop == 0.1);
  CHECK(r.model.resid_pdrop == 0.1);
  CHECK(r.precision == Precision::bf16);
  CHECK(r.parallel.zero_stage == 0);
  CHECK(read(kLlama + "--vocab-size 50000").model.vocab_size == 50048);
  const Recipe gpt = read(
      "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 32 "
      "--micro-batch-size 2 --train-samples 100 --lr 1e-3 --vocab-size 300 --hidden-dropout=0 "
      "--pipeline-model-parallel-size 2",
      8);
  CHECK(gpt.model.family->name == "gpt2");
  CHECK(gpt.model.intermediate_size == 256);
  CHECK(gpt.model.tie_word_embeddings);
  CHECK(gpt.train.global_batch_size == 8);
  CHECK(gpt.train.train_steps == 13);
  CHECK(gpt.model.resid_pdrop == 0);
}

TEST_CASE("flags of layouts and experts are read") {
  const Recipe r =
      read(kLlama +
           "--vocab-size 32000 --num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 0.02 "
           "--moe-token-dispatcher-type alltoall --expert-model-parallel-size 4 --use-megatron-fsdp "
           "--data-parallel-sharding-strategy optim_grads --recompute-activations "
           "--moe-layer-freq '([0]*1+[1]*31)'");
  CHECK(r.model.family->name == "mixtral");
  CHECK(r.model.moe.num_experts == 8);
  CHECK(r.model.moe.dense_layers == std::vector<int64_t>{0});
  CHECK(r.model.moe.balance == BalanceLoss::switch_loss);
  CHECK(r.model.moe.balance_coeff == 0.02);
  CHECK(r.parallel.expert == 4);
  CHECK(r.parallel.zero_stage == 2);
  CHECK(r.parallel.reshard_after_forward);
  const std::string fsdp2 = kLlama + "--vocab-size 32000 --use-torch-fsdp2 ";
  CHECK(read(fsdp2).parallel.sharding() == ShardingPolicy::zero(3));
  CHECK(read(fsdp2 + "--torch-fsdp2-no-reshard-after-forward").parallel.sharding() ==
        ShardingPolicy::zero(3, false));
  CHECK(r.recompute.modules == std::vector<RecomputeModule>{RecomputeModule::core_attn});
  const Recipe stages = read(kLlama +
                             "--vocab-size 32000 --pipeline-model-parallel-size 4 "
                             "--num-layers-per-virtual-pipeline-stage 4 --use-tp-pp-dp-mapping");
  CHECK(stages.parallel.virtual_pipeline == 2);
  CHECK(stages.parallel.schedule == "interleaved");
  CHECK(stages.parallel.order == "tp-cp-pp-dp");
}

TEST_CASE("latent attention and multi-token prediction are said in Megatron-LM's flags, and read") {
  const std::string line =
      "--num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16 --kv-channels 16 "
      "--seq-length 4096 --max-position-embeddings 163840 --position-embedding-type rope --normalization "
      "RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
      "--qk-layernorm --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 96 "
      "--qk-pos-emb-head-dim 32 --v-head-dim 64 --rotary-scaling-factor 40 --mscale 0.707 --mscale-all-dim "
      "0.707 --num-experts 64 --moe-ffn-hidden-size 1408 --moe-router-topk 6 --moe-layer-freq "
      "'([0]*1+[1]*26)' --moe-shared-expert-intermediate-size 2816 --moe-router-score-function sigmoid "
      "--moe-router-enable-expert-bias --moe-router-topk-scaling-factor 2.5 --moe-router-num-groups 8 "
      "--moe-router-group-topk 3 --moe-router-load-balancing-type none --mtp-num-layers 1 "
      "--mtp-loss-scaling-factor 0.3 --vocab-size 102400 --micro-batch-size 1 --global-batch-size 128 "
      "--train-iters 1000 --lr 3e-4 --bf16 ";
  const Recipe r = read(line);
  CHECK(r.model.family->name == "deepseek_v3");
  CHECK(r.model.latent.q_lora_rank == 1536);
  CHECK(r.model.latent.qk_nope_head_dim == 96);
  CHECK(r.model.latent.qk_rope_head_dim == 32);
  CHECK(r.model.latent.v_head_dim == 64);
  CHECK(r.model.head_dim == 128);
  CHECK(r.model.rope_scaling.type == RopeType::yarn);
  CHECK(r.model.rope_scaling.original_max_position_embeddings == 4096);
  CHECK(r.model.rope_scaling.mscale_all_dim == 0.707);
  CHECK(r.model.moe.shared_experts == 2);
  CHECK(r.model.moe.bias_update_rate == 0.001);
  CHECK(r.model.num_nextn_predict_layers == 1);
  CHECK(r.model.mtp_loss_scaling_factor == 0.3);
  const Exported written = to_megatron(r);
  INFO(written.text);
  CHECK(written.unsaid.empty());
  CHECK(settings(read(written.text)) == settings(r));
  for (const char* flag : {"--multi-latent-attention", "--mtp-num-layers 1", "--v-head-dim 64",
                           "--mtp-loss-scaling-factor 0.3", "--rotary-scaling-factor 40"})
    CHECK_THAT(written.text, Contains(flag));
  // Without them: what Megatron-LM takes.
  const Recipe plain = read(
      "--num-layers 2 --hidden-size 2048 --num-attention-heads 16 --seq-length 64 --max-position-embeddings "
      "64 "
      "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --qk-layernorm "
      "--multi-latent-attention --num-experts 8 --vocab-size 1024 --micro-batch-size 1 --global-batch-size 8 "
      "--train-iters 10 --lr 3e-4");
  CHECK(plain.model.family->name == "deepseek_v2");
  CHECK_FALSE(plain.model.latent.q_lora_rank);
  CHECK(plain.model.latent.kv_lora_rank == 32);
  CHECK(plain.model.latent.qk_nope_head_dim == 128);
  CHECK(plain.model.moe.shared_experts == 0);
  CHECK(plain.model.moe.bias_update_rate == 0);
  CHECK(plain.model.rope_scaling.type == RopeType::none);
  Recipe other = r;
  other.model.moe.topk_group = 2;
  other.model.norm_eps = 1e-5;
  CHECK(to_megatron(other).unsaid ==
        std::vector<std::string>{
            "norms of latents with an epsilon of 1e-06 beside model.rms_norm_eps: one is there",
            "groups of experts by the best 2 of each: there by the best 3"});
}

TEST_CASE("a flag that cannot be obeyed is refused by name") {
  CHECK_THAT(
      refusal(kLlama + "--tensor-parallel-size 2"),
      Contains("--tensor-parallel-size: unknown flag; nearest known one: --tensor-model-parallel-size"));
  CHECK_THAT(refusal(kLlama + "--mtp-hsm"), Contains("--mtp-hsm: changes what is"));
  CHECK_THAT(refusal(kLlama + "--multi-latent-attention"),
             Contains("with --multi-latent-attention: those, --qk-layernorm and --num-experts"));
  CHECK_THAT(refusal(kLlama + "--rope-type yarn"), Contains("--rope-type yarn: is of"));
  CHECK_THAT(refusal(kLlama + "--lr"), Contains("--lr: takes 1 value (got 0)"));
  CHECK_THAT(refusal(kLlama + "--optimizer soap"), Contains("--optimizer soap: no key of recipes does that"));
  CHECK_THAT(refusal(kLlama + "--data-path $DATA"), Contains("$DATA stands for what a shell knows"));
  CHECK_THAT(refusal("--num-layers 2"), Contains("--hidden-size: must be given"));
  CHECK_THAT(refusal(kLlama + "--rotary-percent 0.5 --vocab-size 8"),
             Contains("--rotary-percent: changes what is"));
  CHECK_THAT(refusal(kLlama + "--num-layers two"), Contains("num_hidden_layers") || Contains("--num-layers"));
}

TEST_CASE("paths and launchers of a command line are not settings") {
  const Imported i = from_megatron("torchrun --nproc-per-node 8 pretrain_gpt.py " + kLlama +
                                       "--vocab-size 32000 --data-path /data/a --use-mcore-models --swiglu",
                                   0);
  CHECK(i.notes == std::vector<std::string>{"--data-path is left out: set data.train"});
  CHECK_THAT(i.yaml, Catch::StartsWith("# --data-path is left out: set data.train\n"));
  CHECK(command_words("a 'b c' \"d\\\"\" \\\n e\\ f") == std::vector<std::string>{"a", "b c", "d\"", "e f"});
}

TEST_CASE("every row of the table of flags names a key that there is") {
  for (const MegatronFlag& f : megatron_flags())
    if (f.kind == FlagKind::value || f.kind == FlagKind::on || f.kind == FlagKind::off) {
      INFO(f.flag);
      CHECK(recipe::find_key(std::string(f.key)) != nullptr);
    }
}

TEST_CASE("the page of other trainers has the table of flags") {
  std::ifstream in(LTRAIN_SOURCE_DIR "/docs/coming-from.md");
  std::stringstream page;
  page << in.rdbuf();
  CHECK_THAT(page.str(), Contains(megatron_flags_markdown()));  // scripts/update-recipe-docs.sh
}

TEST_CASE("a flag with the value that it has without being given is accepted, though no key stands for it") {
  const std::string plain = from_megatron(kLlama + kVocabulary, 0).yaml;
  for (const char* flag : {"--rotary-percent 1.0", "--rotary-percent 1", "--softmax-type vanilla"}) {
    INFO(flag);
    CHECK(from_megatron(kLlama + kVocabulary + flag, 0).yaml == plain);
  }
  CHECK_THAT(refusal(kLlama + kVocabulary + "--softmax-type off-by-one"),
             Contains("--softmax-type: changes"));
}

TEST_CASE("the vocabulary of a Megatron-LM command line is its own, its tokenizer's, or asked for") {
  CHECK_THAT(refusal(kLlama), Contains("--vocab-size: must be given, or --padded-vocab-size"));
  CHECK_THAT(refusal(kLlama + "--tokenizer-type HuggingFaceTokenizer --tokenizer-model a"),
             Contains("--vocab-size: must be given"));
  CHECK(read(kLlama + "--tokenizer-type GPT2BPETokenizer").model.vocab_size == 50304);  // padded to 128
  CHECK(read(kLlama + "--padded-vocab-size 128256").model.vocab_size == 128256);
  CHECK(read(kLlama + "--vocab-size 128001 --tensor-model-parallel-size 2").model.vocab_size == 128256);
}

TEST_CASE("numbers of flags that are left out stand in what is to be set by hand") {
  const Imported i =
      from_megatron(kLlama + kVocabulary + "--eval-interval 500 --exit-interval 2000 --save out", 0);
  CHECK(i.notes == std::vector<std::string>{"--eval-interval is left out: set train.eval_interval: 500",
                                            "--exit-interval is left out: set train.stop_step: 2000",
                                            "--save is left out: set output_dir"});
}

TEST_CASE("a changed command line of Megatron-LM is read or refused", "[megatron]") {
  const test::HostileReader reader{
      "command line of Megatron-LM",
      {"torchrun --nproc-per-node 8 pretrain_gpt.py " + kLlama + kVocabulary, kLlama + kVocabulary},
      [](const std::string& t) { parse_recipe(from_megatron(t, 0).yaml, "imported"); }};
  for (const std::string& good : reader.good) CHECK_NOTHROW(reader.read(good));
  test::Random random = test::fuzz_random(1);
  feed_mutants(reader, test::fuzz_executions(1000), random);
}
