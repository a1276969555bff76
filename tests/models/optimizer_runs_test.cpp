// Whole models trained with every optimizer, in double, against runs made outside of ltrain: torch.optim's
// where PyTorch has the optimizer, the papers' formulas in Python where not
// (scripts/golden/make-optimizer-runs.py); and with DiLoCo (scripts/golden/make-diloco-golden.py).
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/models/golden.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kRunSteps = 8;

/// Losses, and of each tensor its length and its product with a fixed vector.
struct TrainedModel {
  std::vector<double> losses;
  std::map<std::string, std::pair<double, double>> tensors;
};

using TrainedModels = std::map<std::string, TrainedModel>;  // keyed by "gpt2 muon"

TrainedModels read_runs(const std::string& file = "optimizer_runs.txt") {
  TrainedModels runs;
  std::ifstream in(LTRAIN_SOURCE_DIR "/tests/golden/" + file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string architecture, kind, what, number;
    words >> architecture >> kind >> what;
    std::vector<double> numbers;
    while (words >> number) numbers.push_back(std::strtod(number.c_str(), nullptr));
    TrainedModel& run = runs[architecture + " " + kind];
    if (what == "losses")
      run.losses = numbers;
    else
      run.tensors[what] = {numbers.at(0), numbers.at(1)};
  }
  return runs;
}

OptimizerSettings settings_of(const std::string& kind) {
  OptimizerSettings o;
  const bool sophia = kind.starts_with("sophia_");
  o.rule = update_rule(kind == "muon_match_rms" ? "muon" : sophia ? "sophia" : kind).value();
  if (kind == "sophia_hutchinson") o.hessian_estimator = HessianEstimator::hutchinson;
  o.sophia_gamma = kind == "sophia_hutchinson" ? 0.01 : 20;
  o.sgd_nesterov = true;
  if (kind == "muon_match_rms") o.muon_scale = MuonScale::match_rms_adamw;
  o.freeze_step = 4;
  o.hessian_interval = 3;
  // The keys' third of gpt2's fused bias has gradients of rounding alone, which one bit an element makes
  // large.
  if (is_onebit(o.rule)) o.groups = {{"*.c_attn.bias", {}, 0.0, {}}};
  return o;
}

struct OptimizerJob {
  std::string kind;
  OptimizerSettings optimizer;
  int tensor = 1;
  int64_t steps = kRunSteps;
  std::optional<double> lr = {};  ///< else the golden model's schedule
  bool fp32 = false;
};

/// Trains as the script does. 1-bit optimizers have two ranks with two rows each, others one.
TrainedModel train_golden(const Golden& g, const OptimizerJob& job) {
  const bool onebit = is_onebit(job.optimizer.rule);
  const bool coded = job.optimizer.rule == UpdateRule::adamw8bit;  // whose moments are of fp32
  const DilocoSettings& diloco = job.optimizer.diloco;
  const int sites = static_cast<int>(std::max<int64_t>(1, diloco.sites));
  const int ranks = onebit ? 2 : 1, world = ranks * job.tensor * sites;
  ProgramOptions o;
  o.model = g.model;
  const bool fp32 = coded || job.fp32;
  o.precision = precision_policy(fp32 ? "fp32" : "fp64");
  o.bucket_elements = 1;  // a bucket for each unit, so that blocks begin with it
  o.micro_batch = diloco.shares.empty() ? 2 : 1;
  o.seq_length = kGoldenSeq;
  o.accumulation = kGoldenBatch / (o.micro_batch * ranks * diloco.share(0).of) * diloco.largest_share();
  o.clip_grad = 0;
  o.optimizer = job.optimizer;
  const auto tokens = g.read<int32_t>("tokens"), targets = g.read<int32_t>("targets");
  const auto lr = g.read<double>("lr");
  TrainedModel run;
  std::map<std::string, std::vector<double>> whole;
  std::mutex mutex;
  ThreadGroups made;
  on_threads(world, [&](int rank) {
    Mesh mesh;
    mesh.degree = {ranks, 1, 1, 1, 1, 1, 1, 1, 1};
    mesh.sites = sites;
    mesh.rank = rank;
    mesh.cut_tensor(TensorMode::one_d, job.tensor, 1);
    GroupSet groups = made.on(mesh);
    auto compute = make_inline_stream("compute");
    CpuArena arena(64 << 20);
    TrainProgram program(o, {*compute, arena, groups.groups()});
    program.initialize();
    ParameterStore& store = program.parameters();
    if (fp32)
      set_weights<float>(g, store);
    else
      set_weights<double>(g, store);
    store.publish_loaded();
    const SiteShare share = diloco.share(mesh.site());
    const int64_t micros = o.accumulation / diloco.largest_share() * share.count;
    for (int64_t step = 0; step < job.steps; ++step) {
      const int64_t batch = step % static_cast<int64_t>(lr.size());
      std::vector<HostBatch> batches(static_cast<size_t>(micros));
      for (size_t k = 0; k < batches.size(); ++k) {
        const int64_t rows = o.micro_batch;
        const int64_t row = share.at(static_cast<int64_t>(k) * ranks + mesh.place_in(kDataAxes)) * rows;
        append_rows(tokens, batch, row, rows, batches[k].tokens);
        append_rows(targets, batch, row, rows, batches[k].targets);
        for (int64_t b = row; b < row + rows; ++b) batches[k].sample_index.push_back(step * kGoldenBatch + b);
      }
      OptimizerStep a = g.adamw;
      a.lr = job.lr.value_or(lr.at(static_cast<size_t>(batch)));
      a.step = step + 1;
      const StepResult r = program.train_step(batches, a, {});
      if (rank == 0) run.losses.push_back(r.loss);
    }
    groups.synchronize();
    std::lock_guard lock(mutex);
    for (const OwnedPiece& p : store.owned_pieces()) {
      std::vector<double>& to = whole[store.spec(p.id).name];
      to.resize(static_cast<size_t>(p.slice.global.elements()));
      const Tensor& weights = p.shared.defined() ? p.shared : p.master;
      Runs runs(p.slice);
      for (Run r = runs.next(); r.count > 0; r = runs.next())
        for (int64_t i = 0; i < r.count; ++i)
          to[static_cast<size_t>(r.global + i)] =
              fp32 ? weights.ptr<float>()[r.local + i] : weights.ptr<double>()[r.local + i];
    }
  });
  for (const auto& [name, x] : whole) {
    double squares = 0, product = 0;
    // The keys' part of gpt2's fused bias has a gradient of rounding alone.
    const size_t third = name.ends_with("c_attn.bias") ? x.size() / 3 : 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (third && i / third == 1) continue;
      squares += x[i] * x[i];
      product += x[i] * std::cos(0.7 * static_cast<double>(i) + 0.3);
    }
    run.tensors[name] = {std::sqrt(squares), product};
  }
  return run;
}

/// The largest difference, of losses relative and of tensors by their length; what it is of goes to `where`.
double worst_of_run(const TrainedModel& want, const TrainedModel& got, std::string& where) {
  REQUIRE(want.losses.size() >= kRunSteps);
  REQUIRE(got.losses.size() == want.losses.size());
  REQUIRE(want.tensors.size() == got.tensors.size());
  double most = 0;
  const auto note = [&](double difference, const std::string& what) {
    if (!(difference <= most)) most = difference, where = what;
  };
  for (size_t i = 0; i < want.losses.size(); ++i)
    note(std::abs(got.losses[i] / want.losses[i] - 1), fmt::format("loss of step {}", i + 1));
  for (const auto& [name, w] : want.tensors) {
    const auto& g = got.tensors.at(name);
    note(std::abs(g.first - w.first) / w.first, "length of " + name);
    note(std::abs(g.second - w.second) / w.first, "product of " + name);
  }
  return most;
}

}  // namespace

TEST_CASE("every optimizer moves whole gpt2 and llama models as PyTorch and the papers do") {
  const TrainedModels runs = read_runs();
  REQUIRE(runs.size() == 26);  // eleven optimizers, Muon and Sophia in two ways, on two architectures
  for (const auto& [name, want] : runs) {
    const std::string architecture = name.substr(0, name.find(' ')), kind = name.substr(name.find(' ') + 1);
    const Golden g(architecture);
    std::string where;
    const double most = worst_of_run(want, train_golden(g, {kind, settings_of(kind)}), where);
    INFO(name << ": " << where);
    // 8 bits: fp32 on one side, where some codes of moments fall to the other side of a boundary. Adafactor
    // divides the keys' part of gpt2's fused bias by its own size: rounding becomes part of a length.
    const double within = kind == "adamw8bit"                             ? 1e-3
                          : kind == "sophia_hutchinson"                   ? 1e-11
                          : kind == "adafactor" && architecture == "gpt2" ? 1e-6
                                                                          : 1e-12;
    CHECK(most < within);
    // Negative control: the nearest other optimizer is told apart.
    const char* near = kind == "adamw"                 ? "adam"
                       : kind == "onebit_lamb"         ? "lamb"
                       : kind == "sophia_gauss_newton" ? "sophia_hutchinson"
                                                       : "adamw";
    CHECK(worst_of_run(runs.at(architecture + " " + near), want, where) > 3 * within);
  }
}

TEST_CASE("Muon's matrices are those of the model, however tensor parallelism cuts them") {
  const TrainedModels runs = read_runs();
  for (const char* kind : {"muon", "muon_match_rms"})
    for (const char* architecture : {"gpt2", "llama"}) {
      std::string where;
      const double most =
          worst_of_run(runs.at(std::string(architecture) + " " + kind),
                       train_golden(Golden(architecture), {kind, settings_of(kind), 2}), where);
      INFO(architecture << " " << kind << ": " << where);
      CHECK(most < 1e-12);
    }
}

TEST_CASE("DiLoCo's sites move a llama as PyTorch's AdamW and outer SGD do") {
  const TrainedModels runs = read_runs("diloco.txt");
  REQUIRE(runs.size() == 4);
  const Golden g("llama");
  const auto apart = [&](const char* kind, const OptimizerJob& job) {
    std::string where;
    const double most = worst_of_run(runs.at(std::string("llama ") + kind), train_golden(g, job), where);
    UNSCOPED_INFO(kind << ": " << where << " by " << most);
    return most;
  };
  OptimizerJob job{.kind = "diloco", .optimizer = {}, .tensor = 1, .steps = 40, .lr = 1e-3};
  DilocoSettings& d = job.optimizer.diloco;
  d = {.sites = 2, .inner_steps = 2, .outer_lr = 0.7, .outer_momentum = 0.9, .nesterov = true, .shares = {}};
  CHECK(apart("nesterov", job) < 1e-12);
  CHECK(apart("plain", job) > 1e-3);  // negative controls
  d.nesterov = false;
  CHECK(apart("plain", job) < 1e-12);
  d.inner_steps = 4;
  CHECK(apart("plain", job) > 1e-3);
  d.inner_steps = 2;
  job.tensor = 2;
  CHECK(apart("plain", job) < 1e-12);
  job.tensor = 1;
  job.fp32 = true;
  CHECK(apart("plain", job) < 1e-5);
  d.nesterov = true;
  CHECK(apart("nesterov", job) < 1e-5);
}

TEST_CASE("DiLoCo's sites with shares of 3 and 1 of the batch move a llama as PyTorch's optimizers do") {
  const TrainedModels runs = read_runs("diloco.txt");
  const Golden g("llama");
  const auto apart = [&](const char* kind, const DilocoSettings& d) {
    OptimizerJob job{.kind = "diloco", .optimizer = {}, .tensor = 1, .steps = 20 * d.inner_steps, .lr = 1e-3};
    job.optimizer.diloco = d;
    std::string where;
    const double most = worst_of_run(runs.at(std::string("llama ") + kind), train_golden(g, job), where);
    UNSCOPED_INFO(kind << ": " << where << " by " << most);
    return most;
  };
  DilocoSettings d{.sites = 2, .inner_steps = 2, .shares = {6, 2}};
  CHECK(apart("shares", d) < 1e-12);
  d.shares = {1, 3};
  CHECK(apart("shares", d) > 1e-4);  // negative control
  d = {.sites = 2, .inner_steps = 4, .fragments = 2, .delay = 1, .merge = 0.5, .shares = {3, 1}};
  CHECK(apart("shares_2_1_0.5", d) < 1e-12);
}

TEST_CASE("Streaming DiLoCo moves a llama as PyTorch's optimizers do with torchft's fragments") {
  const TrainedModels runs = read_runs("streaming_diloco.txt");
  REQUIRE(runs.size() == 4);
  const Golden g("llama");
  const auto apart = [&](const char* kind, const DilocoSettings& d) {
    OptimizerJob job{.kind = "diloco", .optimizer = {}, .tensor = 1, .steps = 80, .lr = 1e-3};
    job.optimizer.diloco = d;
    std::string where;
    const double most = worst_of_run(runs.at(std::string("llama ") + kind), train_golden(g, job), where);
    UNSCOPED_INFO(kind << ": " << where << " by " << most);
    return most;
  };
  const DilocoSettings d{.sites = 2, .inner_steps = 4, .shares = {}};
  const auto with = [&](int64_t fragments, int64_t delay, double merge) {
    DilocoSettings more = d;
    more.fragments = fragments, more.delay = delay, more.merge = merge;
    return more;
  };
  CHECK(apart("2_0_0.0", with(2, 0, 0)) < 1e-12);
  CHECK(apart("1_3_0.0", with(1, 3, 0)) < 1e-12);
  CHECK(apart("1_0_0.5", with(1, 0, 0.5)) < 1e-12);
  CHECK(apart("2_1_0.5", with(2, 1, 0.5)) < 1e-12);
  // Negative controls: another delay, merge, and number of fragments.
  CHECK(apart("2_1_0.5", with(2, 0, 0.5)) > 1e-4);
  CHECK(apart("2_1_0.5", with(2, 1, 0.4)) > 1e-4);
  CHECK(apart("1_3_0.0", with(1, 2, 0)) > 1e-4);
  CHECK(apart("2_0_0.0", with(4, 0, 0)) > 1e-4);
}
