// Whole training jobs with every optimizer: layouts agree with one rank, stages of ZeRO with each other to
// the bit, plans with runs; and a checkpoint goes on under another layout.
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

const UpdateRule kRules[] = {UpdateRule::adam, UpdateRule::sgd,       UpdateRule::lion,
                             UpdateRule::lamb, UpdateRule::adafactor, UpdateRule::muon};

TinyOptions optimizer_job(UpdateRule rule) {
  TinyOptions o;
  o.optimizer.rule = rule;
  o.global_batch = 4;
  o.kv_heads = 2;
  return o;
}

}  // namespace

TEST_CASE("layouts of every optimizer agree with one rank, and plans with runs") {
  for (const UpdateRule rule : kRules)
    for (const char* architecture : {"llama", "gpt2"}) {
      TinyOptions one = optimizer_job(rule);
      one.architecture = architecture;
      if (one.architecture == "gpt2") one.kv_heads = 0;
      // A key's bias has a gradient of rounding alone, and of that Lion takes the sign.
      const auto whole = [&](TinyResult r) {
        for (int64_t i = 0; i < one.layers; ++i)
          r.parameters.erase(fmt::format("transformer.h.{}.attn.c_attn.bias", i));
        return r;
      };
      const TinyResult want = whole(train_tiny(one));
      INFO(update_rule_name(rule) << " " << architecture);
      const auto check = [&](const char* name, const std::function<void(TinyOptions&)>& change) {
        TinyOptions o = one;
        change(o);
        INFO(name);
        const TinyResult got = whole(train_tiny(o));
        CHECK(std::abs(got.eval_loss - want.eval_loss) <= 1e-11 * want.eval_loss);
        CHECK(worst_relative(want.parameters, got.parameters) <= 1e-9);
        CHECK(got.plan_bytes == got.used_bytes);
        CHECK(got.plan_wire == got.used_wire);
      };
      check("tensor 4, sequence, ZeRO-1", [](TinyOptions& o) {
        o.tensor = 4, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 1;  // copied key-value heads
      });
      check("pipeline 2, ZeRO-2", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 2; });
      check("context 2, ZeRO-3", [](TinyOptions& o) { o.context = 2, o.zero_stage = 3; });
      if (rule == UpdateRule::muon) continue;  // needs whole rows or columns
      check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; });
    }
}

TEST_CASE("every optimizer: stages of ZeRO agree to the bit in bf16") {
  int compared = 0;
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    if (is_onebit(rule)) continue;  // for ZeRO-0
    ++compared;
    TinyOptions o = optimizer_job(rule);
    o.precision = "bf16";
    o.ranks = 2;
    o.micro_batch = 2;
    o.steps = 2;
    const TinyResult plain = train_tiny(o);
    for (int stage : {1, 2, 3}) {
      o.zero_stage = stage;
      const TinyResult zero = train_tiny(o);
      INFO(update_rule_name(rule) << " ZeRO " << stage);
      CHECK(plain.losses == zero.losses);
      CHECK(plain.parameters == zero.parameters);
      CHECK(zero.plan_bytes == zero.used_bytes);
    }
  }
  CHECK(compared == kUpdateRules - 2);
}

TEST_CASE("a checkpoint of every optimizer goes on under another layout, and not under another optimizer") {
  for (const UpdateRule rule :
       {UpdateRule::sgd, UpdateRule::adafactor, UpdateRule::muon, UpdateRule::adamw8bit}) {
    TemporaryFolder folder;
    TinyOptions o = optimizer_job(rule);
    o.precision = rule == UpdateRule::adamw8bit ? "fp32" : "fp64";
    const bool coded = rule == UpdateRule::adamw8bit;
    INFO(update_rule_name(rule));
    o.ranks = 2;
    o.zero_stage = 3;
    o.steps = 4;
    const TinyResult unbroken = train_tiny(o);
    o.steps = 2;
    train_tiny(o, {}, saves(o, folder.path(), 2));
    o.steps = 4;
    const TinyResult same = train_tiny(o, {}, resumes(o, folder.path()));
    CHECK(same.parameters == unbroken.parameters);
    TinyOptions other = o;
    other.ranks = 1, other.zero_stage = 0, other.tensor = 2;
    CHECK(
        worst_relative(unbroken.parameters, train_tiny(other, {}, resumes(other, folder.path())).parameters) <
        (coded ? 3e-2 : 1e-9));
    other.optimizer.rule = UpdateRule::lion;
    CHECK_THROWS_WITH(train_tiny(other, {}, resumes(other, folder.path())), Catch::Contains("optimizer"));
  }
}

TEST_CASE(
    "a gradient norm above the limit makes no update, on any rank, and a loss above its own ends the step") {
  TinyOptions o = optimizer_job(UpdateRule::adamw);
  o.ranks = 2;
  o.steps = 2;
  const TinyResult free = train_tiny(o);
  o.skip_grad_norm = free.norms[0] * 1.001;
  CHECK(train_tiny(o).parameters == free.parameters);
  o.skip_grad_norm = free.norms[0] * 0.999;
  o.steps = 1;
  TinyOptions still = o;
  still.steps = 0;
  CHECK(train_tiny(o).parameters == train_tiny(still).parameters);
}
