#include "runtime/bench/bench.h"

#include <omp.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "kernels/attention/attention.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/meta_memory.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/timeline.h"
#include "runtime/launch/job.h"

namespace ltrain {
namespace {

/// Records the cost of every op of a step.
class Remember final : public CostModel {
 public:
  bool sees_each() const override { return true; }
  double seconds(const OpCost& op) const override {
    costs.push_back(op);
    names.push_back(std::string(op.name));
    return 0;
  }
  mutable std::vector<OpCost> costs;
  mutable std::vector<std::string> names;
};

std::vector<BenchModel> cpu_models() {
  return {bench_model("llama, width 128", "llama", 128, 344, 4, 1024, 4, 64),
          bench_model("llama, width 320", "llama", 320, 864, 5, 257, 4, 256),
          bench_model("gpt2, width 512", "gpt2", 512, 2048, 8, 8192, 1, 256),
          bench_model("gpt2, width 768", "gpt2", 768, 3072, 12, 50257, 2, 64),
          bench_model("llama, width 768", "llama", 768, 2048, 12, 4096, 1, 512)};
}

std::vector<BenchModel> card_models() {
  return {bench_model("gpt2, width 768", "gpt2", 768, 3072, 12, 50304, 8, 1024),
          bench_model("gpt2, width 1600", "gpt2", 1600, 6400, 25, 50304, 8, 1024),
          bench_model("llama, width 1024", "llama", 1024, 2816, 16, 32000, 4, 1024),
          bench_model("llama, width 2048", "llama", 2048, 8192, 32, 128256, 2, 4096),
          bench_model("llama, width 4096", "llama", 4096, 14336, 32, 128256, 1, 4096),
          bench_model("llama, width 8192", "llama", 8192, 28672, 64, 32000, 1, 4096)};
}

std::vector<HostBatch> random_batches(const ProgramOptions& o) {
  std::vector<HostBatch> batches(o.accumulation);
  uint64_t i = 0;
  for (HostBatch& b : batches) {
    for (int64_t t = 0; t < o.micro_batch * o.seq_length; ++t) {
      b.tokens.push_back(static_cast<int32_t>(philox(1, 2, ++i).v[0] % o.model.vocab_size));
      for (int64_t k = 0; k < o.model.num_nextn_predict_layers; ++k)
        for (auto* later : {&b.mtp_tokens, &b.mtp_targets})
          later->push_back(static_cast<int32_t>(t % o.model.vocab_size));
      b.targets.push_back(static_cast<int32_t>(philox(1, 3, i).v[0] % o.model.vocab_size));
    }
    for (int64_t s = 0; s < o.micro_batch; ++s) b.sample_index.push_back(s);
  }
  return batches;
}

constexpr int kSteps = 3;  // timed steps of each reference model

/// Median; of an even number of values, the lower middle one.
double median(std::vector<double>& t) {
  const auto middle = t.begin() + static_cast<std::ptrdiff_t>((t.size() - 1) / 2);
  std::nth_element(t.begin(), middle, t.end());
  return *middle;
}

struct Measured {
  Remember cost;
  std::vector<double> seconds;  // median of each op over the timed steps
};

/// Bytes of the arena and of host memory for copies. plan_model also records the ops of a step in `cost`.
struct Planned {
  int64_t arena = 0, host = 0;
};
Planned plan_model(const ProgramOptions& options, DeviceKind device, Remember& cost) {
  MetaTrace trace(&cost);
  auto compute = make_meta_stream("compute", trace);
  const GroupSet groups = make_meta_groups(Mesh{}, trace);
  MetaMemory memory(trace), host(trace);
  TrainProgram program(options,
                       {*compute, memory, groups.groups(), device == DeviceKind::cpu ? nullptr : &host});
  cost.costs.clear();
  cost.names.clear();
  program.train_step({}, OptimizerStep{});
  return {memory.peak().arena_bytes, host.peak().arena_bytes};
}

/// Measures the median seconds of the ops of run(step), after a warm-up call. The ops must be those of
/// out.cost in order, so that the n-th time belongs to the n-th op.
void time_ops(Measured& out, Stream& compute, const std::function<void(int step)>& run) {
  std::vector<std::vector<double>> times(out.cost.costs.size());
  for (int step = 0; step < kSteps + 1; ++step) {
    const Timeline timeline;
    run(step);
    compute.synchronize();
    const auto ranges = timeline.ranges();
    LT_CHECK(ranges.size() == times.size(), "expected {} planned ops, got {}", times.size(), ranges.size());
    for (size_t i = 0; step > 0 && i < ranges.size(); ++i) {
      LT_CHECK(ranges[i].name == out.cost.names[i], "expected op {} to be {}, got {}", i, out.cost.names[i],
               ranges[i].name);
      times[i].push_back(ranges[i].seconds);
    }
  }
  for (std::vector<double>& t : times) out.seconds.push_back(median(t));
}

/// Runs steps of a model on the calling thread.
void run_model(const ProgramOptions& options, DeviceKind device, int threads, Measured* result) {
  omp_set_num_threads(threads);
  Measured local;
  Measured& out = result ? *result : local;
  const GroupSet alone;
  const Planned bytes = plan_model(options, device, out.cost);
  Arena arena(device, bytes.arena);
  const auto host = Arena::staging(device, bytes.host);
  const auto compute = make_compute_stream(device, "compute");
  TrainProgram program(options,
                       {*compute, arena, alone.groups(), device == DeviceKind::cpu ? nullptr : host.get()});
  program.initialize();
  const auto batches = random_batches(options);
  time_ops(out, *compute, [&](int step) {
    OptimizerStep a;
    a.lr = 1e-4;
    a.step = step + 1;
    program.train_step(batches, a);
  });
}

/// Attention between the queries of one context rank and the keys of another, with two ranks, like the blocks
/// of the ring. Half of the pairs are visible.
class Block {
 public:
  Block(Stream& s, Memory& memory, const AttentionShape& shape, DType type) : stream_(s) {
    const int64_t each = shape.seq / 4, rows = shape.batch * 2 * each, q_width = shape.heads * shape.head_dim,
                  kv_width = shape.kv_heads * shape.head_dim;
    const DType wide = type == DType::f64 ? DType::f64 : DType::f32;
    const auto tensor = [&](const char* name, DType t, const Shape& is) {
      return memory.allocate(MemoryKind::temporaries, name, t, is);
    };
    const auto normal = [&](const char* name, DType t, const Shape& is) {
      const Tensor values = tensor(name, t, is);
      fill_normal(s, values, 1, ++seeds_, 0, 0, 1);
      place_set(s, values, kAllAxes, Placement::R());
      return values;
    };
    block_.shape = shape;
    block_.q_at = Positions::two_runs(each, 2 * each, each, shape.seq);
    block_.k_at = Positions::two_runs(0, 3 * each, each, shape.seq);
    block_.q = {normal("queries", type, {rows, q_width}), 0};
    const Tensor kv = normal("keys and values", type, {rows, 2 * kv_width});
    block_.k = {kv, 0}, block_.v = {kv, kv_width};
    sum_ = tensor("attention", wide, {rows, q_width});
    lse_ = tensor("lse", wide, {shape.batch, shape.heads, 2 * each});
    out_ = tensor("attention, narrow", type, {rows, q_width});
    dout_ = normal("d attention", type, {rows, q_width});
    const Tensor dkv = tensor("d keys and values", wide, {rows, 2 * kv_width});
    grads_.dq = {tensor("d queries", wide, {rows, q_width}), 0};
    grads_.dk = {dkv, 0}, grads_.dv = {dkv, kv_width};
    attention_block_forward(s, sum_, lse_, block_);
    cast(s, out_, sum_);
  }
  void run() {
    attention_block_forward(stream_, sum_, lse_, block_);
    attention_block_backward(stream_, grads_, dout_, out_, lse_, block_);
  }

 private:
  Stream& stream_;
  uint64_t seeds_ = 0;
  AttentionBlock block_;
  AttentionBlockGrads grads_;
  Tensor sum_, lse_, out_, dout_;
};

/// Times forward and backward of an attention block into `result`.
void run_block(const AttentionShape& shape, DType type, DeviceKind device, int threads, Measured* result) {
  omp_set_num_threads(threads);
  Measured local;
  Measured& out = result ? *result : local;
  MetaTrace trace(&out.cost);
  const auto meta = make_meta_stream("compute", trace);
  MetaMemory memory(trace);
  Block planned(*meta, memory, shape, type);
  out.cost.costs.clear();
  out.cost.names.clear();
  planned.run();
  Arena arena(device, memory.peak().arena_bytes);
  const auto compute = make_compute_stream(device, "compute");
  Block block(*compute, arena, shape, type);
  time_ops(out, *compute, [&](int) { block.run(); });
}

AttentionShape attention_shape(int64_t heads, int64_t head_dim, int64_t seq) {
  AttentionShape shape;
  shape.seq = seq, shape.heads = shape.kv_heads = heads, shape.head_dim = head_dim;
  return shape;
}

/// Adds samples. Equal ops of a model become one sample with their median, which is robust against
/// interruptions.
void add_samples(const Measured& measured, RankProfile& profile) {
  std::map<std::tuple<std::string, double, double, int64_t, int64_t, int64_t>, std::vector<double>> equal;
  for (size_t i = 0; i < measured.seconds.size(); ++i) {
    const OpCost& c = measured.cost.costs[i];
    equal[{fmt::format("{}/{}", measured.cost.names[i], dtype_name(c.dtype)), c.bytes, c.flops, c.m, c.n,
           c.k}]
        .push_back(measured.seconds[i]);
  }
  for (auto& [key, all] : equal) {
    const auto& [name, bytes, flops, m, n, k] = key;
    const double seconds = median(all);
    profile.ops[name].push_back({bytes, flops, seconds, m, n, k});
    if (name.starts_with("matmul") && seconds > 0) {
      double& peak = profile.peak_flops[name.substr(name.find('/') + 1)];
      peak = std::max(peak, flops / seconds);
    }
  }
}

}  // namespace

BenchModel bench_model(const std::string& name, const char* architecture, int64_t hidden, int64_t inner,
                       int64_t heads, int64_t vocab, int64_t batch, int64_t seq) {
  BenchModel r{name, {}};
  ModelConfig& m = r.options.model;
  m.family = &family_of(architecture);
  m.hidden_size = hidden;
  m.intermediate_size = inner;
  m.num_hidden_layers = 1;
  m.num_attention_heads = m.num_key_value_heads = heads;
  m.head_dim = hidden / heads;
  m.vocab_size = vocab;
  m.max_position_embeddings = seq;
  m.tie_word_embeddings = true;
  m.resid_pdrop = m.traits().norm == NormKind::layer ? 0.1 : 0;
  r.options.micro_batch = batch;
  r.options.seq_length = seq;
  r.options.accumulation = 2;
  r.options.attention_backend = AttentionBackend::automatic;  // the default of a recipe
  return r;
}

void bench_attention_blocks(DeviceKind device, int threads, int beside,
                            const std::vector<AttentionShape>& shapes, const std::vector<DType>& types,
                            RankProfile& profile) {
  for (const DType type : types)
    for (const AttentionShape& shape : shapes) {
      Measured measured;
      std::vector<std::jthread> others;
      for (int i = 0; i < beside; ++i)
        others.emplace_back([&] { run_block(shape, type, device, threads, nullptr); });
      run_block(shape, type, device, threads, &measured);
      others.clear();  // joins the threads
      add_samples(measured, profile);
    }
}

RankProfile bench_rank(int threads, int cores, const std::function<void(const std::string&)>& say) {
  RankProfile profile;
  profile.threads = threads;
  for (const char* precision : {"fp32", "bf16"})
    for (BenchModel& r : cpu_models()) {
      r.options.precision = precision_policy(precision);
      const double begin = steady_seconds();
      Measured measured;
      std::vector<std::thread> others;
      for (int i = 1; i < cores / threads; ++i)
        others.emplace_back([&] { run_model(r.options, DeviceKind::cpu, threads, nullptr); });
      run_model(r.options, DeviceKind::cpu, threads, &measured);
      for (std::thread& t : others) t.join();
      add_samples(measured, profile);
      say(fmt::format("{} thread{}, {}, {}: {:.1f} s", threads, threads == 1 ? "" : "s", precision, r.name,
                      steady_seconds() - begin));
    }
  bench_attention_blocks(DeviceKind::cpu, threads, cores / threads - 1,
                         {attention_shape(4, 64, 512), attention_shape(12, 64, 1024)},
                         {DType::f32, DType::bf16}, profile);
  return profile;
}

MachineProfile bench_card(const std::function<void(const std::string&)>& say,
                          const std::vector<std::string>& precisions, std::vector<BenchModel> models,
                          std::vector<AttentionShape> blocks) {
  const DeviceInfo card = device_info(DeviceKind::cuda);
  MachineProfile p = card_profile(card.name);
  const bool known = p.built_in;
  if (!known) p = card_profile("a100");  // for its links
  p.device.reset();
  p.levels.clear();
  RankProfile ops;
  if (known) ops.peak_flops = p.ranks.at(0).peak_flops;
  p.machine = card.name;
  p.built_in = false;
  p.measured = true;
  p.device_bytes = card.total_bytes;
  p.cores = 1 << 20;  // collectives take nothing from compute
  if (models.empty()) models = card_models();
  std::vector<DType> types;
  const size_t all = precisions.size() * models.size() + 1;
  size_t done = 0;
  for (const std::string& precision : precisions) {
    for (BenchModel& r : models) {
      r.options.precision = precision_policy(precision);
      say(fmt::format("{} of {}: the ops of {} in {}", ++done, all, r.name, precision));
      const double begin = steady_seconds();
      Measured measured;
      const int64_t bytes = plan_model(r.options, DeviceKind::cuda, measured.cost).arena;
      if (const int64_t free = free_device_bytes(DeviceKind::cuda); bytes > free / 10 * 9) {
        say(fmt::format("{}, {}: left out, it takes {:.1f} GiB of {:.1f} that are free", precision, r.name,
                        static_cast<double>(bytes) / (1 << 30), static_cast<double>(free) / (1 << 30)));
        continue;
      }
      run_model(r.options, DeviceKind::cuda, 1, &measured);
      RankProfile one;
      add_samples(measured, one);
      for (auto& [name, samples] : one.ops)
        ops.ops[name].insert(ops.ops[name].end(), samples.begin(), samples.end());
      if (!known)
        for (const auto& [type, flops] : one.peak_flops)
          ops.peak_flops[type] = std::max(ops.peak_flops[type], flops);
      say(fmt::format("{}, {}: {:.1f} s", precision, r.name, steady_seconds() - begin));
    }
    const DType type = precision_policy(precision).compute;
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  say(fmt::format("{} of {}: attention of context-parallel ranks", all, all));
  if (blocks.empty()) blocks = {attention_shape(16, 64, 4096), attention_shape(32, 128, 8192)};
  bench_attention_blocks(DeviceKind::cuda, 1, 0, blocks, types, ops);
  p.ranks = {std::move(ops)};
  return p;
}

std::vector<CollectiveSample> bench_collectives(Job& job) {
  const int n = job.info().world_size;
  auto group = job.new_world_group();
  auto stream = make_worker_stream("comm");
  const int64_t most = int64_t{16} << 20;  // elements
  std::vector<float> whole(most), part(most);
  std::vector<CollectiveSample> samples;
  for (const std::string_view op :
       {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send"})
    for (int64_t elements = 64; elements <= most; elements *= 8) {
      const int64_t count = elements / n * n;
      const Tensor all{whole.data(), DType::f32, DeviceKind::cpu, {count}, nullptr};
      const Tensor mine{part.data(), DType::f32, DeviceKind::cpu, {count / n}, nullptr};
      int root = 0;  // each rank is the root in turn, as in a SUMMA matmul
      const auto once = [&] {
        if (op == "send") {  // from the first rank to the second, like transfers between stages
          if (group->rank() == 0) group->send(*stream, mine, 1);
          if (group->rank() == 1) group->recv(*stream, mine, 0);
          return;
        }
        if (op == "broadcast") return group->broadcast(*stream, all, root++ % n);
        if (op == "reduce") return group->reduce(*stream, all, root++ % n);
        if (op == "reduce_scatter") return group->reduce_scatter(*stream, mine, all);
        if (op == "all_gather") return group->all_gather(*stream, all, mine);
        group->all_reduce(*stream, all);
      };
      const int repeats = elements >= (1 << 20) ? 5 : 30;
      once();
      group->barrier(*stream);
      rusage before{}, after{};
      getrusage(RUSAGE_SELF, &before);
      const double begin = steady_seconds();
      for (int i = 0; i < repeats; ++i) once();
      stream->synchronize();
      const double seconds = (steady_seconds() - begin) / repeats;
      getrusage(RUSAGE_SELF, &after);
      const auto cpu = [](const rusage& r) {
        return static_cast<double>(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
               1e-6 * static_cast<double>(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
      };
      const bool whole_moves = op != "send";
      samples.push_back({std::string(op), n, static_cast<double>(whole_moves ? count * 4 : count / n * 4),
                         seconds, std::min(seconds, (cpu(after) - cpu(before)) / repeats)});
    }
  return samples;
}

}  // namespace ltrain
