// fp16 with a dynamic loss scale: it finds a scale, every rank takes the same decision, layouts agree.
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions fp16_job() {
  TinyOptions o;
  o.precision = "fp16";
  o.global_batch = 4;
  o.steps = 4;
  return o;
}

void close_losses(const TinyResult& a, const TinyResult& b, double tolerance) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) CHECK(b.losses[i] == Approx(a.losses[i]).epsilon(tolerance));
}

}  // namespace

TEST_CASE("fp16 trains as fp32 does, within what it rounds, and plans its bytes") {
  TinyOptions o = fp16_job();
  const TinyResult half = train_tiny(o);
  CHECK(half.plan_bytes == half.used_bytes);
  CHECK(half.loss_scales == std::vector<double>(5, 65536));
  o.precision = "bf16";
  CHECK(train_tiny(o).used_bytes == half.used_bytes);
  o.precision = "fp32";
  const TinyResult wide = train_tiny(o);
  close_losses(wide, half, 2e-3);
  for (size_t i = 0; i < wide.norms.size(); ++i)  // the norm is of the gradient without the scale
    CHECK(half.norms[i] == Approx(wide.norms[i]).epsilon(2e-2));
}

TEST_CASE("from a scale of 2^40 a run of fp16 finds one, and then trains as from there") {
  TinyOptions o = fp16_job();
  o.loss_scale.initial = 0x1p40;
  o.loss_scale.hysteresis = 1;
  o.read_gradients = false;
  o.global_batch = 2;
  o.steps = 45;
  const TinyResult r = train_tiny(o);
  const double found = r.loss_scales.back();
  CHECK(found < 0x1p36);
  CHECK(found >= 1024);
  int updates = 0;
  for (size_t i = 1; i < r.loss_scales.size(); ++i) updates += r.loss_scales[i] == r.loss_scales[i - 1];
  CHECK(updates + std::log2(0x1p40 / found) == 45);  // one step for each time that it backed off
  CHECK(updates > 10);
  CHECK(r.norms.back() < 1e3);
}

TEST_CASE("every layout finds the same scales, and the losses of one process") {
  TinyOptions one = fp16_job();
  one.loss_scale.window = 2;
  one.loss_scale.growth_factor = 16;
  one.loss_scale.hysteresis = 1;
  one.steps = 10;
  const TinyResult base = train_tiny(one);
  CHECK(*std::max_element(base.loss_scales.begin(), base.loss_scales.end()) > 65536);
  int backed_off = 0;
  for (size_t i = 1; i < base.loss_scales.size(); ++i)
    backed_off += base.loss_scales[i] < base.loss_scales[i - 1];
  CHECK(backed_off > 0);
  const auto check = [&](const char* what, auto change) {
    INFO(what);
    TinyOptions many = one;
    change(many);
    const TinyResult r = train_tiny(many);
    CHECK(r.loss_scales == base.loss_scales);
    close_losses(base, r, 1e-2);
    CHECK(r.plan_bytes == r.used_bytes);
  };
  check("data", [](TinyOptions& m) { m.ranks = 2; });
  for (int stage : {1, 2, 3}) check("ZeRO", [&](TinyOptions& m) { m.ranks = 2, m.zero_stage = stage; });
  check("tensor", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
  check("tensor, 2d", [](TinyOptions& m) { m.tensor = 4, m.tensor_mode = "2d", m.micro_batch = 2; });
  check("pipeline", [](TinyOptions& m) { m.pipeline = 2; });
  check("context", [](TinyOptions& m) { m.context = 2; });
}

TEST_CASE("an overflow makes no update on any rank, and its decision comes from ranks that did not see it") {
  TinyOptions o = fp16_job();
  o.ranks = 2;
  o.pipeline = 2;
  o.loss_scale.initial = 0x1p40;
  o.steps = 1;
  TinyOptions still = o;
  still.steps = 0;
  const NamedTensors before = train_tiny(still).parameters;
  o.read_gradients = false;
  const TinyResult after = train_tiny(o);
  CHECK(after.parameters == before);
  CHECK(after.loss_scales.front() == 0x1p40);
  o.loss_scale.initial = 1024;
  CHECK(train_tiny(o).parameters != before);  // a comparison that can fail
}

TEST_CASE("the gradient of an MoE model's balance losses is scaled with the others") {
  TinyOptions o = fp16_job();
  o.moe.num_experts = 4;
  o.moe.balance_coeff = 0.5;
  o.moe.z_loss_coeff = 0.1;
  o.loss_scale.initial = 1;
  const TinyResult unscaled = train_tiny(o);
  o.loss_scale.initial = 256;
  const TinyResult scaled = train_tiny(o);
  for (size_t i = 0; i < scaled.norms.size(); ++i) {
    CHECK(scaled.norms[i] == Approx(unscaled.norms[i]).epsilon(2e-2));
    CHECK(scaled.balance_losses[i] == Approx(unscaled.balance_losses[i]).epsilon(2e-2));
  }
}
