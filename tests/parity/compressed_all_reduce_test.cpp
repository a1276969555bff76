// Whole training jobs whose gradients or moments are summed in a compressed all-reduce: under every layout
// plans are what is done, checkpoints go on, and under layouts that leave the ranks of a sum alone nothing
// changes but rounding.
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions compressed_sum_job(UpdateRule rule, std::optional<Code> gradients) {
  TinyOptions o;
  o.optimizer.rule = rule;
  o.optimizer.freeze_step = 2;
  o.reduce_code = gradients;
  o.ranks = 2;
  o.global_batch = 4;
  o.kv_heads = 2;
  o.steps = 4;
  return o;
}

struct Way {
  UpdateRule rule;
  std::optional<Code> gradients;
};
constexpr Way kWays[] = {{UpdateRule::onebit_adam, {}},
                         {UpdateRule::onebit_lamb, {}},
                         {UpdateRule::adamw, Code::int8},
                         {UpdateRule::adamw, Code::sign}};

}  // namespace

TEST_CASE("compressed all-reduce: every layout does what is planned, and learns") {
  for (const Way& way : kWays) {
    const TinyResult base = train_tiny(compressed_sum_job(way.rule, way.gradients));
    const auto check = [&](const char* name, const std::function<void(TinyOptions&)>& change) {
      TinyOptions o = compressed_sum_job(way.rule, way.gradients);
      change(o);
      INFO(update_rule_name(way.rule) << " " << name);
      const TinyResult got = train_tiny(o);
      CHECK(got.plan_bytes == got.used_bytes);
      CHECK(got.plan_wire == got.used_wire);
      CHECK(std::isfinite(got.eval_loss));
      CHECK(std::abs(got.losses[1] - base.losses[1]) <= (way.gradients ? 1e-2 : 1e-9) * base.losses[1]);
      CHECK(std::abs(got.eval_loss - base.eval_loss) <= 0.15 * base.eval_loss);
    };
    check("data 2", [](TinyOptions&) {});
    check("data 4", [](TinyOptions& o) { o.ranks = 4; });
    check("tensor 4, sequence, copied heads",
          [](TinyOptions& o) { o.tensor = 4, o.sequence_parallel = true; });
    check("tensor 2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; });
    check("pipeline 2, tied", [](TinyOptions& o) { o.pipeline = 2, o.tied = false; });
    check("context 2", [](TinyOptions& o) { o.ranks = 1, o.context = 2; });
    if (way.gradients) check("ZeRO-1", [](TinyOptions& o) { o.zero_stage = 1; });
  }
}

TEST_CASE("compressed all-reduce: gradients in 8 bits beside moments in 8 bits") {
  TinyOptions o = compressed_sum_job(UpdateRule::adamw8bit, {});
  o.precision = "fp32";
  const TinyResult plain = train_tiny(o);
  for (int stage : {0, 1}) {
    o.reduce_code = Code::int8;
    o.zero_stage = stage;
    const TinyResult got = train_tiny(o);
    INFO("ZeRO " << stage);
    CHECK(got.plan_bytes == got.used_bytes);
    CHECK(got.losses[0] == Approx(plain.losses[0]).epsilon(1e-5));
    CHECK(got.losses[3] != plain.losses[3]);  // they are rounded
    CHECK(got.losses[3] == Approx(plain.losses[3]).epsilon(1e-2));
  }
}

TEST_CASE("compressed all-reduce: gpt2's tied table over two stages, and experts of an MoE model") {
  for (const Way& way : kWays) {
    INFO(update_rule_name(way.rule));
    TinyOptions tied = compressed_sum_job(way.rule, way.gradients);
    tied.architecture = "gpt2";
    tied.kv_heads = 0;
    tied.pipeline = 2;
    const TinyResult a = train_tiny(tied);
    CHECK(a.plan_wire == a.used_wire);
    TinyOptions moe = compressed_sum_job(way.rule, way.gradients);
    moe.moe.num_experts = 4;
    moe.moe.top_k = 2;
    moe.ranks = 4;
    moe.expert = 2;
    moe.dispatch.gather = true;  // its bytes do not depend on the routing
    const TinyResult b = train_tiny(moe);
    CHECK(b.plan_wire == b.used_wire);
    CHECK(std::isfinite(b.eval_loss));
    moe.ranks = 2;  // nobody else has a rank's experts: they are moved by what that rank has
    const TinyResult c = train_tiny(moe);
    CHECK(c.plan_wire == c.used_wire);
    CHECK(std::isfinite(c.eval_loss));
  }
}

TEST_CASE("compressed all-reduce: coded gradients have the same bits under ZeRO-0 and 1, in bf16 too") {
  for (const Code code : {Code::int8, Code::sign}) {
    TinyOptions o = compressed_sum_job(UpdateRule::adamw, code);
    o.precision = "bf16";
    const TinyResult plain = train_tiny(o);
    o.zero_stage = 1;
    const TinyResult zero = train_tiny(o);
    check_same_bits(plain, zero);
    CHECK(zero.plan_bytes == zero.used_bytes);
    o.reduce_code.reset();
    CHECK(train_tiny(o).gradients != zero.gradients);
  }
}

TEST_CASE(
    "compressed all-reduce: a resume goes on bit for bit, errors included, and with other ranks without "
    "them") {
  for (const Way& way : kWays) {
    INFO(update_rule_name(way.rule));
    TemporaryFolder folder;
    std::vector<std::string> notes;
    const auto goes_on = [&](const TinyOptions& with, bool forget = false) {
      TinyHooks h;
      h.begin = [=, &folder, &notes](const TinyRank& at) {
        const TrainingState::Resumed r = resume_rank(with, at, folder.path() + "/checkpoints");
        if (at.rank == 0) notes = r.notes;
        for (const RoundingError& e : at.program.parameters().rounding_errors(false))
          if (forget) std::fill_n(e.tensor.ptr<double>(), e.tensor.elements(), 0.0);
        return r.step;
      };
      return h;
    };
    const auto begins_with_zero = [&] {
      return std::any_of(notes.begin(), notes.end(),
                         [](const std::string& n) { return n.find("rounding errors") != std::string::npos; });
    };
    TinyOptions o = compressed_sum_job(way.rule, way.gradients);
    o.steps = 6;
    const TinyResult unbroken = train_tiny(o);
    o.steps = 4;
    train_tiny(o, {}, saves(o, folder.path(), 4));
    o.steps = 6;
    CHECK(train_tiny(o, {}, goes_on(o)).parameters == unbroken.parameters);
    CHECK_FALSE(begins_with_zero());
    CHECK(train_tiny(o, {}, goes_on(o, true)).parameters != unbroken.parameters);  // negative control
    TinyOptions other = o;
    other.tensor = 2;  // the same number of ranks sum: each has the errors of its own part
    const TinyResult cut = train_tiny(other, {}, goes_on(other));
    CHECK_FALSE(begins_with_zero());
    CHECK(std::abs(cut.eval_loss - unbroken.eval_loss) <= 0.05 * unbroken.eval_loss);
    other = o;
    other.ranks = 4;
    const TinyResult more = train_tiny(other, {}, goes_on(other));
    CHECK(begins_with_zero());
    CHECK(std::abs(more.eval_loss - unbroken.eval_loss) <= 0.05 * unbroken.eval_loss);
  }
}
