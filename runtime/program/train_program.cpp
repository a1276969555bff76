#include "runtime/program/train_program.h"

#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "runtime/program/stage_run.h"

namespace ltrain {

PrecisionPolicy precision_policy(const std::string& name) {
  if (name == "fp32" || name == "tf32") return {DType::f32, DType::f32, DType::f32};
  if (name == "bf16" || name == "fp8") return {DType::bf16, DType::f32, DType::f32};
  if (name == "fp16") return {DType::f16, DType::f32, DType::f32};
  if (name == "fp64") return {DType::f64, DType::f64, DType::f64, DType::f64};
  fail(ExitCode::usage, "precision: {}: must be fp32, tf32, bf16, fp8, fp16 or fp64", name);
}

std::vector<StageLayers> stages_of_rank(const ProgramOptions& o, int rank) {
  if (o.stage_layers.size() <= 1) return {{0, o.model.num_hidden_layers, true, true}};
  std::vector<StageLayers> mine;
  LT_CHECK(static_cast<int>(o.stage_layers.size()) == o.schedule.stages(),
           "expected layer counts of {} stages, got {}", o.schedule.stages(), o.stage_layers.size());
  int64_t first = 0;
  for (int i = 0; i < o.schedule.stages(); ++i) {
    if (o.schedule.rank_of_stage[i] == rank)
      mine.push_back({first, o.stage_layers[i], i == 0, i + 1 == o.schedule.stages()});
    first += o.stage_layers[i];
  }
  LT_CHECK(first == o.model.num_hidden_layers, "expected stages of {} layers in all, got {}",
           o.model.num_hidden_layers, first);
  return mine;
}

GroupSet::Options group_options(const ProgramOptions& o) {
  GroupSet::Options g;
  g.key_value_heads = o.model.num_key_value_heads;
  g.intra_node_experts = o.intra_node_experts;
  if (o.stage_layers.size() <= 1) return g;
  const std::vector<int>& at = o.schedule.rank_of_stage;
  g.tied_stages = o.model.shares_embedding() && at.front() != at.back();
  g.links = schedule_links(o.schedule);
  return g;
}

namespace {

/// Bytes of a staging slot: one micro-batch copied to the device, or values read back from it: sums of a
/// step, token counts of experts, or logits.
int64_t slot_bytes(const ProgramOptions& o, const ContextSharding& cut, int64_t expert_ranks) {
  const int64_t logits = o.for_training ? 0 : o.model.vocab_size * 8;
  const int64_t experts = o.model.moe.num_experts,
                counts = experts > 0 ? expert_ranks * (experts + 1) * 8 : 0;
  const int64_t choices =
      o.keeps_choices() ? Staging::room(o.micro_batch * cut.rows().rows * o.model.moe.top_k * 4) : 0;
  return std::max<int64_t>(
      {MicroBatchSlots::staging_bytes(o, cut), logits, counts, choices, StepSums::count(o) * 8});
}

/// Number of staging slots: one per micro-batch on the device, and at least two, so that the host prepares
/// one while another is copied.
int64_t slot_count(const ProgramOptions& o) { return std::max<int64_t>(2, o.staged() ? o.accumulation : 1); }

}  // namespace

TrainProgram::TrainProgram(const ProgramOptions& options, Device device)
    : options_(options),
      device_(device),
      decoder_(options.model, store_, device.groups,
               {options.sequence_parallel, options.dispatch, options.expert_tensor, options.decay_embeddings,
                stages_of_rank(options, device.groups.coordinate(Axis::pipeline)), options.recompute,
                options.activations}),
      cut_{options.seq_length, device.groups.context.size(), device.groups.context.rank(),
           options.context_comm, options.context_inner},
      staging_(device.compute, device.host, slot_count(options),
               slot_bytes(options, cut_, device.groups.expert.size())) {
  if (options.loss_scale) scaler_.emplace(*options.loss_scale);
  if (!staged())
    options_.schedule = single_stage_schedule(static_cast<int>(options.accumulation),
                                              options.interleaved && options.for_training);
  const bool pairs = options_.schedule.has_pairs();
  LT_CHECK(
      !pairs || (!options.cuda_graphs && !options.activations.any() && options.offload.params == 0 &&
                 options.model.moe.balance != BalanceLoss::hf),
      "expected overlapped micro-batches without CUDA graphs, activation or parameter offload, or a balance "
      "loss over all layers, got one of them");
  LT_CHECK(options_.schedule.micros == options.accumulation,
           "expected a schedule of {} micro-batches, got {}", options.accumulation, options_.schedule.micros);
  program_ = staged() && options_.programs ? options_.programs->at(static_cast<size_t>(pipeline_rank()))
                                           : pipeline::lower(options_.schedule, pipeline_rank());
  store_.allocate(device_.compute, device_.memory, device_.groups,
                  {options.precision, options.sharding, options.bucket_elements, options.for_training,
                   options.optimizer, options.offload, device_.offload.states, device_.offload.params,
                   options.reduce_bf16, options.reduce_code, options.ema_decay, options.seed});
  decoder_.allocate(device_.compute, device_.memory, options.seq_length, !options.for_training);
  make_frozen_model();
  const auto constant = [&](const char* name, DType t, Shape s) {
    return device_.memory.allocate(MemoryKind::temporaries, name, t, s);
  };
  const int64_t in_flight = staged() ? options.accumulation : pairs ? 2 : 1;
  slots_.emplace(options_, cut_, in_flight, device_.compute, device_.memory, device_.groups);
  sums_.emplace(device_.compute, device_.memory, options_);
  if (sums_->experts.on() && options.for_training && options.model.moe.balance == BalanceLoss::hf) {
    balance_sums_ = constant("balance of all layers", DType::f64, {2, options.model.moe.router_outputs()});
    balance_table_ = constant("balance table", DType::f64, {1, options.model.moe.router_outputs()});
  }
  make_choices();
  count_ = constant("token count", DType::i64, {3});
  if (options.cuda_graphs && options.for_training) {
    LT_CHECK(
        !options.sharding.shards_gradients() && options.model.moe.num_experts == 0,
        "expected CUDA graphs with whole gradients and a dense model, got sharded gradients or {} experts",
        options.model.moe.num_experts);
    scale_ = constant("gradient scale", DType::f64, {1});
  }
  make_router_bias();
  make_token_experts();
  set_matmul_precision(options.products);
  device_.compute.attention_backend = options.attention_backend;
  if (options.fp8) make_fp8();
  if (options.for_training && options.activations.any())
    offloaded_.emplace(device_.compute, device_.memory, *device_.offload.activations,
                       device_.offload.activation_bytes);
}

void TrainProgram::make_frozen_model() {
  const ProgramOptions& o = options_;
  DecoderOptions decoder;
  decoder.sequence_parallel = o.sequence_parallel;
  if (o.teacher) {
    LT_CHECK(!staged() && o.for_training, "expected a teacher in training without a pipeline, got {}",
             staged() ? "a pipeline" : "no training");
    teacher_ = std::make_unique<FrozenTeacher>(*o.teacher, device_.groups, decoder);
  } else if (o.reference) {
    // Without a pipeline the reference may have another number of layers than the model.
    if (staged()) decoder.stages = stages_of_rank(o, pipeline_rank());
    decoder.dispatch = o.dispatch;
    decoder.expert_tensor = o.expert_tensor;
    reference_ = std::make_unique<FrozenModel>(*o.reference, device_.groups, decoder);
  }
  if (FrozenModel* frozen = frozen_model())
    frozen->allocate(device_.compute, device_.memory, device_.groups, o.precision, o.sharding,
                     o.bucket_elements, o.seq_length);
}

void TrainProgram::make_fp8() {
  const int64_t output =
      fp8_output_slot(options_.model.num_hidden_layers, options_.model.moe.num_experts > 0);
  fp8_ = std::make_unique<Fp8State>(*options_.fp8, device_.compute, device_.memory,
                                    output + options_.fp8->output_layer);
  // Cross-entropy's gradient of a logit is at most the weight of a token. With the scale of values about 1 a
  // first step would round it to zero, and with it all other gradients.
  if (options_.fp8->output_layer)
    fp8_->expect(device_.compute, static_cast<int>(output), Fp8Role::gradient,
                 1.0 / static_cast<double>(full_tokens()));
  const std::vector<Fp8Weight> weights = decoder_.quantize_operands(store_, *options_.fp8);
  // With one micro-batch each quantized weight is used once. Weights that are released after use would stay
  // in memory.
  const bool stay = !options_.sharding.shards_weights() || options_.sharding.keeps_gathered();
  if (options_.for_training && options_.accumulation > 1 && stay)
    fp8_->keep_weights(device_.compute, device_.memory, weights);
  if (fp8_->history().defined()) store_.keep(kFp8History, fp8_->history());
}

OffloadedBytes TrainProgram::offloaded() const {
  return {store_.offload_bytes(), store_.offloaded_bytes(), offloaded_ ? offloaded_->peak_bytes() : 0};
}

void TrainProgram::make_router_bias() {
  const MoeConfig& m = options_.model.moe;
  if (!options_.model.has_correction_bias()) return;
  const DType type = options_.precision.compute == DType::f64 ? DType::f64 : DType::f32;
  router_bias_ = device_.memory.allocate(MemoryKind::parameters, "bias of routers", type,
                                         {options_.model.all_layers(), m.router_outputs()});
  place_set(device_.compute, router_bias_, kAllAxes, Placement::R());
  if (!device_.compute.meta()) fill_zero(device_.compute, router_bias_);
  for (int64_t i = 0; i < options_.model.all_layers(); ++i)
    if (options_.model.has_experts(i))
      store_.keep(correction_bias_name(options_.model, i),
                  router_bias_.flat(i * m.router_outputs(), {m.router_outputs()}));
}

void TrainProgram::set_matmul_precision(MatmulPrecision products) {
  LT_CHECK(products != MatmulPrecision::fp8 || options_.fp8,
           "expected FP8 settings with FP8 matmuls, got none");
  matmul_precision_ = products;
  device_.compute.tf32 = products == MatmulPrecision::tf32;
}

Step TrainProgram::make_step(bool training) {
  Step step{device_.compute,
            device_.memory,
            store_,
            device_.groups,
            options_.precision.compute,
            options_.seed,
            options_.sequence_parallel,
            training};
  if (matmul_precision_ == MatmulPrecision::fp8) step.fp8 = fp8_.get();
  if (fp8_ && !fp8_begun_)
    // Deferred to here because a checkpoint may have been loaded.
    fp8_->begin_step(device_.compute);
  fp8_begun_ = true;
  if (training && offloaded_) step.offloaded = &*offloaded_;
  step.staging = &staging_;
  step.async_tensor_parallel = options_.async_tensor_parallel;
  step.logits_chunk = options_.logits_chunk;
  const AttentionBackend attention = options_.attention_backend;
  if (training && !options_.deterministic && attention != AttentionBackend::own)
    step.cudnn_backward = CudnnBackward::any_order;
  if (training && options_.deterministic && attention == AttentionBackend::cudnn)
    step.cudnn_backward = CudnnBackward::deterministic;
  return step;
}

MicroBatch TrainProgram::micro_batch(int64_t slot) const {
  MicroBatch mb = slots_->micro_batch(slot);
  mb.loss = sums_->loss.tensor;
  mb.z_loss = {options_.z_loss_coeff, sums_->z_loss.tensor};
  if (options_.mtp_modules() > 0) mb.mtp_loss = sums_->mtp_loss.tensor;
  mb.experts = sums_->experts.tensor;
  mb.balance_sums = balance_sums_;
  mb.balance_table = balance_table_;
  mb.router_bias = router_bias_;
  mb.by_token = {.table = token_experts_};
  mb.choices = evaluated_choices(slot);
  mb.micros = options_.accumulation;
  if (options_.preference) {
    mb.pairs.totals = sums_->pairs.tensor;
    mb.pairs.loss = *options_.preference;
  }
  return mb;
}

void TrainProgram::sum_counts(std::span<int64_t> counts, bool all_sites) {
  const Tensor sums = count_.flat(0, {static_cast<int64_t>(counts.size())});
  if (device_.compute.meta()) {
    place_set(device_.compute, sums, kAllAxes, Placement::R());
    place_set(device_.compute, sums, kGradientAxes, Placement::P());
    device_.groups.gradient.all_reduce(device_.compute, sums);
    if (all_sites) device_.groups.sum_over_sites(device_.compute, sums);
    place_require(device_.compute, "reading the token count", sums, Placement::R());
    counts[0] = full_tokens();
    return;
  }
  const int64_t ranks = device_.groups.gradient.size() * (all_sites ? device_.groups.sites.size() : 1);
  if (ranks == 1) return;
  staging_.open();
  staging_.put(sums, counts.data());
  staging_.close();
  device_.groups.gradient.all_reduce(device_.compute, sums);
  if (all_sites) device_.groups.sum_over_sites(device_.compute, sums);
  staging_.get(counts.data(), sums);
  device_.groups.check();
}

bool TrainProgram::any_rank(bool mine) {
  const Group& world = device_.groups.world;
  if (device_.groups.mesh.world() == 1) return mine;
  int64_t ranks = mine;
  staging_.open();
  const Tensor sum = count_.flat(0, {1});
  staging_.put(sum, &ranks);
  staging_.close();
  world.all_reduce(device_.compute, sum);
  device_.groups.sum_over_sites(device_.compute, sum);
  staging_.get(&ranks, sum);
  device_.groups.check();
  return ranks > 0;
}

}  // namespace ltrain
