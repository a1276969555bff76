#include "planner/exports/megatron_flags.h"

#include <fmt/format.h>

#include <span>
#include <sstream>

namespace ltrain::exports {
namespace {

using K = FlagKind;

/// Shape and family of the model.
const MegatronFlag kModelFlags[] = {
    {"--num-layers", K::value, 1, "model.num_hidden_layers", "", "", ""},
    {"--hidden-size", K::value, 1, "model.hidden_size", "", "", ""},
    {"--ffn-hidden-size", K::combined, 1, "model.intermediate_size", "", "",
     "there 4 of the width, with `--swiglu` 8/3 rounded down to a multiple of 64; llama here 8/3 rounded "
     "up"},
    {"--num-attention-heads", K::value, 1, "model.num_attention_heads", "", "", ""},
    {"--group-query-attention", K::combined, 0, "model.num_key_value_heads", "", "",
     "no flag to switch it on here"},
    {"--num-query-groups", K::combined, 1, "model.num_key_value_heads", "", "",
     "read with `--group-query-attention`"},
    {"--kv-channels", K::value, 1, "model.head_dim", "", "", "not read with `--multi-latent-attention`"},
    {"--multi-latent-attention", K::combined, 0, "model.architecture: deepseek_v2, deepseek_v3", "", "",
     "v3 with `--moe-router-score-function sigmoid`"},
    {"--q-lora-rank", K::combined, 1, "model.q_lora_rank", "", "", "there none"},
    {"--kv-lora-rank", K::value, 1, "model.kv_lora_rank", "32", "", ""},
    {"--qk-head-dim", K::value, 1, "model.qk_nope_head_dim", "128", "", ""},
    {"--qk-pos-emb-head-dim", K::value, 1, "model.qk_rope_head_dim", "64", "", ""},
    {"--v-head-dim", K::value, 1, "model.v_head_dim", "128", "", ""},
    {"--rope-type", K::combined, 1, "model.rope_scaling.rope_type", "", "",
     "of latent attention: there yarn, of 4096 positions"},
    {"--rotary-scaling-factor", K::combined, 1, "model.rope_scaling.factor", "", "",
     "of latent attention: there 1"},
    {"--mscale", K::combined, 1, "model.rope_scaling.mscale", "", "", "there 1"},
    {"--mscale-all-dim", K::combined, 1, "model.rope_scaling.mscale_all_dim", "", "", "there 0"},
    {"--mtp-num-layers", K::value, 1, "model.num_nextn_predict_layers", "0", "", ""},
    {"--mtp-loss-scaling-factor", K::value, 1, "model.mtp_loss_scaling_factor", "0.1", "",
     "of the sum over the model's counted tokens, there over each module's own"},
    {"--max-position-embeddings", K::value, 1, "model.max_position_embeddings", "", "", ""},
    {"--position-embedding-type", K::combined, 1, "model.architecture", "", "",
     "learned_absolute: gpt2; rope: llama and MoE models"},
    {"--use-rotary-position-embeddings", K::combined, 0, "model.architecture", "", "",
     "rope, by its old name"},
    {"--normalization", K::combined, 1, "model.architecture", "", "", "as the family has it"},
    {"--swiglu", K::combined, 0, "model.architecture", "", "", "as the family has it"},
    {"--disable-bias-linear", K::combined, 0, "model.architecture", "", "", "as the family has it"},
    {"--add-qkv-bias", K::combined, 0, "model.architecture: qwen2", "", "", ""},
    {"--qk-layernorm", K::combined, 0, "model.architecture: qwen3, qwen3_moe", "", "", ""},
    {"--rotary-base", K::value, 1, "model.rope_theta", "10000", "", "whole numbers there"},
    {"--use-rope-scaling", K::combined, 0, "model.rope_scaling.rope_type: llama3", "", "", ""},
    {"--rope-scaling-factor", K::combined, 1, "model.rope_scaling.factor", "", "", "there 8"},
    {"--norm-epsilon", K::value, 1, "model.rms_norm_eps", "1e-05", "", "also of gpt2's LayerNorm"},
    {"--untie-embeddings-and-output-weights", K::off, 0, "model.tie_word_embeddings", "", "",
     "the opposite sense"},
    {"--vocab-size", K::combined, 1, "model.vocab_size", "", "",
     "there padded to a multiple of `--make-vocab-size-divisible-by` and tensor ranks"},
    {"--padded-vocab-size", K::combined, 1, "model.vocab_size", "", "", "as it is"},
    {"--make-vocab-size-divisible-by", K::combined, 1, "model.vocab_size", "", "", "there 128"},
    {"--init-method-std", K::value, 1, "model.initializer_range", "0.02", "", ""},
    {"--hidden-dropout", K::combined, 1, "model.resid_pdrop, model.embd_pdrop", "", "",
     "default 0, there 0.1"},
    {"--attention-dropout", K::value, 1, "model.attn_pdrop", "0.1", "", "default 0"},
};

/// Batches, steps and intervals.
const MegatronFlag kTrainFlags[] = {
    {"--micro-batch-size", K::value, 1, "train.micro_batch_size", "", "", ""},
    {"--global-batch-size", K::combined, 1, "train.global_batch_size", "", "",
     "there the micro-batch of every data-parallel rank"},
    {"--rampup-batch-size", K::combined, 3,
     "train.batch_ramp.start, train.batch_ramp.increment, train.batch_ramp.samples", "", "", ""},
    {"--seq-length", K::value, 1, "data.seq_length", "", "", ""},
    {"--train-iters", K::value, 1, "train.train_steps", "", "", ""},
    {"--train-samples", K::combined, 1, "train.train_steps", "", "",
     "divided by the global batch, rounded up"},
    {"--exit-interval", K::left_out, 1, "train.stop_step", "", "", ""},
    {"--exit-duration-in-mins", K::left_out, 1, "train.exit_duration_in_mins", "", "", "saves first"},
    {"--eval-interval", K::left_out, 1, "train.eval_interval", "", "", "with data.eval"},
    {"--eval-iters", K::left_out, 1, "train.eval_steps", "", "", "with data.eval"},
    {"--log-interval", K::value, 1, "train.log_interval", "100", "", ""},
};

/// The optimizer and its settings.
const MegatronFlag kOptimizerFlags[] = {
    {"--optimizer", K::value, 1, "optimizer.kind", "adam", "adam=adamw sgd=sgd lion=lion muon=muon",
     "adam is adamw here; [eleven kinds](optimizers.md)"},
    {"--lr", K::value, 1, "optimizer.lr", "", "", ""},
    {"--min-lr", K::value, 1, "optimizer.min_lr", "0.0", "", ""},
    {"--weight-decay", K::value, 1, "optimizer.weight_decay", "0.01", "", "default 0.1"},
    {"--adam-beta1", K::value, 1, "optimizer.adam_beta1", "0.9", "", ""},
    {"--adam-beta2", K::value, 1, "optimizer.adam_beta2", "0.999", "", "default 0.95"},
    {"--adam-eps", K::value, 1, "optimizer.adam_eps", "1e-08", "", ""},
    {"--sgd-momentum", K::value, 1, "optimizer.sgd_momentum", "0.9", "", ""},
    {"--lion-beta1", K::value, 1, "optimizer.lion_beta1", "0.95", "", "default 0.9"},
    {"--lion-beta2", K::value, 1, "optimizer.lion_beta2", "0.98", "", "default 0.99"},
    {"--muon-momentum", K::value, 1, "optimizer.muon_momentum", "0.9", "", "default 0.95"},
    {"--muon-num-ns-steps", K::value, 1, "optimizer.muon_num_ns_steps", "5", "", ""},
    {"--muon-scale-mode", K::value, 1, "optimizer.muon_scale", "spectral", "spectral=spectral", ""},
    {"--clip-grad", K::value, 1, "train.clip_grad", "1.0", "", ""},
    {"--decoupled-lr", K::refused, 1, "optimizer.groups", "", "",
     "write a group with the learning rate of the embeddings"},
};

/// Learning rate and weight decay by step.
const MegatronFlag kScheduleFlags[] = {
    {"--lr-decay-style", K::value, 1, "schedule.lr_decay_style", "linear", "", "default cosine"},
    {"--lr-decay-iters", K::value, 1, "schedule.lr_decay_steps", "", "", ""},
    {"--lr-decay-samples", K::combined, 1, "schedule.lr_decay_steps", "", "", "divided by the global batch"},
    {"--lr-warmup-iters", K::value, 1, "schedule.lr_warmup_steps", "0", "",
     "there the first step has a rate of 0"},
    {"--lr-warmup-samples", K::combined, 1, "schedule.lr_warmup_steps", "", "",
     "divided by the global batch"},
    {"--lr-warmup-fraction", K::combined, 1, "schedule.lr_warmup_steps", "", "", "of the decay's steps"},
    {"--lr-wsd-decay-style", K::value, 1, "schedule.lr_wsd_decay_style", "exponential", "",
     "linear and cosine here; default linear"},
    {"--lr-wsd-decay-iters", K::value, 1, "schedule.lr_wsd_decay_steps", "", "", ""},
    {"--start-weight-decay", K::value, 1, "schedule.start_weight_decay", "", "", ""},
    {"--end-weight-decay", K::value, 1, "schedule.end_weight_decay", "", "", ""},
    {"--weight-decay-incr-style", K::value, 1, "schedule.weight_decay_incr_style", "constant", "", ""},
};

/// Precision, FP8 and loss scaling.
const MegatronFlag kPrecisionFlags[] = {
    {"--bf16", K::combined, 0, "precision", "", "", "default fp32, as there"},
    {"--fp16", K::combined, 0, "precision", "", "", ""},
    {"--fp8-format", K::combined, 1, "precision: fp8, fp8.format", "", "", "with `--bf16`"},
    {"--fp8-recipe", K::value, 1, "fp8.recipe", "delayed", "", "no mxfp8"},
    {"--fp8-margin", K::value, 1, "fp8.margin", "0", "", ""},
    {"--fp8-amax-history-len", K::value, 1, "fp8.amax_history_len", "1", "", "default 1024"},
    {"--fp8-amax-compute-algo", K::value, 1, "fp8.amax_compute_algo", "most_recent", "", "default max"},
    {"--first-last-layers-bf16", K::combined, 0, "fp8.first_layers_bf16, fp8.last_layers_bf16", "", "", ""},
    {"--num-layers-at-start-in-bf16", K::combined, 1, "fp8.first_layers_bf16", "", "",
     "read with `--first-last-layers-bf16`"},
    {"--num-layers-at-end-in-bf16", K::combined, 1, "fp8.last_layers_bf16", "", "",
     "read with `--first-last-layers-bf16`"},
    {"--initial-loss-scale", K::value, 1, "loss_scale.initial", "4294967296", "", "2^16, there 2^32"},
    {"--min-loss-scale", K::value, 1, "loss_scale.minimum", "1.0", "", ""},
    {"--loss-scale-window", K::value, 1, "loss_scale.window", "1000", "", ""},
    {"--hysteresis", K::value, 1, "loss_scale.hysteresis", "2", "", ""},
    {"--grad-reduce-in-bf16", K::combined, 0, "parallel.grad_reduce_dtype: bf16", "", "", ""},
    {"--main-grads-dtype", K::value, 1, "optimizer.grad_dtype", "fp32", "", ""},
    {"--exp-avg-dtype", K::combined, 1, "optimizer.state_dtype", "", "", "one dtype for both moments"},
    {"--exp-avg-sq-dtype", K::combined, 1, "optimizer.state_dtype", "", "", ""},
};

/// Axes, and sharding over data-parallel ranks.
const MegatronFlag kParallelFlags[] = {
    {"--tensor-model-parallel-size", K::value, 1, "parallel.tensor", "1", "", ""},
    {"--sequence-parallel", K::on, 0, "parallel.sequence_parallel", "", "", ""},
    {"--pipeline-model-parallel-size", K::value, 1, "parallel.pipeline", "1", "", ""},
    {"--num-virtual-stages-per-pipeline-rank", K::combined, 1, "parallel.virtual_pipeline", "", "",
     "with `parallel.schedule: interleaved`"},
    {"--num-layers-per-virtual-pipeline-stage", K::combined, 1, "parallel.virtual_pipeline", "", "",
     "chunks a rank here"},
    {"--pipeline-model-parallel-layout", K::combined, 1, "parallel.pipeline_layers", "", "",
     "read where it is of E, t, t*N, | and L"},
    {"--decoder-first-pipeline-num-layers", K::refused, 1, "parallel.pipeline_layers", "", "",
     "give the layers of every stage"},
    {"--decoder-last-pipeline-num-layers", K::refused, 1, "parallel.pipeline_layers", "", "",
     "give the layers of every stage"},
    {"--context-parallel-size", K::value, 1, "parallel.context", "1", "", ""},
    {"--cp-comm-type", K::value, 1, "parallel.context_comm", "p2p",
     "p2p=p2p a2a=a2a all_gather=all_gather a2a+p2p=a2a+p2p", ""},
    {"--hierarchical-context-parallel-sizes", K::combined, -1, "parallel.context_inner", "", "",
     "the first of the two"},
    {"--expert-model-parallel-size", K::value, 1, "parallel.expert", "1", "", ""},
    {"--expert-tensor-parallel-size", K::combined, 1, "parallel.expert_tensor", "", "",
     "there the tensor ranks by default"},
    {"--use-tp-pp-dp-mapping", K::combined, 0, "parallel.order: tp-cp-pp-dp", "", "", ""},
    {"--use-distributed-optimizer", K::combined, 0, "parallel.zero_stage: 1", "", "", ""},
    {"--use-megatron-fsdp", K::combined, 0, "parallel.zero_stage", "", "", ""},
    {"--use-torch-fsdp2", K::combined, 0, "parallel.zero_stage: 3", "", "", ""},
    {"--torch-fsdp2-no-reshard-after-forward", K::combined, 0, "parallel.reshard_after_forward: false", "",
     "", "read with `--use-torch-fsdp2`"},
    {"--data-parallel-sharding-strategy", K::combined, 1, "parallel.zero_stage", "", "",
     "optim 1, optim_grads 2, optim_grads_params 3; read with `--use-megatron-fsdp`"},
    {"--num-distributed-optimizer-instances", K::refused, 1, "parallel.shard_group", "", "",
     "ranks of a group, or node; not the number of groups"},
};

/// Recomputation and offload.
const MegatronFlag kMemoryFlags[] = {
    {"--recompute-granularity", K::value, 1, "recompute.granularity", "none", "full=full selective=selective",
     "also auto"},
    {"--recompute-method", K::value, 1, "recompute.method", "uniform", "", ""},
    {"--recompute-num-layers", K::value, 1, "recompute.num_layers", "", "", ""},
    {"--recompute-modules", K::combined, -1, "recompute.modules", "", "",
     "core_attn, layernorm, mlp, mlp_act here; there core_attn by default"},
    {"--recompute-activations", K::combined, 0,
     "recompute.granularity: selective, recompute.modules: [core_attn]", "", "", ""},
    {"--optimizer-cpu-offload", K::combined, 0,
     "offload.optimizer.device: cpu, offload.optimizer.update: cpu", "", "", ""},
    {"--optimizer-offload-fraction", K::combined, 1, "offload.optimizer.fraction", "", "", ""},
    {"--cpu-offloading", K::combined, 0, "offload.activations.device: cpu", "", "", ""},
    {"--cpu-offloading-num-layers", K::combined, 1, "offload.activations.fraction", "", "",
     "a fraction here; all layers are all but one there"},
};

/// Settings that have another form here, or always hold.
const MegatronFlag kHowFlags[] = {
    {"--use-precision-aware-optimizer", K::how, 0, "optimizer.state_dtype, optimizer.grad_dtype", "", "",
     "always possible here"},
    {"--attention-backend", K::how, 1, "attention_backend", "", "", "auto, own, cudnn"},
    {"--cuda-graph-impl", K::how, 1, "cuda_graphs", "", "", ""},
    {"--exit-signal-handler", K::how, 0, "always", "", "", "SIGTERM, SIGUSR1, SIGINT: saves, exit code 75"},
    {"--no-check-for-nan-in-loss-and-grad", K::how, 0, "always checked", "", "", "exit code 76"},
    {"--async-save", K::how, 0, "checkpoint.async_save", "", "", "true by default"},
    {"--override-opt-param-scheduler", K::how, 0, "always", "", "",
     "the recipe's schedule counts; a resume names what changed"},
    {"--deterministic-mode", K::combined, 0, "deterministic", "", "", "true by default"},
};

/// Experts and their router.
const MegatronFlag kExpertFlags[] = {
    {"--num-experts", K::value, 1, "model.moe.num_experts", "0", "", ""},
    {"--moe-router-topk", K::value, 1, "model.moe.top_k", "2", "", ""},
    {"--moe-ffn-hidden-size", K::combined, 1, "model.moe.intermediate_size", "", "",
     "there the feed-forward's width by default"},
    {"--moe-layer-freq", K::combined, 1, "model.moe.dense_layers", "", "",
     "1 or `([0]*A+[1]*B)`; of each N layers the first has experts there, here the last"},
    {"--moe-shared-expert-intermediate-size", K::combined, 1, "model.moe.shared_experts", "", "",
     "a number of experts, not a width"},
    {"--moe-router-load-balancing-type", K::combined, 1, "model.moe.balance.kind", "",
     "aux_loss=switch seq_aux_loss=sequence global_aux_loss=global none=none",
     "switch is over all ranks' tokens of a micro-batch, aux_loss there a data-parallel rank's own"},
    {"--moe-aux-loss-coeff", K::combined, 1, "model.moe.balance.coeff", "", "", "there 0: no loss"},
    {"--moe-z-loss-coeff", K::value, 1, "model.moe.z_loss_coeff", "0.0", "", ""},
    {"--moe-router-score-function", K::value, 1, "model.moe.router.score", "softmax", "", ""},
    {"--moe-router-pre-softmax", K::combined, 0, "model.moe.router.norm_topk_prob: false", "", "",
     "without it the weights of a token's experts are divided by their sum"},
    {"--moe-router-topk-scaling-factor", K::value, 1, "model.moe.router.routed_scaling_factor", "1.0", "",
     ""},
    {"--moe-router-enable-expert-bias", K::combined, 0, "model.moe.router.bias_update_rate", "", "",
     "above 0 enables it"},
    {"--moe-router-bias-update-rate", K::combined, 1, "model.moe.router.bias_update_rate", "", "",
     "there 0.001"},
    {"--moe-router-num-groups", K::value, 1, "model.moe.router.n_group", "1", "", ""},
    {"--moe-router-group-topk", K::combined, 1, "model.moe.router.topk_group", "", "", ""},
    {"--moe-expert-capacity-factor", K::value, 1, "model.moe.capacity_factor", "", "", ""},
    {"--moe-token-drop-policy", K::value, 1, "model.moe.drop_policy", "probs",
     "probs=probability position=position", ""},
    {"--moe-token-dispatcher-type", K::value, 1, "parallel.expert_dispatch", "allgather",
     "alltoall=all_to_all allgather=all_gather", "default all_to_all; no flex"},
};

/// Seed, and marks of documents in the data.
const MegatronFlag kDataFlags[] = {
    {"--seed", K::value, 1, "seed", "1234", "", ""},
    {"--save-interval", K::value, 1, "checkpoint.save_interval", "", "", ""},
    {"--distributed-timeout-minutes", K::value, 1, "launch.distributed_timeout_minutes", "10.0", "",
     "a rank that does nothing, not a slow collective"},
    {"--reset-attention-mask", K::on, 0, "data.reset_attention_mask", "", "", ""},
    {"--reset-position-ids", K::on, 0, "data.reset_position_ids", "", "", ""},
    {"--eod-mask-loss", K::on, 0, "data.eod_mask_loss", "", "", ""},
};

/// Files and folders, which a recipe names in its own way.
const MegatronFlag kJobFlags[] = {
    {"--data-path", K::left_out, -1, "data.train", "", "", "another order of samples"},
    {"--train-data-path", K::left_out, -1, "data.train", "", "", ""},
    {"--valid-data-path", K::left_out, -1, "data.eval", "", "", ""},
    {"--test-data-path", K::left_out, -1, "data.eval", "", "", ""},
    {"--split", K::left_out, 1, "data.eval", "", "",
     "cut when the data are built: `ltrain data build --split`"},
    {"--tokenizer-type", K::left_out, 1, "data.tokenizer.kind", "", "", "byte, gpt2, huggingface"},
    {"--tokenizer-model", K::left_out, 1, "data.tokenizer.path", "", "", ""},
    {"--vocab-file", K::left_out, 1, "data.tokenizer.path", "", "", ""},
    {"--merge-file", K::left_out, 1, "data.tokenizer.path", "", "", ""},
    {"--save", K::left_out, 1, "output_dir", "", "", "one folder: resumes from where it saves"},
    {"--load", K::left_out, 1, "output_dir", "", "", ""},
    {"--finetune", K::left_out, 0, "checkpoint.load.path", "", "", "the weights; all else begins anew"},
    {"--no-load-optim", K::left_out, 0, "checkpoint.load.parts", "", "", "weights"},
    {"--ckpt-step", K::left_out, 1, "checkpoint.resume", "", "", ""},
    {"--tensorboard-dir", K::left_out, 1, "log.tensorboard", "", "", "in `output_dir`"},
    {"--moe-use-upcycling", K::left_out, 0, "checkpoint.upcycle", "", "", ""},
    {"--profile-step-start", K::left_out, 1, "profile.step_start", "", "", ""},
    {"--profile-step-end", K::left_out, 1, "profile.step_end", "", "", ""},
};

/// A flag that changes the computation, or that hides possible errors, and has no key. With its default
/// value, such a flag has no effect.
struct RefusedFlag {
  std::string_view flag;
  int arguments;
  std::string_view standard = "";
};
const RefusedFlag kRefusedFlags[] = {{"--rotary-percent", 1, "1.0"},
                                     {"--rotary-interleaved", 0},
                                     {"--apply-layernorm-1p", 0},
                                     {"--mtp-use-repeated-layer", 0},
                                     {"--mtp-detach-heads", 0},
                                     {"--mtp-hsm", 0},
                                     {"--window-size", 1},
                                     {"--squared-relu", 0},
                                     {"--quick-geglu", 0},
                                     {"--no-rope-freq", 1},
                                     {"--moe-router-dtype", 1},
                                     {"--moe-input-jitter-eps", 1},
                                     {"--apply-query-key-layer-scaling", 0},
                                     {"--spec", -1},
                                     {"--fp8-param-gather", 0},
                                     {"--softmax-type", 1, "vanilla"}};

/// Flags, and numbers of arguments, that say how a result is computed; they are passed over.
const std::pair<std::string_view, int> kIgnoredFlags[] = {
    {"--use-mcore-models", 0},
    {"--use-flash-attn", 0},
    {"--transformer-impl", 1},
    {"--attention-softmax-in-fp32", 0},
    {"--overlap-grad-reduce", 0},
    {"--overlap-param-gather", 0},
    {"--tp-comm-overlap", 0},
    {"--no-masked-softmax-fusion", 0},
    {"--no-bias-gelu-fusion", 0},
    {"--no-bias-swiglu-fusion", 0},
    {"--no-bias-dropout-fusion", 0},
    {"--no-rope-fusion", 0},
    {"--no-gradient-accumulation-fusion", 0},
    {"--cross-entropy-loss-fusion", 0},
    {"--moe-grouped-gemm", 0},
    {"--moe-permute-fusion", 0},
    {"--moe-router-fusion", 0},
    {"--accumulate-allreduce-grads-in-fp32", 0},
    {"--use-dist-ckpt", 0},
    {"--ckpt-format", 1},
    {"--dist-ckpt-format", 1},
    {"--ckpt-fully-parallel-load", 0},
    {"--log-throughput", 0},
    {"--log-params-norm", 0},
    {"--log-num-zeros-in-grad", 0},
    {"--log-timers-to-tensorboard", 0},
    {"--log-validation-ppl-to-tensorboard", 0},
    {"--log-memory-to-tensorboard", 0},
    {"--timing-log-level", 1},
    {"--tensorboard-queue-size", 1},
    {"--distributed-backend", 1},
    {"--num-workers", 1},
    {"--data-cache-path", 1},
    {"--no-create-attention-mask-in-dataloader", 0},
    {"--manual-gc", 0},
    {"--manual-gc-interval", 1},
    {"--wandb-project", 1},
    {"--wandb-exp-name", 1},
    {"--wandb-save-dir", 1},
    {"--no-save-optim", 0},
    {"--profile", 0},
    {"--mock-data", 0},
};

std::vector<MegatronFlag> make_flags() {
  using Rows = std::span<const MegatronFlag>;
  std::vector<MegatronFlag> rows;
  for (const Rows part : {Rows(kModelFlags), Rows(kTrainFlags), Rows(kOptimizerFlags), Rows(kScheduleFlags),
                          Rows(kPrecisionFlags), Rows(kParallelFlags), Rows(kMemoryFlags), Rows(kHowFlags),
                          Rows(kExpertFlags), Rows(kDataFlags), Rows(kJobFlags)})
    rows.insert(rows.end(), part.begin(), part.end());
  for (const RefusedFlag& r : kRefusedFlags)
    rows.push_back({r.flag, K::refused, r.arguments, "", r.standard, "", ""});
  for (const auto& [flag, arguments] : kIgnoredFlags)
    rows.push_back({flag, K::how, arguments, "", "", "", ""});
  return rows;
}

/// Other side of the pair in which `word` is on the given side.
std::string translated(std::string_view words, const std::string& word, bool from_theirs) {
  if (words.empty()) return word;
  std::istringstream in{std::string(words)};
  for (std::string pair; in >> pair;) {
    const size_t equals = pair.find('=');
    const std::string theirs = pair.substr(0, equals), ours = pair.substr(equals + 1);
    if (word == (from_theirs ? theirs : ours)) return from_theirs ? ours : theirs;
  }
  return "";
}

}  // namespace

const std::vector<MegatronFlag>& megatron_flags() {
  static const std::vector<MegatronFlag> flags = make_flags();
  return flags;
}

const MegatronFlag* find_flag(std::string_view flag) {
  for (const MegatronFlag& row : megatron_flags())
    if (row.flag == flag) return &row;
  return nullptr;
}

std::string word_of_megatron(const MegatronFlag& flag, const std::string& ours) {
  return translated(flag.words, ours, false);
}

std::string word_of_recipe(const MegatronFlag& flag, const std::string& theirs) {
  return translated(flag.words, theirs, true);
}

std::string megatron_flags_markdown() {
  std::string out = "| Megatron-LM | recipe | default there | differs |\n|---|---|---|---|\n", line, how;
  for (const MegatronFlag& f : megatron_flags()) {
    if (f.kind == FlagKind::how && f.key.empty()) {
      const std::string word = fmt::format("`{}` ", f.flag);
      if (line.size() + word.size() > 120) how += line.substr(0, line.size() - 1) + "\n", line.clear();
      line += word;
      continue;
    }
    const bool is_key = f.kind != FlagKind::how || f.key.find(' ') == std::string_view::npos;
    std::string key = f.key.empty()                 ? "none"
                      : is_key && f.key != "always" ? fmt::format("`{}`", f.key)
                                                    : std::string(f.key);
    if (f.kind == FlagKind::off) key = fmt::format("`{}: false`", f.key);
    std::string differs = f.kind == FlagKind::left_out  ? "to be set by hand"
                          : f.kind != FlagKind::refused ? ""
                          : f.standard.empty()          ? "refused"
                                                        : "another value is refused";
    if (!differs.empty() && !f.differs.empty()) differs += "; ";
    out += fmt::format("| `{}` | {} | {} | {}{} |\n", f.flag, key, f.standard, differs, f.differs);
  }
  return out + "\nPassed over, as they say how and not what:\n" + how + line.substr(0, line.size() - 1) +
         "\n";
}

const std::vector<MegatronFamily>& megatron_families() {
  //                                        rotary rms   gated biases qkv   qk     experts latent sigmoid
  static const std::vector<MegatronFamily> families{
      {"gpt2", false, false, false, true, false, false, false},
      {"llama", true, true, true, false, false, false, false},
      {"qwen2", true, true, true, false, true, false, false},
      {"qwen3", true, true, true, false, false, true, false},
      {"mixtral", true, true, true, false, false, false, true},
      {"qwen3_moe", true, true, true, false, false, true, true},
      {"deepseek_v2", true, true, true, false, false, true, true, true, false},
      {"deepseek_v3", true, true, true, false, false, true, true, true, true}};
  return families;
}

}  // namespace ltrain::exports
