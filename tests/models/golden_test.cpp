// Losses, gradient norms and first gradients against PyTorch's, from the same weights and tokens. The files
// are written by scripts/golden/make-golden.py.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/models/golden.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kTorchSteps = 20, kMicroBatch = 2;

struct Trained {
  double worst_loss = 0, worst_norm = 0;      ///< relative
  double worst_cosine = 1, worst_length = 0;  ///< first gradients, by tensor
};

/// T: float, or double for fp64.
template <class T = float>
Trained train_as_torch_did(const Golden& g, const ModelConfig& model, const OptimizerStep& settings,
                           const RecomputeOptions& recompute = {}, int64_t steps = kTorchSteps) {
  ProgramOptions o;
  o.model = model;
  o.precision = precision_policy(sizeof(T) == 8 ? "fp64" : "fp32");
  o.bucket_elements = 3000;
  o.micro_batch = kMicroBatch;
  o.seq_length = kGoldenSeq;
  o.accumulation = kGoldenBatch / kMicroBatch;
  o.clip_grad = g.clip;
  o.recompute = recompute;
  auto compute = make_inline_stream("compute");
  CpuArena arena(32 << 20);
  const GroupSet alone;
  TrainProgram program(o, {*compute, arena, alone.groups()});
  program.initialize();
  ParameterStore& store = program.parameters();
  int64_t weights = 0, named = 0;
  for (const SafetensorsEntry& e : g.file.entries()) weights += e.name.rfind("weight.", 0) == 0;
  for (int id = 0; id < store.count(); ++id) named += store.find(store.spec(id).name) == id;
  REQUIRE(named == weights);
  const auto first_of = [&](int id) { return first_element(store, id); };
  set_weights<T>(g, store);
  const auto tokens = g.read<int32_t>("tokens"), targets = g.read<int32_t>("targets");
  const auto lr = g.read<double>("lr"), loss = g.read<double>("loss"), norm = g.read<double>("grad_norm");
  REQUIRE(loss.size() == kTorchSteps);
  Trained run;
  const auto relative = [](double got, double want) { return std::abs(got - want) / std::abs(want); };
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<HostBatch> batches(kGoldenBatch / kMicroBatch);
    for (size_t k = 0; k < batches.size(); ++k) {
      append_rows(tokens, step, static_cast<int64_t>(k) * kMicroBatch, kMicroBatch, batches[k].tokens);
      append_rows(targets, step, static_cast<int64_t>(k) * kMicroBatch, kMicroBatch, batches[k].targets);
      for (int64_t i = 0; i < kMicroBatch; ++i)
        batches[k].sample_index.push_back(step * kGoldenBatch + static_cast<int64_t>(k) * kMicroBatch + i);
    }
    OptimizerStep args = settings;
    args.lr = lr[step];
    args.step = step + 1;
    const StepResult r = program.train_step(batches, args);
    run.worst_loss = std::max(run.worst_loss, relative(r.loss, loss[step]));
    run.worst_norm = std::max(run.worst_norm, relative(r.grad_norm, norm[step]));
    if (step > 0) continue;
    for (int id = 0; id < store.count(); ++id) {
      if (store.find(store.spec(id).name) != id) continue;
      const auto want = g.read<float>("grad." + store.spec(id).name);
      double dot = 0, a = 0, b = 0;
      for (int part = id; part < store.count(); ++part) {
        if (store.spec(part).name != store.spec(id).name) continue;
        const T* got = store.grad(part).ptr<T>();
        for (int64_t i = 0; i < store.grad(part).elements(); ++i) {
          const double x = got[i], y = want[first_of(part) + i];
          dot += x * y, a += x * x, b += y * y;
        }
      }
      run.worst_cosine = std::min(run.worst_cosine, dot / std::sqrt(a * b));
      run.worst_length = std::max(run.worst_length, relative(std::sqrt(a), std::sqrt(b)));
    }
  }
  return run;
}

bool agrees(const Trained& r) {
  return r.worst_loss < 1e-4 && r.worst_norm < 1e-3 && r.worst_cosine > 0.99999 && r.worst_length < 1e-4;
}

}  // namespace

TEST_CASE("twenty steps give PyTorch's losses, from PyTorch's weights") {
  const auto name = GENERATE(as<std::string>(), "gpt2", "llama", "llama3");
  const Golden g(name);
  const auto loss = g.read<double>("loss");
  REQUIRE(loss.back() < 0.8 * loss.front());  // it learns, so the updates matter
  const Trained r = train_as_torch_did(g, g.model, g.adamw);
  INFO(name << ": loss " << r.worst_loss << ", gradient norm " << r.worst_norm << ", cosine 1 - "
            << 1 - r.worst_cosine);
  CHECK(r.worst_loss < 1e-4);
  CHECK(r.worst_norm < 1e-3);
  CHECK(r.worst_cosine > 0.99999);
  CHECK(r.worst_length < 1e-4);
}

TEST_CASE("with activations as codes of 8 bits twenty steps give the losses of PyTorch with the same codes") {
  using enum BlockTensor;
  const Golden g("llama_compressed");
  RecomputeOptions codes;
  codes.compressed.int8 = set_of({attention_norm, residual, mlp_norm, mlp_activation});
  codes.compressed.fp8 = set_of({mlp_hidden});
  const Trained r = train_as_torch_did<double>(g, g.model, g.adamw, codes);
  INFO("loss " << r.worst_loss << ", gradient norm " << r.worst_norm << ", cosine 1 - " << 1 - r.worst_cosine
               << ", length " << r.worst_length);
  CHECK(r.worst_loss < 1e-8);
  CHECK(r.worst_norm < 1e-7);
  CHECK(r.worst_cosine > 1 - 1e-10);
  CHECK(r.worst_length < 1e-6);  // the file has fp32
  // Negative control: each tensor that is kept exact, or has the other codes, shows.
  for (BlockTensor t : {attention_norm, residual, mlp_norm, mlp_activation, mlp_hidden}) {
    RecomputeOptions other = codes;
    other.compressed.int8.remove(t);
    other.compressed.fp8.remove(t);
    INFO("without " << block_tensor_name(t));
    CHECK(train_as_torch_did<double>(g, g.model, g.adamw, other, 1).worst_cosine < 1 - 1e-6);
  }
}

TEST_CASE("negative control: a model or an optimizer that is a little different does not agree") {
  const Golden llama("llama3"), gpt2("gpt2");
  ModelConfig m = llama.model;
  m.rope_scaling.type = RopeType::none;
  CHECK_FALSE(agrees(train_as_torch_did(llama, m, llama.adamw)));
  m = llama.model;
  m.rope_theta *= 1.05;
  CHECK_FALSE(agrees(train_as_torch_did(llama, m, llama.adamw)));
  m = gpt2.model;
  m.norm_eps = 1e-3;
  CHECK_FALSE(agrees(train_as_torch_did(gpt2, m, gpt2.adamw)));
  OptimizerStep a = gpt2.adamw;
  a.weight_decay = 0;
  CHECK_FALSE(agrees(train_as_torch_did(gpt2, gpt2.model, a)));
  a = gpt2.adamw;
  a.beta2 = 0.96;
  CHECK_FALSE(agrees(train_as_torch_did(gpt2, gpt2.model, a)));
}
