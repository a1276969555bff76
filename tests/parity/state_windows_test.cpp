// States that are not used as they lie (offloaded, of 16 bits), parameters without fp32 copies, averages of
// weights: the same numbers whatever the layout.
#include <filesystem>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions windows_job(const std::string& precision) {
  TinyOptions o;
  o.precision = precision;
  o.global_batch = 6;
  o.steps = 4;
  return o;
}

}  // namespace

TEST_CASE("offloaded states give the bits of resident ones, and take their planned bytes") {
  for (const std::string precision : {"fp32", "bf16"})
    for (int stage : {0, 1, 2, 3})
      for (double fraction : {0.4, 1.0}) {
        INFO(precision << " ZeRO " << stage << " fraction " << fraction);
        TinyOptions o = windows_job(precision);
        o.ranks = 2;
        o.micro_batch = stage == 2 ? 1 : 3;
        o.zero_stage = stage;
        o.hidden = 64;
        o.bucket_elements = 1 << 20;  // one of each segment, of which there are four
        o.optimizer.groups = {{"*norm*", std::nullopt, 0.5, 0.0}};  // several runs in a window
        const TinyResult resident = train_tiny(o);
        CHECK(resident.offload_bytes == std::vector<int64_t>{0, 0});
        o.offload = {fraction, 160};
        const TinyResult away = train_tiny(o);
        check_same_bits(resident, away);
        CHECK(away.plan_bytes == away.used_bytes);
        // Offloaded bytes in whole blocks, and bytes of the ring.
        const int64_t states = precision == "bf16" ? 3 : 2, ring = 3 * states * 160 * 4;
        CHECK(away.offload_bytes[0] > 0);
        CHECK(resident.used_bytes[0] - away.used_bytes[0] ==
              Approx(away.offload_bytes[0] - ring).margin(4 * states * kOffloadBlock));
      }
}

TEST_CASE("offload composes with tensor, pipeline, context and other rules") {
  const auto check = [&](const char* what, auto change) {
    INFO(what);
    TinyOptions o = windows_job("fp32");
    o.global_batch = 4;
    change(o);
    const TinyResult resident = train_tiny(o);
    o.offload = {1.0, 256};
    const TinyResult away = train_tiny(o);
    check_same_bits(resident, away);
    CHECK(away.plan_bytes == away.used_bytes);
    CHECK(away.offload_bytes[0] > 0);
  };
  check("tensor", [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true; });
  check("pipeline", [](TinyOptions& o) { o.pipeline = 2, o.optimizer.rule = UpdateRule::lion; });
  check("context", [](TinyOptions& o) { o.context = 2, o.optimizer.rule = UpdateRule::sgd; });
  check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; });
  check("an average", [](TinyOptions& o) { o.ema_decay = 0.9, o.ranks = 2, o.zero_stage = 1; });
}

TEST_CASE("a disk that is full when states are written back ends the step with the code of storage") {
  TinyOptions o = windows_job("fp32");
  o.offload = {1.0, 256};
  check_full_disk(o, 7, "offload.optimizer.path");
}

TEST_CASE("moments of bf16: the same bits under every stage of ZeRO and offload, near those of fp32") {
  TinyOptions o = windows_job("fp32");
  o.ranks = 2;
  o.micro_batch = 3;
  const TinyResult wide = train_tiny(o);
  o.bf16_states = true;
  const TinyResult base = train_tiny(o);
  CHECK(base.parameters != wide.parameters);
  for (size_t i = 0; i < base.losses.size(); ++i)
    CHECK(base.losses[i] == Approx(wide.losses[i]).epsilon(5e-3));
  CHECK(base.plan_bytes == base.used_bytes);
  for (int stage : {1, 2, 3}) {
    o.zero_stage = stage;
    o.offload = {stage == 2 ? 0.5 : 0.0, 512};
    INFO("ZeRO " << stage);
    const TinyResult r = train_tiny(o);
    check_same_bits(base, r);
    CHECK(r.plan_bytes == r.used_bytes);
  }
}

TEST_CASE("bf16 parameters without fp32 ones: chance is a function of the element, so layouts agree") {
  TinyOptions o = windows_job("bf16");
  const TinyResult masters = train_tiny(o);
  o.master_weights = false;
  const TinyResult one = train_tiny(o);
  CHECK(one.used_bytes[0] < masters.used_bytes[0]);
  CHECK(one.plan_bytes == one.used_bytes);
  for (size_t i = 0; i < one.losses.size(); ++i)
    CHECK(one.losses[i] == Approx(masters.losses[i]).epsilon(0.03));
  for (const auto& [name, values] : one.parameters)
    for (double v : values) REQUIRE(v == static_cast<float>(bf16(static_cast<float>(v))));
  o.ranks = 2;
  o.micro_batch = 3;
  const TinyResult data = train_tiny(o);
  for (int stage : {1, 2, 3}) {
    o.zero_stage = stage;
    INFO("ZeRO " << stage);
    check_same_bits(data, train_tiny(o));
  }
  // A first step from the same gradients: nearly all elements fall the same way, cut or whole.
  o = windows_job("bf16");
  o.master_weights = false;
  o.steps = 1;
  const TinyResult whole = train_tiny(o);
  const auto differing = [&](const TinyResult& r) {
    int64_t apart = 0, all = 0;
    for (const auto& [name, values] : whole.parameters)
      for (size_t i = 0; i < values.size(); ++i, ++all) apart += values[i] != r.parameters.at(name)[i];
    return static_cast<double>(apart) / static_cast<double>(all);
  };
  TinyOptions cut = o;
  cut.tensor = 2;
  CHECK(differing(train_tiny(cut)) < 0.1);
  cut.tensor = 1;
  cut.optimizer.groups = {{"*", std::nullopt, 1.0001, std::nullopt}};  // chance is not of the value alone
  CHECK(differing(train_tiny(cut)) < 0.1);
}

TEST_CASE("an average of weights is that of its formula, and evaluations see it and put the weights back") {
  for (const std::string precision : {"fp64", "fp32", "bf16"}) {
    INFO(precision);
    TinyOptions o = windows_job(precision);
    o.optimizer.rule = precision == "fp32" ? UpdateRule::lamb : UpdateRule::adamw;
    o.ema_decay = 0.3;
    NamedTensors want;
    for (int64_t steps = 0; steps <= 3; ++steps) {
      o.steps = steps;
      const NamedTensors now = train_tiny(o).parameters;
      const double decay = std::min(0.3, (1.0 + steps) / (10.0 + steps));
      if (steps == 0)
        want = now;
      else
        for (auto& [name, values] : want)
          for (size_t i = 0; i < values.size(); ++i)
            values[i] = decay * values[i] + (1 - decay) * now.at(name)[i];
    }
    const TinyResult r = train_tiny(o);
    CHECK(worst_relative(want, r.averages) < (precision == "fp64" ? 1e-14 : 1e-6));
    CHECK(worst_relative(want, r.parameters) > 1e-4);
    CHECK(r.plan_bytes == r.used_bytes);
    TinyOptions without = o;
    without.ema_decay = 0;
    const TinyResult plain = train_tiny(without);
    CHECK(plain.parameters == r.parameters);
    CHECK(plain.eval_loss != r.eval_loss);
    for (int stage : {1, 3}) {
      TinyOptions many = o;
      many.ranks = 2;
      many.zero_stage = stage;
      const TinyResult sharded = train_tiny(many);
      CHECK(sharded.eval_loss == Approx(r.eval_loss).epsilon(precision == "bf16" ? 1e-2 : 1e-5));
      CHECK(sharded.plan_wire == sharded.used_wire);
      CHECK(sharded.plan_bytes == sharded.used_bytes);
    }
  }
}

TEST_CASE(
    "gradients summed in bf16: half the bytes, near the sums of fp32, one result for all stages of ZeRO") {
  TinyOptions o = windows_job("fp32");
  o.ranks = 2;
  o.micro_batch = 3;
  const TinyResult wide = train_tiny(o);
  o.reduce_bf16 = true;
  const TinyResult base = train_tiny(o);
  CHECK(base.plan_bytes == base.used_bytes);
  CHECK(base.plan_wire == base.used_wire);
  CHECK(base.gradients != wide.gradients);
  CHECK(worst_relative(wide.gradients, base.gradients) < 1e-2);
  for (size_t i = 0; i < base.losses.size(); ++i)
    CHECK(base.losses[i] == Approx(wide.losses[i]).epsilon(5e-3));
  // Other collectives (norms, losses, counts) are the same in both and small.
  CHECK(static_cast<double>(base.used_wire[0]) / static_cast<double>(wide.used_wire[0]) ==
        Approx(0.5).epsilon(0.03));
  for (int stage : {1, 2, 3}) {
    INFO("ZeRO " << stage);
    o.zero_stage = stage;
    const TinyResult r = train_tiny(o);
    check_same_bits(base, r);
    CHECK(r.plan_bytes == r.used_bytes);
    CHECK(r.plan_wire == r.used_wire);
  }
  o.tensor = 2;
  o.sequence_parallel = true;
  const TinyResult cut = train_tiny(o);
  for (size_t i = 0; i < base.losses.size(); ++i)
    CHECK(cut.losses[i] == Approx(base.losses[i]).epsilon(5e-3));
  CHECK(cut.plan_wire == cut.used_wire);
}

TEST_CASE("a step of fewer micro-batches is the step of a smaller batch, bit for bit") {
  for (int stage : {0, 2}) {
    INFO("ZeRO " << stage);
    TinyOptions small = windows_job("fp32");
    small.ranks = 2;
    small.zero_stage = stage;
    small.global_batch = 4;
    small.steps = 1;
    TinyOptions ramp = small;
    ramp.global_batch = 8;
    ramp.micros = 2;
    const TinyResult a = train_tiny(small), b = train_tiny(ramp);
    CHECK(a.losses == b.losses);
    CHECK(a.norms == b.norms);
    CHECK(a.parameters == b.parameters);
    CHECK(b.used_bytes == b.plan_bytes);
    ramp.micros = 0;
    CHECK(train_tiny(ramp).parameters != a.parameters);
  }
}
