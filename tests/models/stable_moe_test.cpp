// StableMoE (arXiv:2204.08396) against a program of PyTorch, in fp64:
// scripts/golden/make-stable-moe-golden.py.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/models/differences.h"
#include "tests/models/hf_golden.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct StableRun {
  std::vector<double> losses, distillation;  ///< a step each
  std::vector<int32_t> token_experts;        ///< (layers, vocabulary, k) after the last step
};

StableRun train_stable_moe(const HfGolden& g, int64_t freeze_step) {
  const std::vector<int64_t> all = g.file.find("tokens")->shape;  // (steps, batch, seq)
  ProgramOptions o;
  o.model = g.model;
  o.model.moe.freeze_step = freeze_step;
  o.precision = precision_policy("fp64");
  o.bucket_elements = 3000;
  o.micro_batch = all[1];
  o.seq_length = all[2];
  o.accumulation = 1;
  o.clip_grad = 0;
  auto compute = make_inline_stream("compute");
  CpuArena arena(64 << 20);
  const GroupSet alone;
  TrainProgram program(o, {*compute, arena, alone.groups()});
  program.initialize();
  ParameterStore& store = program.parameters();
  for (int id = 0; id < store.count(); ++id) {
    const auto w = g.read<bf16>("weight." + store.spec(id).name);
    Tensor value = store.value(id);
    REQUIRE(value.elements() == static_cast<int64_t>(w.size()));
    for (size_t i = 0; i < w.size(); ++i) value.ptr<double>()[i] = static_cast<float>(w[i]);
  }
  const auto tokens = g.read<int32_t>("tokens"), targets = g.read<int32_t>("targets");
  const int64_t each = all[1] * all[2];
  StableRun out;
  for (int64_t step = 1; step <= all[0]; ++step) {
    std::vector<HostBatch> batches(1);
    const auto of_step = [&](const std::vector<int32_t>& from) {
      return std::vector<int32_t>(from.begin() + (step - 1) * each, from.begin() + step * each);
    };
    batches[0].tokens = of_step(tokens);
    batches[0].targets = of_step(targets);
    batches[0].sample_index.assign(static_cast<size_t>(all[1]), 0);
    const StepResult r = program.train_step(batches, {.lr = g.number("lr"), .step = step}, {});
    out.losses.push_back(r.loss);
    out.distillation.push_back(r.experts.distillation_loss.value());
  }
  for (const RegisteredBuffer& b : store.kept(true))
    out.token_experts.insert(out.token_experts.end(), b.tensor.ptr<int32_t>(),
                             b.tensor.ptr<int32_t>() + b.tensor.elements());
  return out;
}

}  // namespace

TEST_CASE("a frozen router: losses of 20 steps are those of a program of PyTorch") {
  const HfGolden g("hf_olmoe_stable");
  const auto losses = g.read<double>("losses"), distillation = g.read<double>("distillation");
  const auto freeze_step = static_cast<int64_t>(g.number("freeze_step"));
  const StableRun r = train_stable_moe(g, freeze_step);
  CHECK(largest_difference(r.losses, losses) < 1e-10);
  CHECK(largest_difference(r.distillation, distillation) < 1e-10);
  const auto frozen = static_cast<size_t>(freeze_step - 1);
  CHECK(std::all_of(distillation.begin(), distillation.begin() + static_cast<int64_t>(frozen),
                    [](double d) { return d > 3; }));
  CHECK(std::all_of(r.distillation.begin() + static_cast<int64_t>(frozen), r.distillation.end(),
                    [](double d) { return d == 0; }));
  // PyTorch's experts of a token id come in another order where scores are equal; none are here.
  CHECK(r.token_experts == g.read<int32_t>("token_experts"));
  // Negative controls: frozen a step later, and never.
  CHECK(largest_difference(train_stable_moe(g, freeze_step + 1).losses, losses) > 1e-4);
  CHECK(largest_difference(train_stable_moe(g, 1000).losses, losses) > 1e-4);
}
