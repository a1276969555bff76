#include "tests/support/tiny_job.h"

#include <omp.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <thread>

#include "kernels/tensor/device.h"
#include "kernels/tensor/host_work.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/timeline.h"
#include "parallel/nccl/communicator_nccl.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/thread_ranks.h"

namespace ltrain::test {

ModelConfig tiny_model(const TinyOptions& o) {
  ModelConfig c;
  c.family = o.family ? o.family : &family_of(o.architecture);
  c.vocab_size = o.vocab;
  c.hidden_size = o.hidden;
  c.intermediate_size = o.intermediate ? o.intermediate : o.architecture == "gpt2" ? 4 * o.hidden : 40;
  c.num_hidden_layers = o.layers;
  c.num_attention_heads = o.heads;
  c.num_key_value_heads = o.kv_heads ? o.kv_heads : o.architecture == "gpt2" ? o.heads : o.heads / 2;
  c.head_dim = c.hidden_size / o.heads;
  c.max_position_embeddings = 128;
  c.tie_word_embeddings = (o.tied || o.architecture == "gpt2") && !o.untied;
  c.scores_texts = o.preference && o.preference->kind == PreferenceKind::reward;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = o.dropout;
  for (int64_t i = 0; i < o.layers; ++i) {
    if (o.without_positions) c.no_rope_layers.push_back(i % 2);
    if (o.window) c.layer_types.push_back(i % 2 ? LayerType::full_attention : LayerType::sliding_attention);
  }
  if (o.window) c.sliding_window = o.window;
  if (o.window && c.family->local_rotation) c.rope_local_base_freq = 50.0;
  if (c.family->soft_caps) {  // bound that most scores and logits come near
    c.query_pre_attn_scalar = 1.7;
    c.attn_logit_softcapping = 0.6;
    c.final_logit_softcapping = 0.9;
  }
  if (o.family && o.family->clips_qkv) c.clip_qkv = 0.8;  // a part of all values
  if (c.traits().latent_attention) {
    c.latent = {7, 6, 4, 4, 5};
    if (o.no_query_latent) c.latent.q_lora_rank.reset();
    c.head_dim = c.latent.qk_nope_head_dim + c.latent.qk_rope_head_dim;
    c.num_key_value_heads = o.heads;
  }
  c.num_nextn_predict_layers = o.modules;
  c.mtp_loss_scaling_factor = o.modules_scale;
  c.moe = o.moe;
  if (c.moe.num_experts > 0 && c.moe.intermediate_size == 0) c.moe.intermediate_size = 24;
  c.lora = o.lora;
  c.initializer_range = 0.1;  // larger than usual, so that every path matters at once
  return c;
}

std::vector<int32_t> tiny_sample(const TinyOptions& o, int64_t sample) {
  std::vector<int32_t> tokens(o.seq + 1);
  for (int64_t i = 0; i <= o.seq; ++i)
    tokens[i] = static_cast<int32_t>(philox(7, static_cast<uint64_t>(sample), static_cast<uint64_t>(i)).v[0] %
                                     o.vocab);
  if (o.distinct_starts) tokens[0] = static_cast<int32_t>(sample % o.vocab);
  return tokens;
}

namespace {

int sites_of(const TinyOptions& o) { return std::max(1, static_cast<int>(o.optimizer.diloco.sites)); }

/// Micro-batches of a rank in a step, of a site with `count` of each `of` micro-batches.
int64_t micros_of(const TinyOptions& o, int64_t count, int64_t of) {
  return o.global_batch / (o.micro_batch * o.ranks * of) * count;
}

/// Micro-batches of a rank in a step, in the site that has most.
int64_t most_micros(const TinyOptions& o) {
  const DilocoSettings& d = o.optimizer.diloco;
  return micros_of(o, d.largest_share(), d.share(0).of);
}

}  // namespace

Mesh tiny_mesh(const TinyOptions& o, int rank) {
  Mesh m;
  m.degree = {o.ranks, o.pipeline, o.context, 1, 1, 1, 1, 1, 1};
  m.sites = sites_of(o);
  m.rank = rank;
  m.cut_tensor(tensor_mode(o.tensor_mode), o.tensor, o.tensor_depth);
  if (o.shard) {
    const std::string wrong = m.split_levels(o.shard);
    LT_CHECK(wrong.empty(), "{}", wrong);
  }
  const std::string wrong = m.cut_experts(o.expert, !o.expert_tensor);
  LT_CHECK(wrong.empty(), "{}", wrong);
  return m;
}

int tiny_world(const TinyOptions& o) { return tiny_mesh(o, 0).world(); }

ContextSharding tiny_cut(const TinyOptions& o, int coordinate) {
  return {o.seq, o.context, coordinate, enum_value<ContextComm>(o.context_comm).value(), o.context_inner};
}

std::vector<int32_t> tiny_documents(const TinyOptions& o, int64_t sample) {
  std::vector<int32_t> starts(o.seq);
  if (o.preference) {  // two pairs, of which the second is missing from every third sample, and padding
    for (int64_t i = 1; i < o.seq; ++i) {
      const int64_t texts = sample % 3 ? 4 : 2, each = 4 + sample % 2;
      const bool begins =
          (i <= texts * each && i % each == 0) || (sample % 4 == 0 && i == 3 * each + 1 && texts == 4);
      starts[i] = begins && !(sample % 4 == 0 && i == 3 * each) ? static_cast<int32_t>(i) : starts[i - 1];
    }
    return starts;
  }
  for (int64_t i = 1; i < o.seq; ++i) {
    const uint32_t random = philox(8, static_cast<uint64_t>(sample), static_cast<uint64_t>(i)).v[0];
    starts[i] = random % 6 == 0 ? static_cast<int32_t>(i) : starts[i - 1];
  }
  return starts;
}

std::vector<uint8_t> tiny_counted(const TinyOptions& o, int64_t sample) {
  const std::vector<int32_t> starts = tiny_documents(o, sample);
  std::vector<uint8_t> counted(o.seq + 1);
  const int64_t padding = starts.back();
  for (int64_t i = 0; i < padding; ++i) counted[i] = i - starts[i] >= 2;
  return counted;
}

namespace {

/// Adds the pairs of a sample, which is number `b` of its batch.
void add_pairs(const TinyOptions& o, int64_t sample, int64_t b, const Positions& rows, HostBatch& to) {
  std::vector<int32_t> starts = tiny_documents(o, sample), texts;
  starts.push_back(static_cast<int32_t>(o.seq));
  const std::vector<uint8_t> counted = tiny_counted(o, sample);
  data::segments_of(starts, counted, "tiny", texts);
  const int64_t most = data::max_segments(o.seq);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t t = rows.at(r), row = b * rows.rows + r;
    to.segments.push_back(texts[t] < 0 ? -1 : static_cast<int32_t>(b * most) + texts[t]);
    const bool ends = texts[t] >= 0 && (t + 1 == o.seq || texts[t + 1] != texts[t]);
    if (o.preference->kind == PreferenceKind::reward ? !ends : !counted[t + 1]) to.targets[row] = -1;
  }
  to.pairs += (*std::max_element(texts.begin(), texts.end()) + 1) / 2;
  const bool kto = o.preference->labelled();
  for (int64_t pair = 0; kto && pair < most / 2; ++pair) to.labels.push_back((sample + pair) % 3 != 0);
  for (int64_t t = 0; t < most; ++t)
    to.references.push_back(
        (kto ? -12 : -8) -  // with kto the divergence is above 0
        static_cast<double>(philox(9, static_cast<uint64_t>(sample), static_cast<uint64_t>(t)).v[0] % 100) /
            25);
}

}  // namespace

std::vector<HostBatch> tiny_batches(const TinyOptions& o, int64_t step, int rank, int context) {
  const SiteShare share = o.optimizer.diloco.share(rank % sites_of(o));
  const int64_t accumulation = micros_of(o, share.count, share.of), place = rank / sites_of(o);
  const Positions rows = tiny_cut(o, context).rows();
  std::vector<HostBatch> batches(accumulation);
  for (int64_t k = 0; k < accumulation; ++k)
    for (int64_t b = 0; b < o.micro_batch; ++b) {
      HostBatch& to = batches[k];
      const int64_t sample = step * o.global_batch + share.at(k * o.ranks + place) * o.micro_batch + b;
      const std::vector<int32_t> row = tiny_sample(o, sample);
      const std::vector<int32_t> documents = tiny_documents(o, sample);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const int64_t t = rows.at(r);
        const bool counts = !o.padded_targets || t < o.seq - sample % 5;  // rows count unequally many tokens
        to.tokens.push_back(row[t]);
        to.targets.push_back(counts ? row[t + 1] : -1);
        if (o.packed) to.position_ids.push_back(static_cast<int32_t>(t) - documents[t]);
      }
      if (o.packed) to.documents.insert(to.documents.end(), documents.begin(), documents.end());
      to.sample_index.push_back(sample);
      if (o.preference) add_pairs(o, sample, b, rows, to);
    }
  for (int64_t n = 1; n <= o.modules; ++n)  // the token n places on, and the one behind it
    for (int64_t k = 0; k < accumulation; ++k)
      for (const int64_t sample : batches[k].sample_index) {
        const std::vector<int32_t> row = tiny_sample(o, sample), documents = tiny_documents(o, sample);
        for (int64_t r = 0; r < rows.rows; ++r) {
          const int64_t t = rows.at(r) + n;
          const bool counts = t < (o.padded_targets ? o.seq - sample % 5 : o.seq) &&
                              (!o.packed || documents[t] == documents[rows.at(r)]);
          batches[k].mtp_tokens.push_back(t <= o.seq ? row[t] : 0);
          batches[k].mtp_targets.push_back(counts ? row[t + 1] : -1);
        }
      }
  return batches;
}

ProgramOptions tiny_program(const TinyOptions& o) {
  ProgramOptions p;
  p.model = tiny_model(o);
  p.precision = precision_policy(o.precision);
  p.sharding = ShardingPolicy::zero(o.zero_stage, o.reshard, o.zero_layers);
  p.sequence_parallel = o.sequence_parallel;
  p.expert_tensor = o.expert_tensor;
  p.dispatch = o.dispatch;
  p.intra_node_experts = o.intra_node_experts;
  p.context_comm = enum_value<ContextComm>(o.context_comm).value();
  p.context_inner = o.context_inner;
  p.documents = p.position_ids = o.packed;
  p.preference = o.preference;
  p.bucket_elements = o.bucket_elements;
  p.micro_batch = o.micro_batch;
  p.seq_length = o.seq;
  p.accumulation = most_micros(o);
  p.clip_grad = o.clip;
  p.skip_grad_norm = o.skip_grad_norm;
  p.z_loss_coeff = o.z_loss_coeff;
  if (o.precision == "fp16") p.loss_scale = o.loss_scale;
  p.fp8 = o.fp8;
  p.products = !o.products.empty()     ? o.products[0]
               : o.fp8                 ? MatmulPrecision::fp8
               : o.precision == "tf32" ? MatmulPrecision::tf32
                                       : MatmulPrecision::plain;
  p.optimizer = o.optimizer;
  if (o.lora.on()) p.optimizer.trained = o.lora.trained();
  p.offload = o.offload;
  p.ema_decay = o.ema_decay;
  p.reduce_bf16 = o.reduce_bf16;
  if (o.bf16_gradients) p.precision.grad = DType::bf16;
  p.reduce_code = o.reduce_code;
  if (o.bf16_states) p.precision.state = DType::bf16;
  if (!o.master_weights) p.precision.master = p.precision.compute;
  p.recompute = o.recompute;
  p.activations = o.activations;
  p.logits_chunk = o.logits_chunk;
  p.interleaved = o.interleaved;
  p.async_tensor_parallel = o.async_tensor_parallel;
  p.choices = o.choices;
  p.cuda_graphs = o.cuda_graphs;
  p.attention_backend = o.attention_backend;
  p.deterministic = o.deterministic;
  if (o.pipeline > 1) {
    p.schedule = pipeline::make_schedule(o.schedule, o.pipeline, o.chunks, static_cast<int>(p.accumulation),
                                         o.interleaved);
    const int stages = p.schedule.stages();
    for (int i = 0; i < stages; ++i)  // uneven where it does not divide
      p.stage_layers.push_back(static_cast<int>(o.layers * (i + 1) / stages - o.layers * i / stages));
  }
  return p;
}

OptimizerStep tiny_adamw(int64_t step) {
  OptimizerStep a;
  a.lr = 1e-2;
  a.weight_decay = 0.1;
  a.step = step;
  return a;
}

MetaJob::MetaJob(const TinyOptions& o, int rank, const GroupWrapper& wrap)
    : groups(
          tiny_mesh(o, rank),
          [&](const GroupRequest& r) {
            auto group = make_recording_group(r, rank);
            return wrap ? wrap(r, std::move(group)) : std::move(group);
          },
          [&](const std::string& name) { return make_meta_stream(name, trace); },
          group_options(tiny_program(o))),
      compute(make_meta_stream("compute", trace)),
      memory(trace),
      host(trace),
      slow(trace, o.device, {}),
      program(
          (set_axes(trace, tiny_mesh(o, rank)), tiny_program(o)),
          {*compute, memory, groups.groups(), o.device == DeviceKind::cpu ? nullptr : &host, slow.places()}) {
}

namespace {

/// The elements of a tensor of any device.
std::vector<double> elements(Stream& s, const Tensor& t) {
  std::vector<char> bytes(static_cast<size_t>(t.bytes()));
  download(s, bytes.data(), t);
  std::vector<double> out(static_cast<size_t>(t.elements()));
  const auto convert = [&](auto* from) { std::copy(from, from + out.size(), out.begin()); };
  switch (t.dtype) {
    case DType::f64:
      convert(reinterpret_cast<const double*>(bytes.data()));
      break;
    case DType::f32:
      convert(reinterpret_cast<const float*>(bytes.data()));
      break;
    default:
      convert(reinterpret_cast<const bf16*>(bytes.data()));
  }
  return out;
}

/// The elements of blocks in NF4.
std::vector<double> elements(Stream& s, const Nf4Matrix& m) {
  const std::vector<double> absmax = elements(s, m.absmax);
  std::vector<uint8_t> codes(static_cast<size_t>(m.codes.bytes()));
  download(s, codes.data(), m.codes);
  std::vector<double> out(codes.size() * kNf4Pair);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] =
        static_cast<double>(nf4_level(i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4)) * absmax[i / kNf4Block];
  return out;
}

class World {
 public:
  ThreadGroups groups;
  FakeNetwork network;
  const std::shared_ptr<KeyValueStore> store = make_memory_store();
  /// Adds a rank's pieces; an element that two ranks own is an error.
  void add(NamedTensors& to, const Slice& slice, const std::string& name, const std::vector<double>& values) {
    std::lock_guard lock(mutex_);
    std::vector<double>& whole = to[name];
    whole.resize(slice.global.elements(), std::nan(""));
    Runs runs(slice);
    for (Run run = runs.next(); run.count > 0; run = runs.next())
      for (int64_t i = 0; i < run.count; ++i) {
        LT_CHECK(std::isnan(whole[run.global + i]), "{} element {} is owned twice", name, run.global + i);
        whole[run.global + i] = values[run.local + i];
      }
  }

 private:
  std::mutex mutex_;
};

std::map<std::string, int64_t> bytes_by_group(const Groups& groups) {
  std::map<std::string, int64_t> bytes;
  for (const Communicator* c : groups.all())
    if (c->wire_bytes() > 0) bytes[c->name()] += c->wire_bytes();
  return bytes;
}

void train_rank(const TinyOptions& o, int rank, World& world, const GroupWrapper& wrap,
                const TinyHooks& hooks, TinyResult& result) {
  omp_set_num_threads(1);
  const bool last = rank + 1 == tiny_world(o);
  // Plan on meta, then run in an arena of exactly that size.
  {
    MetaJob meta(o, rank);
    const StepKinds kinds = step_kinds(o.optimizer);
    int64_t train = 0, before = 0;
    const SiteShare share = o.optimizer.diloco.share(tiny_mesh(o, rank).site());
    const std::vector<HostBatch> fewer(share.count < o.optimizer.diloco.largest_share()
                                           ? static_cast<size_t>(micros_of(o, share.count, share.of))
                                           : 0);
    for (const int64_t one : kinds.all()) {
      meta.program.train_step(fewer, tiny_adamw(one));
      const size_t kind = kinds.kind_of(one);
      const int64_t steps = kind > 0 ? kinds.count(kind, o.steps) : o.steps - kinds.others(o.steps);
      train += (meta.groups.groups().wire_bytes() - before) * steps;
      before = meta.groups.groups().wire_bytes();
      if (kind > 0) continue;
      if (o.timeline)
        for (const TraceEntry& e : meta.trace.entries())
          result.plan_ops[rank].push_back(fmt::format("{}: {}: {}", e.stream, e.layer, e.name));
      if (last)
        for (const auto& [name, bytes] : bytes_by_group(meta.groups.groups()))
          result.plan_groups[name] = bytes * o.steps;
    }
    for (size_t i = 1; i < o.products.size(); ++i) {  // then every step is one of these
      meta.program.set_matmul_precision(o.products[i]);
      meta.program.train_step({}, tiny_adamw(1));
      train = before = meta.groups.groups().wire_bytes();
    }
    if (o.micros > 0 && o.pipeline > 1) {
      meta.program.train_step(std::vector<HostBatch>(static_cast<size_t>(o.micros)), tiny_adamw(1));
      before = meta.groups.groups().wire_bytes();
    }
    int64_t batches = micros_of(o, 1, sites_of(o));
    const HostBatch any;
    meta.program.evaluate([&] { return batches-- > 0 ? &any : nullptr; });
    result.plan_wire[rank] = train + meta.groups.groups().wire_bytes() - before;
    result.plan_bytes[rank] = meta.memory.peak().arena_bytes;
    result.plan_host[rank] = meta.host.peak().arena_bytes;
    result.offload_bytes[rank] = meta.program.parameters().offload_bytes();
    result.plan_offloaded[rank] = meta.program.offloaded();
  }
  Arena arena(o.device, result.plan_bytes[rank]);  // outlives the streams of the groups
  const auto host = Arena::staging(o.device, result.plan_host[rank]);
  GroupSet::Options group_set = group_options(tiny_program(o));
  group_set.together = o.nccl;
  std::shared_ptr<NcclWorld> nccl;
  if (o.nccl) nccl = make_nccl_world(world.network.open(), *world.store, "nccl", rank, tiny_world(o));
  GroupSet groups(
      tiny_mesh(o, rank),
      [&](const GroupRequest& r) {
        auto group = nccl ? make_nccl_group(nccl, r.ranks, r.name, r.axes) : world.groups.take(r, rank);
        return wrap ? wrap(r, std::move(group)) : std::move(group);
      },
      [&](const std::string& name) { return make_side_stream(o.device, name); }, group_set);
  auto compute = make_compute_stream(o.device, "compute");
  const bool files = o.device == DeviceKind::cpu || o.offload_to_files;
  const std::string folder = files ? std::filesystem::temp_directory_path().string() : "";
  const OffloadMemories slow(tiny_program(o), o.device, {folder, folder, folder},
                             result.plan_offloaded[rank].activations);
  TrainProgram program(tiny_program(o), {*compute, arena, groups.groups(),
                                         o.device == DeviceKind::cpu ? nullptr : host.get(), slow.places()});
  const auto control = world.groups.take({"control", kAllAxes, tiny_mesh(o, rank).all_ranks()}, rank);
  const TinyRank here{rank, program, *control};
  const int64_t first = hooks.begin ? hooks.begin(here) : 0;
  if (o.late_start)  // the first weights are written while the first step is being enqueued
    cuda::run_on_host(*compute, [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  if (first == 0) program.initialize();
  const int64_t sent_before = groups.groups().wire_bytes();  // quantized weights are gathered at the start
  const Mesh& mesh = groups.groups().mesh;
  const int data = mesh.place_in(kDataAxes) * mesh.sites + mesh.site();
  const int context = groups.groups().coordinate(Axis::context);
  const ParameterStore& store = program.parameters();
  for (int64_t step = first; step < o.steps; ++step) {
    std::vector<HostBatch> batches = tiny_batches(o, step, data, context);
    if (o.micros > 0) batches.resize(static_cast<size_t>(o.micros));
    if (!o.products.empty()) program.set_matmul_precision(o.products[static_cast<size_t>(step)]);
    std::optional<Timeline> timeline;
    if (o.timeline && step + 1 == o.steps) timeline.emplace();
    if (hooks.before_step) hooks.before_step(here, step + 1, batches);
    const StepResult r = program.train_step(batches, tiny_adamw(step + 1));
    if (hooks.after_step) hooks.after_step(here, step + 1, batches);
    if (timeline) {
      compute->synchronize();
      groups.synchronize();
      slow.synchronize();
      for (const Timeline::Range& e : timeline->ranges())
        result.used_ops[rank].push_back(fmt::format("{}: {}: {}", e.stream, e.layer, e.name));
      timeline.reset();
    }
    if (step + 1 == std::max(first + 1, o.gradients_of) && o.read_gradients && mesh.site() == 0)
      for (const OwnedPiece& p : store.owned_pieces())
        if (p.grad.defined())
          world.add(result.gradients, p.slice, store.spec(p.id).name, elements(*compute, p.grad));
    if (rank != 0) continue;
    if (program.loss_scaler()) result.loss_scales.push_back(r.loss_scale);
    result.losses.push_back(r.loss);
    result.mtp_losses.push_back(r.mean("mtp_loss"));
    result.z_losses.push_back(r.mean("z_loss"));
    result.norms.push_back(r.grad_norm);
    result.balance_losses.push_back(r.experts.balance_loss + r.experts.z_loss + r.experts.entropy_loss);
    result.experts.push_back(r.experts);
    if (o.offload.skip_untouched) result.moved_mib.push_back(r.mean("offload_moved_mib"));
  }
  if (rank == 0 && program.loss_scaler()) result.loss_scales.push_back(program.loss_scaler()->scale());
  groups.synchronize();
  if (last) result.used_groups = bytes_by_group(groups.groups());
  if (hooks.end) hooks.end(here);
  TinyOptions equal = o;
  equal.optimizer.diloco.shares = {};
  const auto held_out = tiny_batches(equal, 1000, data, context);
  size_t at = 0;
  const double eval = program.evaluate([&] { return at < held_out.size() ? &held_out[at++] : nullptr; });
  groups.synchronize();
  if (rank == 0) result.eval_loss = eval;
  program.parameters().wait_offloaded();
  LT_CHECK(store.offload_bytes() == result.offload_bytes[rank], "{} bytes in offload memory, {} planned",
           store.offload_bytes(), result.offload_bytes[rank]);
  for (const OwnedPiece& p : store.owned_pieces()) {
    world.add(result.sites[static_cast<size_t>(mesh.site())], p.slice, store.spec(p.id).name,
              p.nf4.defined() ? elements(*compute, p.nf4) : elements(*compute, p.master));
    for (const NamedState& s : p.moments)
      if (s.name == kAverage)
        world.add(result.averages, p.slice, store.spec(p.id).name, elements(*compute, s.tensor));
  }
  result.used_offloaded[rank] = program.offloaded();
  result.used_bytes[rank] = arena.peak().arena_bytes;
  result.used_host[rank] = host->peak().arena_bytes;
  result.used_wire[rank] = groups.groups().wire_bytes() - sent_before;
}

}  // namespace

TinyResult train_tiny(const TinyOptions& o, const GroupWrapper& wrap, const TinyHooks& hooks) {
  const int ranks = tiny_world(o);
  TinyResult result;
  for (auto* v : {&result.plan_bytes, &result.used_bytes, &result.plan_host, &result.used_host,
                  &result.plan_wire, &result.used_wire, &result.offload_bytes})
    v->resize(ranks);
  for (auto* v : {&result.plan_offloaded, &result.used_offloaded}) v->resize(ranks);
  result.plan_ops.resize(ranks), result.used_ops.resize(ranks);
  result.sites.resize(static_cast<size_t>(sites_of(o)));
  World world;
  on_threads(ranks, [&](int r) { train_rank(o, r, world, wrap, hooks, result); });
  result.parameters = result.sites[0];
  for (const NamedTensors* all : {&result.parameters, &result.gradients})
    for (const auto& [name, values] : *all)
      for (double v : values) LT_CHECK(!std::isnan(v), "{} has an element that no rank owns, or a NaN", name);
  return result;
}

}  // namespace ltrain::test
