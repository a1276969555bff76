// Muon on stacks of experts: each matrix of a stack is made orthogonal by itself, under every layout of
// experts.
#include "tests/parity/parity.h"
#include "tests/support/optimizer_reference.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions muon_moe() {
  TinyOptions o;
  o.architecture = "qwen3_moe";
  o.moe.num_experts = 8;
  o.moe.top_k = 2;
  o.optimizer.rule = UpdateRule::muon;
  o.global_batch = 4;
  o.micro_batch = 1;
  o.clip = 0;
  return o;
}

}  // namespace

TEST_CASE("muon: each expert's gate, up and down matrix moves as a matrix of its own does") {
  TinyOptions o = muon_moe();
  o.steps = 1;
  o.optimizer.muon_scale = GENERATE(MuonScale::spectral, MuonScale::match_rms_adamw);
  const TinyResult after = train_tiny(o);
  TinyOptions none = o;
  none.steps = 0;
  const NamedTensors before = train_tiny(none).parameters;
  // Muon's directions take the place of the gradients, which AdamW leaves as they are.
  TinyOptions other = o;
  other.optimizer.rule = UpdateRule::adamw;
  const NamedTensors gradients = train_tiny(other).gradients;
  const int64_t width = 24, hidden = o.hidden;
  int stacks = 0;
  double worst = 0, whole = 0;
  for (const auto& [name, gradient] : gradients) {
    const bool gate_up = name.ends_with("experts.gate_up_proj"), down = name.ends_with("experts.down_proj");
    if (!gate_up && !down) continue;
    ++stacks;
    ParameterRule rule;
    rule.rule = UpdateRule::muon;
    const auto move = [&](int64_t rows, int64_t cols, size_t at) {
      const size_t n = static_cast<size_t>(rows * cols);
      ReferenceTensor t;
      t.rows = rows, t.cols = cols, t.matrix = true;
      t.w.assign(before.at(name).begin() + at, before.at(name).begin() + at + n);
      t.m.assign(n, 0.0);
      reference_step(t, {gradient.begin() + at, gradient.begin() + at + n}, rule, o.optimizer, tiny_adamw(1));
      double apart = 0;
      for (size_t i = 0; i < n; ++i)
        apart = std::max(apart, std::abs(t.w[i] - after.parameters.at(name)[at + i]));
      return apart;
    };
    const int64_t rows = gate_up ? width : hidden, cols = gate_up ? hidden : width;
    const size_t matrices = gradient.size() / static_cast<size_t>(rows * cols);
    REQUIRE(matrices == (gate_up ? 16 : 8));
    for (size_t i = 0; i < matrices; ++i) worst = std::max(worst, move(rows, cols, i * rows * cols));
    whole = std::max(whole, move(static_cast<int64_t>(matrices) * rows, cols, 0));
  }
  CHECK(stacks == 4);
  CHECK(worst < 1e-12);
  CHECK(whole > 1e-4);  // the update of the stack as one matrix differs
}

TEST_CASE("muon: layouts of experts agree with one rank, and plans with runs") {
  const TinyOptions one = muon_moe();
  const TinyResult want = train_tiny(one);
  const std::vector<NamedLayout> copied{
      // two ranks have the same experts
      {"expert 2 of 4 ranks", [](TinyOptions& o) { o.ranks = 4, o.expert = 2; }},
      {"expert 2 of 4 ranks, ZeRO-2", [](TinyOptions& o) { o.ranks = 4, o.expert = 2, o.zero_stage = 2; }},
      {"expert 2 of 4 ranks, context 2, ZeRO-1",
       [](TinyOptions& o) { o.ranks = o.expert = o.context = 2, o.zero_stage = 1; }}};
  for (const NamedLayout& layout : joined(expert_layouts(), copied)) {
    INFO(layout.name);
    TinyOptions o = one;
    layout.set(o);
    const TinyResult got = train_tiny(o);
    CHECK(std::abs(got.eval_loss - want.eval_loss) <= 1e-11 * want.eval_loss);
    CHECK(worst_relative(want.parameters, got.parameters) <= 1e-9);
    CHECK(got.plan_bytes == got.used_bytes);
  }
}

TEST_CASE("muon: stages of ZeRO agree to the bit on experts in bf16") {
  TinyOptions o = muon_moe();
  o.precision = "bf16";
  o.ranks = 2;
  o.micro_batch = 2;  // with accumulation ZeRO-2 and 3 sum in another order
  o.steps = 2;
  const TinyResult plain = train_tiny(o);
  for (int stage : {1, 2, 3}) {
    o.zero_stage = stage;
    check_same_bits(plain, train_tiny(o));
  }
}
