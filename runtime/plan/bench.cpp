#include "runtime/plan/bench.h"

#include <omp.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "kernels/core/rng.h"
#include "kernels/core/timeline.h"
#include "runtime/launch/job.h"
#include "runtime/train/train_program.h"

namespace ltrain {
namespace {

/// Remembers the cost of every op of a step.
class Remember final : public CostModel {
 public:
  double seconds(const OpCost& op) const override {
    costs.push_back(op);
    names.push_back(std::string(op.name));
    return 0;
  }
  mutable std::vector<OpCost> costs;
  mutable std::vector<std::string> names;
};

struct Reference {
  const char* name;
  ProgramOptions options;
};

Reference reference(const char* name, const char* architecture, int64_t hidden, int64_t inner, int64_t heads,
                    int64_t vocab, int64_t batch, int64_t seq) {
  Reference r{name, {}};
  ModelConfig& m = r.options.model;
  m.architecture = architecture;
  m.hidden_size = hidden;
  m.intermediate_size = inner;
  m.num_hidden_layers = 1;
  m.num_attention_heads = m.num_key_value_heads = heads;
  m.head_dim = hidden / heads;
  m.vocab_size = vocab;
  m.max_position_embeddings = seq;
  m.tie_word_embeddings = true;
  m.resid_pdrop = 0.1;
  r.options.micro_batch = batch;
  r.options.seq_length = seq;
  r.options.accumulation = 2;
  return r;
}

std::vector<Reference> references() {
  return {reference("llama, width 128", "llama", 128, 344, 4, 1024, 4, 64),
          reference("llama, width 320", "llama", 320, 864, 5, 257, 4, 256),
          reference("gpt2, width 512", "gpt2", 512, 2048, 8, 8192, 1, 256),
          reference("gpt2, width 768", "gpt2", 768, 3072, 12, 50257, 2, 64),
          reference("llama, width 768", "llama", 768, 2048, 12, 4096, 1, 512)};
}

std::vector<HostBatch> random_batches(const ProgramOptions& o) {
  std::vector<HostBatch> batches(o.accumulation);
  uint64_t i = 0;
  for (HostBatch& b : batches) {
    for (int64_t t = 0; t < o.micro_batch * o.seq_length; ++t) {
      b.tokens.push_back(static_cast<int32_t>(philox(1, 2, ++i).v[0] % o.model.vocab_size));
      b.targets.push_back(static_cast<int32_t>(philox(1, 3, i).v[0] % o.model.vocab_size));
    }
    for (int64_t s = 0; s < o.micro_batch; ++s) b.sample_index.push_back(s);
  }
  return batches;
}

constexpr int kSteps = 3;  // timed, of each reference model

/// The lower one of an even number.
double median(std::vector<double>& t) {
  const auto middle = t.begin() + static_cast<std::ptrdiff_t>((t.size() - 1) / 2);
  std::nth_element(t.begin(), middle, t.end());
  return *middle;
}

struct Measured {
  Remember cost;
  std::vector<double> seconds;  // of each op: the median over the timed steps
};

/// Runs steps of a reference model on the calling thread. What a step does is what its plan has, in order, so
/// that the n-th time belongs to the n-th op.
void run_reference(const ProgramOptions& options, int threads, int steps, Measured* result) {
  omp_set_num_threads(threads);
  Measured local;
  Measured& out = result ? *result : local;
  const GroupSet alone;
  int64_t bytes = 0;
  {
    MetaTrace trace(&out.cost);
    auto compute = make_meta_stream("compute", trace);
    const GroupSet groups = make_meta_groups(Mesh{}, trace);
    MetaMemory memory(trace);
    TrainProgram program(options, {*compute, memory, groups.groups()});
    out.cost.costs.clear();
    out.cost.names.clear();
    program.train_step({}, AdamwArgs{}, false);
    bytes = memory.peak().arena_bytes;
  }
  const auto compute = make_inline_stream("compute");
  CpuArena arena(bytes);
  TrainProgram program(options, {*compute, arena, alone.groups()});
  program.initialize();
  const auto batches = random_batches(options);
  std::vector<std::vector<double>> times;
  for (int step = 0; step < steps + 1; ++step) {
    AdamwArgs a;
    a.lr = 1e-4;
    a.step = step + 1;
    const Timeline timeline;
    program.train_step(batches, a, false);
    const auto ranges = timeline.ranges();
    LT_CHECK(ranges.size() == out.cost.costs.size(), "{} ops for {} entries of the plan", ranges.size(),
             out.cost.costs.size());
    if (step == 0) continue;
    times.emplace_back();
    for (size_t i = 0; i < ranges.size(); ++i) {
      LT_CHECK(ranges[i].name == out.cost.names[i], "{} runs where {} is planned", ranges[i].name,
               out.cost.names[i]);
      times.back().push_back(ranges[i].seconds);
    }
  }
  for (size_t i = 0; i < out.cost.costs.size(); ++i) {
    std::vector<double> t;
    for (const auto& row : times) t.push_back(row[i]);
    out.seconds.push_back(median(t));
  }
}

}  // namespace

RankProfile bench_rank(int threads, int cores, const std::function<void(const std::string&)>& say) {
  RankProfile profile;
  profile.threads = threads;
  for (const char* precision : {"fp32", "bf16"})
    for (Reference& r :
         [] {
           static auto all = references();
           return std::ref(all);
         }()
             .get()) {
      r.options.precision = precision_policy(precision);
      const double begin = steady_seconds();
      Measured measured;
      std::vector<std::thread> others;
      for (int i = 1; i < cores / threads; ++i)
        others.emplace_back([&] { run_reference(r.options, threads, kSteps, nullptr); });
      run_reference(r.options, threads, kSteps, &measured);
      for (std::thread& t : others) t.join();
      // Equal ops of the model are one sample: their median, which a moment that another program took does
      // not move.
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
        if (name.starts_with("matmul")) {
          double& peak = profile.peak_flops[name.substr(name.find('/') + 1)];
          peak = std::max(peak, flops / seconds);
        }
      }
      say(fmt::format("{} thread{}, {}, {}: {:.1f} s", threads, threads == 1 ? "" : "s", precision, r.name,
                      steady_seconds() - begin));
    }
  return profile;
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
      int root = 0;  // each in turn, as in the steps of a product
      const auto once = [&] {
        if (op == "send") {  // from the first rank to the second, as from stage to stage
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
