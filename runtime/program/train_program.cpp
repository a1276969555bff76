#include "runtime/program/train_program.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/moe/router_bias.h"
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
  std::vector<StageLayers> mine;
  if (o.stage_layers.size() <= 1) return mine;  // the decoder's default: all layers
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

/// Layers with router sums: all layers of a MoE model, none of a dense model.
int64_t router_layers(const ModelConfig& m) { return m.moe.num_experts > 0 ? m.all_layers() : 0; }

/// Number of values that a step sums over all ranks: the loss, ranks that ask to stop, squared gradients by
/// segment, router sums, the z-loss, and the loss of multi-token prediction.
int64_t sum_count(const ProgramOptions& o) {
  const ModelConfig& m = o.model;
  return 2 + Decoder::segments(m) + router_layers(m) * moe_sums(m.moe.num_experts) + (o.z_loss_coeff > 0) +
         (m.num_nextn_predict_layers > 0) + (o.preference ? PreferenceTotals::count : 0);
}

/// Multi-token prediction modules that a program runs.
int64_t modules_of(const ProgramOptions& o) { return o.for_training ? o.model.num_nextn_predict_layers : 0; }

/// Bytes of a staging slot: one micro-batch copied to the device, or values read back from it: sums of a
/// step, token counts of experts, or logits.
int64_t slot_bytes(const ProgramOptions& o, const ContextSharding& cut, int64_t expert_ranks) {
  const int64_t rows = o.micro_batch * cut.rows().rows, whole = o.micro_batch * o.seq_length;
  int64_t batch = 2 * Staging::room(rows * 4) + Staging::room(o.micro_batch * 8);
  if (o.documents) batch += Staging::room(whole * 4);
  if (o.position_ids) batch += Staging::room(rows * 4);
  if (o.preference) batch += pair_slot_bytes(rows, o.micro_batch, o.seq_length);
  batch += 2 * Staging::room(modules_of(o) * rows * 4);
  const int64_t logits = o.for_training ? 0 : o.model.vocab_size * 8;
  const int64_t experts = o.model.moe.num_experts,
                counts = experts > 0 ? expert_ranks * (experts + 1) * 8 : 0;
  return std::max<int64_t>({batch, logits, counts, sum_count(o) * 8});
}

/// Number of staging slots: one per micro-batch on the device, and at least two, so that the host prepares
/// one while another is copied.
int64_t slot_count(const ProgramOptions& o) {
  return std::max<int64_t>(2, o.stage_layers.size() > 1 ? o.accumulation : 1);
}

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
  const int stage_rank = device_.groups.coordinate(Axis::pipeline);
  program_ = staged() && options_.programs ? options_.programs->at(static_cast<size_t>(stage_rank))
                                           : pipeline::lower(options_.schedule, stage_rank);
  const int64_t rows = options.micro_batch * cut_.rows().rows;
  const int parts = device_.groups.mesh.sequence_parts();
  LT_CHECK(
      options.micro_batch % parts == 0,
      "expected the sequences of a micro-batch to divide over {} tensor-parallel ranks, got {} sequences",
      parts, options.micro_batch);
  store_.allocate(device_.compute, device_.memory, device_.groups,
                  {options.precision, options.sharding, options.bucket_elements, options.for_training,
                   options.optimizer, options.offload, device_.slow.states, device_.slow.params,
                   options.reduce_bf16, options.reduce_int8, options.ema_decay, options.seed});
  decoder_.allocate(device_.compute, device_.memory, options.seq_length, !options.for_training);
  const auto constant = [&](const char* name, DType t, Shape s) {
    return device_.memory.allocate(MemoryKind::temporaries, name, t, s);
  };
  places_ = staged() ? options.accumulation : pairs ? 2 : 1;  // micro-batches in flight
  tokens_ = constant("tokens", DType::i32, {places_, rows});
  targets_ = constant("targets", DType::i32, {places_, rows});
  if (const int64_t n = modules_of(options); n > 0) {
    mtp_tokens_ = constant("later tokens", DType::i32, {places_, n * rows});
    mtp_targets_ = constant("later targets", DType::i32, {places_, n * rows});
  }
  sample_index_ = constant("sample index", DType::i64, {places_, options.micro_batch});
  if (cut_.ranks > 1) {
    std::vector<int32_t> at;
    for (int64_t row = 0; row < cut_.rows().rows; ++row)
      at.push_back(static_cast<int32_t>(cut_.rows().at(row)));
    positions_ = constant("positions", DType::i32, {cut_.rows().rows});
    upload(device_.compute, positions_, at.data());
  }
  if (options.documents)
    documents_ = constant("documents", DType::i32, {places_, options.micro_batch * options.seq_length});
  if (options.position_ids) position_ids_ = constant("position ids", DType::i32, {places_, rows});
  const int64_t segments = Decoder::segments(options.model);
  const int64_t routers = router_layers(options.model), router_sums = moe_sums(options.model.moe.num_experts);
  sums_ = constant("loss and norm", DType::f64, {sum_count(options)});
  loss_ = place_apart(device_.compute, sums_.flat(0, {1}), "loss");
  squares_ = place_apart(device_.compute, sums_.flat(2, {segments}), "squares of gradients");
  if (routers > 0)
    experts_ =
        place_apart(device_.compute, sums_.flat(2 + segments, {routers, router_sums}), "sums of routers");
  if (options.z_loss_coeff > 0)
    z_loss_ = place_apart(
        device_.compute, sums_.flat(2 + segments + (routers > 0 ? routers * router_sums : 0), {1}), "z-loss");
  if (options.model.num_nextn_predict_layers > 0)
    mtp_loss_ = place_apart(device_.compute, sums_.flat(sums_.elements() - 1, {1}), "loss of later tokens");
  if (routers > 0 && options.for_training && options.model.moe.balance == BalanceLoss::hf) {
    balance_sums_ = constant("balance of all layers", DType::f64, {2, options.model.moe.num_experts});
    balance_table_ = constant("balance table", DType::f64, {1, options.model.moe.num_experts});
  }
  count_ = constant("token count", DType::i64, {3});
  if (options.preference)
    make_pairs(place_apart(device_.compute,
                           sums_.flat(sums_.elements() - PreferenceTotals::count, {PreferenceTotals::count}),
                           "sums of pairs"));
  if (options.cuda_graphs && options.for_training) {
    LT_CHECK(
        !options.sharding.shards_gradients() && options.model.moe.num_experts == 0,
        "expected CUDA graphs with whole gradients and a dense model, got sharded gradients or {} experts",
        options.model.moe.num_experts);
    scale_ = constant("gradient scale", DType::f64, {1});
  }
  make_router_bias();
  set_matmul_precision(options.products);
  device_.compute.attention_backend = options.attention_backend;
  if (options.fp8) make_fp8();
  if (options.for_training && options.activations.any())
    offloaded_.emplace(device_.compute, device_.memory, *device_.slow.activations,
                       device_.slow.activation_bytes);
}

void TrainProgram::make_fp8() {
  fp8_ = std::make_unique<Fp8State>(
      *options_.fp8, device_.compute, device_.memory,
      options_.model.num_hidden_layers * fp8_slots(options_.model.moe.num_experts > 0));
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
                                         {options_.model.all_layers(), m.num_experts});
  place_set(device_.compute, router_bias_, kAllAxes, Placement::R());
  if (!device_.compute.meta()) fill_zero(device_.compute, router_bias_);
  for (int64_t i = 0; i < options_.model.all_layers(); ++i)
    if (options_.model.has_experts(i))
      store_.keep(correction_bias_name(options_.model, i),
                  router_bias_.flat(i * m.num_experts, {m.num_experts}));
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

MicroBatch TrainProgram::whole_in_place(int64_t place) const {
  const int64_t rows = options_.micro_batch * cut_.rows().rows;
  MicroBatch mb;
  mb.batch = options_.micro_batch;
  mb.seq = cut_.rows().rows;
  mb.cut = cut_;
  mb.positions = positions_;
  if (documents_.defined())
    mb.documents = documents_.flat(place * options_.micro_batch * options_.seq_length,
                                   {options_.micro_batch, options_.seq_length});
  if (position_ids_.defined()) mb.position_ids = position_ids_.flat(place * rows, {rows});
  mb.tokens = tokens_.flat(place * rows, {rows});
  mb.targets = targets_.flat(place * rows, {rows});
  if (options_.preference) mb.pairs = pairs_in_place(place);
  mb.sample_index = sample_index_.flat(place * options_.micro_batch, {options_.micro_batch});
  mb.target_samples = mb.sample_index;
  mb.loss = loss_;
  mb.z_loss = {options_.z_loss_coeff, z_loss_};
  if (const int64_t n = modules_of(options_) * rows; n > 0) {
    mb.mtp_tokens = mtp_tokens_.flat(place * n, {n});
    mb.mtp_targets = mtp_targets_.flat(place * n, {n});
    mb.mtp_loss = mtp_loss_;
  }
  mb.experts = experts_;
  mb.balance_sums = balance_sums_;
  mb.balance_table = balance_table_;
  mb.router_bias = router_bias_;
  mb.micros = options_.accumulation;
  return mb;
}

RowSamples TrainProgram::samples_of(const MicroBatch& whole, int64_t part) const {
  const int64_t n = whole.batch / device_.groups.mesh.sequence_parts();
  RowSamples r;
  r.sample_index = whole.sample_index.flat(part * n, {n});
  if (whole.documents.defined()) r.documents = whole.documents.narrow(part * n, n);
  if (whole.position_ids.defined())
    r.position_ids = whole.position_ids.flat(part * n * whole.seq, {n * whole.seq});
  return r;
}

MicroBatch TrainProgram::in_place(int64_t place) const {
  MicroBatch mb = whole_in_place(place);
  const Groups& g = device_.groups;
  if (g.one_d()) return mb;
  // Sequences are sharded over depth, then over row. Inside a 3D sublayer they are sharded over column
  // instead of row.
  const bool cube = g.mesh.tensor_mode == TensorMode::three_d;
  const MicroBatch whole = mb;
  const int ways = g.row.size();
  const int64_t parts = g.mesh.sequence_parts(), slice = g.depth.rank() * ways, mine = slice + g.row.rank();
  static_cast<RowSamples&>(mb) = samples_of(whole, mine);
  if (cube) mb.turned = samples_of(whole, slice + g.column.rank());
  mb.batch = whole.batch / parts;
  mb.target_samples = cube ? whole.sample_index.flat(slice * mb.batch, {ways * mb.batch}) : mb.sample_index;
  const int64_t rows = mb.rows();
  mb.tokens = whole.tokens.flat(slice * rows, {ways * rows});
  mb.targets =
      cube ? whole.targets.flat(slice * rows, {ways * rows}) : whole.targets.flat(mine * rows, {rows});
  Stream& s = device_.compute;
  if (!s.meta()) return mb;
  mb.tokens = place_apart(s, mb.tokens, "tokens");
  mb.targets = place_apart(s, mb.targets, "targets");
  for (const Tensor& t : {mb.tokens, mb.targets}) place_set(s, t, Axis::depth, Placement::V());
  if (!cube) place_set(s, mb.targets, Axis::row, Placement::S(0));
  return mb;
}

MicroBatch TrainProgram::load(const HostBatch& batch, int64_t place, bool training) {
  const MicroBatch mb = whole_in_place(place);
  if (device_.compute.meta()) {
    for (const Tensor& t : {mb.tokens, mb.targets, mb.sample_index, mb.mtp_tokens, mb.mtp_targets})
      if (t.defined()) place_set(device_.compute, t, kAllAxes, Placement::R());
    for (const Tensor& t : {mb.tokens, mb.targets, mb.mtp_tokens, mb.mtp_targets})
      if (t.defined()) place_set(device_.compute, t, kGradientAxes, Placement::V());
    place_set(device_.compute, mb.sample_index, kDataAxes, Placement::V());
    place_pairs(device_.compute, mb.pairs);
    return mb;
  }
  LT_CHECK(static_cast<int64_t>(batch.sample_index.size()) == mb.batch,
           "expected {} samples in a batch, got {}", mb.batch, batch.sample_index.size());
  const auto put = [&](const Tensor& to, const std::vector<int32_t>& from, const char* what) {
    if (!to.defined()) return;
    LT_CHECK(static_cast<int64_t>(from.size()) == to.elements(), "expected {} {} in a batch, got {}",
             to.elements(), what, from.size());
    staging_.put(to, from.data());
  };
  staging_.open();
  put(mb.tokens, batch.tokens, "tokens");
  put(mb.targets, batch.targets, "targets");
  if (training) put(mb.mtp_tokens, batch.mtp_tokens, "later tokens");
  if (training) put(mb.mtp_targets, batch.mtp_targets, "later targets");
  staging_.put(mb.sample_index, batch.sample_index.data());
  put(mb.documents, batch.documents, "document starts");
  put(mb.position_ids, batch.position_ids, "position ids");
  put(mb.pairs.texts, batch.segments, "texts");
  if (mb.pairs.on()) staging_.put(mb.pairs.references, batch.references.data());
  staging_.close();
  return mb;
}

void TrainProgram::reduce_sums(const char* reading) {
  const Groups& g = device_.groups;
  Stream& s = device_.compute;
  if (s.meta()) {
    // A stage without a head adds 0 to the loss. Each stage has its own gradients.
    if (loss_.record->zero) place_set(s, loss_, kAllAxes, Placement::P());
    for (const Tensor& t : {loss_, squares_, experts_, z_loss_, mtp_loss_, pairs_.totals}) {
      if (!t.defined()) continue;
      if (t.record->zero) place_set(s, t, kAllAxes, Placement::P());
      place_set(s, t, Axis::pipeline, Placement::P());
    }
    // Every rank of the inner axis has the full value, so only one adds it.
    const Axis inner = g.mesh.inner_axis();
    for (const Tensor& t : {loss_, experts_, z_loss_, mtp_loss_, pairs_.totals})
      if (t.defined() && t.record->place[inner] == Placement::R()) place_set(s, t, inner, Placement::P());
    place(s, "sums", Rule::linear, {sums_}, {loss_, squares_});
    for (const Tensor& t : {experts_, z_loss_, mtp_loss_, pairs_.totals})
      if (t.defined()) place(s, "sums", Rule::linear, {sums_}, {sums_, t});
  } else if (g.inner().rank() != 0) {
    fill_zero(s, loss_);
    if (z_loss_.defined()) fill_zero(s, z_loss_);
    if (mtp_loss_.defined()) fill_zero(s, mtp_loss_);
    if (pairs_.totals.defined()) fill_zero(s, pairs_.totals);
    if (experts_.defined() && options_.expert_tensor) fill_zero(s, experts_);
  }
  g.world.all_reduce(device_.compute, sums_);
  place_require(s, reading, sums_, Placement::R());
}

void TrainProgram::sum_counts(std::span<int64_t> counts) {
  const Tensor sums = count_.flat(0, {static_cast<int64_t>(counts.size())});
  if (device_.compute.meta()) {
    place_set(device_.compute, sums, kAllAxes, Placement::R());
    place_set(device_.compute, sums, kGradientAxes, Placement::P());
    device_.groups.gradient.all_reduce(device_.compute, sums);
    place_require(device_.compute, "reading the token count", sums, Placement::R());
    counts[0] =
        options_.micro_batch * cut_.rows().rows * options_.accumulation * device_.groups.gradient.size();
    return;
  }
  if (device_.groups.gradient.size() == 1) return;
  staging_.open();
  staging_.put(sums, counts.data());
  staging_.close();
  device_.groups.gradient.all_reduce(device_.compute, sums);
  staging_.get(counts.data(), sums);
  device_.groups.check();
}

bool TrainProgram::any_rank(bool mine) {
  const Group& world = device_.groups.world;
  if (world.size() == 1) return mine;
  int64_t ranks = mine;
  staging_.open();
  const Tensor sum = count_.flat(0, {1});
  staging_.put(sum, &ranks);
  staging_.close();
  world.all_reduce(device_.compute, sum);
  staging_.get(&ranks, sum);
  device_.groups.check();
  return ranks > 0;
}

std::vector<double> TrainProgram::read_sums() {
  std::vector<double> sums(static_cast<size_t>(sums_.elements()));
  staging_.get(sums.data(), sums_);
  device_.groups.check();
  return sums;
}

void TrainProgram::clear_sums() {
  fill_zero(device_.compute, sums_);
  if (device_.compute.meta())
    for (const Tensor& t : {loss_, squares_, experts_, z_loss_, mtp_loss_, pairs_.totals})
      if (t.defined()) place_zero(t);
}

StepResult TrainProgram::train_step(const std::vector<HostBatch>& batches, const AdamwArgs& adamw,
                                    const AskStop& ask_stop) {
  const bool meta = device_.compute.meta() != nullptr;
  const int64_t micros =
      meta && batches.empty() ? options_.accumulation : static_cast<int64_t>(batches.size());
  const bool first_alone = ends_at_ == StepEnd::first_micro_batch;
  const bool whole = micros == options_.accumulation && !first_alone;
  LT_CHECK(micros > 0 && micros <= options_.accumulation, "expected 1 to {} micro-batches, got {}",
           options_.accumulation, micros);
  Step step = make_step(true);
  step.enter("loss");
  StepResult result;
  int64_t counted = 0;
  for (const HostBatch& b : batches)
    for (int32_t t : b.targets) counted += t >= 0;
  PairCounts pairs;
  if (options_.preference) pairs = count_pairs(batches, device_.groups.context.rank());
  std::array<int64_t, 3> counts{counted, pairs.pairs, pairs.chosen_tokens};
  sum_counts(std::span(counts).first(options_.preference ? 3 : 1));
  counted = counts[0];
  result.tokens = counted;
  pairs = {counts[1], counts[2]};
  clear_sums();
  const HostBatch none;
  result.loss_scale = scaler_ ? scaler_->scale() : 1;
  // Gradients are divided by the number of terms of the loss.
  const int64_t terms = options_.preference ? pairs.pairs : result.tokens;
  const double scale = terms > 0 ? result.loss_scale / static_cast<double>(terms) : 0;
  const auto batch = [&](int64_t k) -> const HostBatch& { return meta ? none : batches[k]; };
  if (staged())
    for (int64_t k = 0; k < micros; ++k) load(batch(k), k, true);
  int64_t loaded = -1;
  const pipeline::Schedule fewer =
      whole ? pipeline::Schedule()
            : first_micros(options_.schedule, first_alone ? 1 : static_cast<int>(micros));
  const std::vector<pipeline::PipelineStep> lowered =
      whole ? std::vector<pipeline::PipelineStep>()
            : pipeline::lower(fewer, device_.groups.coordinate(Axis::pipeline));
  const EstimatePass estimate = store_.estimate(adamw.step);
  // Rounded gradients of tied weights are held in a wider type from one stage's action to another's, so their
  // actions differ.
  const bool same_each = !options_.sharding.shards_gradients() && estimate == EstimatePass::none &&
                         dtype_size(options_.precision.grad) >= 4;
  StageRun run(decoder_, step, whole ? options_.schedule : fewer, same_each ? repeated_ : nullptr);
  // Libraries initialize in the first step. After an estimate pass, weights that a graph would gather are
  // already gathered.
  const bool graphed = scale_.defined() && !meta && steps_ > 0 && estimate == EstimatePass::none;
  if (scale_.defined() && !meta) {
    staging_.open();
    staging_.put(scale_, &scale);
    staging_.close();
  }
  ++steps_;
  bool draws = false;
  const auto scaled = [&](MicroBatch mb) {
    mb.micros = micros;
    mb.grad_scale = scale;
    mb.loss_scale = result.loss_scale;
    if (options_.preference) mb.pairs.chosen_weight = chosen_weight(*options_.preference, pairs);
    if (!meta) mb.grad_scale_at = scale_;
    if (!draws) return mb;
    mb.loss_scale = 0;
    mb.drawn.emplace();
    mb.drawn->seed = seed_of_step(options_.seed, adamw.step);
    mb.drawn->stream = hash_name("drawn labels");
    mb.drawn->sample_index = mb.target_samples;
    return mb;
  };
  const auto pass = [&] {
    run.run(whole ? program_ : lowered, [&](int k) {
      const int64_t place = staged() ? k : k % places_;
      if (!staged() && loaded < k) load(batch(loaded = k), place, true);
      return scaled(in_place(place));
    });
  };
  if (fp8_) fp8_->forget_weights();
  if (estimate != EstimatePass::none) {
    store_.begin_step(micros, adamw.step);
    store_.begin_estimate(estimate);
    store_.gather_weights();
    draws = estimate == EstimatePass::sampled_labels;
    pass();
    draws = false;
    step.enter("gradients");
    store_.finish_gradients();
    store_.end_estimate(adamw, static_cast<double>(result.tokens), result.loss_scale);
    clear_sums();
    loaded = -1;
    if (fp8_ && estimate == EstimatePass::moved_weights) fp8_->forget_weights();
  }
  store_.begin_step(micros, adamw.step);
  if (!graphed) store_.gather_weights();
  if (graphed && staged()) {
    graphed_pass(0, micros, micros, pass);
  } else if (graphed) {
    for (int64_t k = 0; k < micros; ++k) {
      load(batch(k), 0, true);
      graphed_pass(k, 1, micros, [&] {
        run.run({program_.begin() + 2 * k, program_.begin() + 2 * k + 2},
                [&](int) { return scaled(in_place(0)); });
      });
    }
  } else {
    pass();
  }
  actions_ = run.actions();
  if (ends_at_ != StepEnd::update) return result;
  step.enter("gradients");
  store_.finish_gradients();
  if (step.fp8) fp8_->finish_step(device_.compute, device_.groups.world);
  store_.add_grad_squares(squares_);
  if (!meta && ask_stop && ask_stop()) fill_value(device_.compute, sums_.flat(1, {1}), 1);
  reduce_sums("reading the loss and the gradient norm");

  AdamwArgs args = adamw;
  if (!meta) {
    const std::vector<double> sums = read_sums();
    double squares = 0;  // summed in the order of the layers, independent of the rank that has them
    for (int64_t i = 0; i < squares_.elements(); ++i) squares += sums[static_cast<size_t>(2 + i)];
    result.experts = expert_statistics(sums);
    result.loss = result.tokens > 0 ? sums[0] / static_cast<double>(result.tokens) : 0;
    if (z_loss_.defined() && result.tokens > 0)
      result.z_loss = sums[sums.size() - 1 - mtp_loss_.defined()] / static_cast<double>(result.tokens);
    if (mtp_loss_.defined() && result.tokens > 0)
      result.mtp_loss = sums.back() / static_cast<double>(result.tokens * modules_of(options_));
    if (options_.preference) {
      result.preference = preference_result(*options_.preference, pairs, sums);
      result.loss = result.preference->loss;
    }
    result.grad_norm = std::sqrt(squares) / result.loss_scale;
    result.stop_requested = sums[1] > 0;
    result.overflow = scaler_ && std::isfinite(sums[0]) && !std::isfinite(squares);
    result.finite =
        std::isfinite(sums[0]) && std::isfinite(result.loss) && (std::isfinite(squares) || result.overflow);
    result.diverged = options_.stop_loss > 0 && result.loss > options_.stop_loss;
    result.skipped =
        !result.overflow && options_.skip_grad_norm > 0 && result.grad_norm > options_.skip_grad_norm;
    if (scaler_ && result.finite) scaler_->note(result.overflow);
    if (!result.finite || result.diverged || result.skipped || result.overflow) return result;
    if (options_.clip_grad > 0)
      args.grad_scale = std::min(1.0, options_.clip_grad / (result.grad_norm + 1e-6));
    args.grad_scale /= result.loss_scale;
  }
  step.enter("optimizer");
  if (meta) device_.compute.meta()->set_model_work(false);
  store_.update(args);
  if (meta) device_.compute.meta()->set_model_work(true);
  const double rate = options_.model.moe.bias_update_rate;
  if (router_bias_.defined() && rate > 0 && !options_.optimizer.freeze_routers)
    move_router_bias(device_.compute, router_bias_, summed_routers(), rate);
  return result;
}

void TrainProgram::graphed_pass(int64_t first, int64_t count, int64_t micros,
                                const std::function<void()>& pass) {
  const bool last = first + count == micros;
  std::unique_ptr<Graph>& graph = graphs_[first > 0][!last && device_.groups.mesh.world() > 1];
  if (graph) {
    store_.replayed(count, first == 0);
  } else {
    graph = device_.compute.capture(
        [&] {
          if (first == 0) store_.gather_weights(true);
          pass();
          if (last) store_.end_reductions();
        },
        device_.groups.streams());
  }
  const OpRange range(device_.compute, "recorded_micro_batch");
  graph->replay();
}

}  // namespace ltrain
