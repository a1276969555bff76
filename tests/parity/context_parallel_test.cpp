// Context parallelism against one process: every way of bringing the sequence together, alone and with other
// axes, dropout and packed documents.
#include "tests/parity/mutant_group.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct ContextLayout {
  const char* comm;
  int ranks, inner;
};
constexpr ContextLayout kContextLayouts[] = {{"p2p", 2, 1},        {"p2p", 4, 1},        {"p2p", 8, 1},
                                             {"all_gather", 2, 1}, {"all_gather", 4, 1}, {"all_gather", 8, 1},
                                             {"a2a", 2, 1},        {"a2a", 4, 1},        {"a2a", 8, 1},
                                             {"a2a+p2p", 4, 2},    {"a2a+p2p", 8, 2},    {"a2a+p2p", 8, 4}};

TinyOptions context_job(const std::string& architecture, int kv_heads) {
  TinyOptions o;
  o.architecture = architecture;
  o.heads = 8;
  o.kv_heads = kv_heads;
  o.seq = 32;
  o.micro_batch = 2;
  o.global_batch = 4;
  o.padded_targets = true;
  o.dropout = 0.1;
  return o;
}

TinyOptions with(TinyOptions o, const ContextLayout& l) {
  o.context = l.ranks, o.context_comm = l.comm, o.context_inner = l.inner;
  return o;
}

void check_as_planned(const TinyResult& r) {
  CHECK(r.plan_bytes == r.used_bytes);
  CHECK(r.plan_wire == r.used_wire);
}

}  // namespace

TEST_CASE("context parallelism equals one process to 1e-12 in fp64") {
  const auto architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  const bool packed = GENERATE(false, true);
  TinyOptions one = context_job(architecture, 8);
  one.packed = packed;
  const TinyResult base = train_tiny(one);
  TinyOptions unpacked = one;
  unpacked.packed = !packed;
  CHECK(std::abs(train_tiny(unpacked).losses[0] - base.losses[0]) > 1e-4);  // packing matters
  for (const ContextLayout& l : kContextLayouts) {
    INFO(architecture << (packed ? " packed" : "") << ", " << l.comm << " on " << l.ranks << " (" << l.inner
                      << ")");
    const TinyResult cut = train_tiny(with(one, l));
    require_parity(base, cut, 1e-12);
    check_as_planned(cut);
  }
}

TEST_CASE("context parallelism with windows and layers without positions equals one process") {
  TinyOptions one = context_job("llama", 4);
  one.without_positions = true;
  one.window = GENERATE(3, 11);  // shorter and longer than a rank's run
  one.packed = GENERATE(false, true);
  const TinyResult base = train_tiny(one);
  TinyOptions wider = one;
  wider.window = 0;
  CHECK(std::abs(train_tiny(wider).losses[0] - base.losses[0]) > 1e-5);  // the window matters
  for (const ContextLayout& l : {ContextLayout{"p2p", 4, 1}, ContextLayout{"all_gather", 4, 1},
                                 ContextLayout{"a2a", 2, 1}, ContextLayout{"a2a+p2p", 4, 2}}) {
    INFO(l.comm << " on " << l.ranks << ", window " << one.window << (one.packed ? ", packed" : ""));
    const TinyResult cut = train_tiny(with(one, l));
    require_parity(base, cut, 1e-12);
    check_as_planned(cut);
  }
}

TEST_CASE("context parallelism with grouped heads, data ranks, ZeRO and tensor parallelism") {
  TinyOptions one = context_job("llama", 4);
  one.packed = true;
  one.tied = GENERATE(false, true);
  const TinyResult base = train_tiny(one);
  for (const ContextLayout& l : {ContextLayout{"p2p", 2, 1}, ContextLayout{"all_gather", 2, 1},
                                 ContextLayout{"a2a", 2, 1}, ContextLayout{"a2a+p2p", 4, 2}})
    for (int zero : {0, 1, 3})
      for (int tensor : {1, 2}) {
        TinyOptions many = with(one, l);
        many.ranks = 2;
        many.micro_batch = 1;
        many.zero_stage = zero;
        many.tensor = tensor;
        many.sequence_parallel = tensor > 1;
        INFO(l.comm << " on " << l.ranks << ", data 2, tensor " << tensor << ", ZeRO " << zero);
        const TinyResult cut = train_tiny(many);
        require_parity(base, cut, 1e-12);
        check_as_planned(cut);
      }
}

TEST_CASE("context parallelism on pipeline stages") {
  TinyOptions one = context_job("llama", 8);
  one.layers = 4;
  one.global_batch = 8;
  one.packed = true;
  const TinyResult base = train_tiny(one);
  for (const ContextLayout& l :
       {ContextLayout{"p2p", 2, 1}, ContextLayout{"all_gather", 2, 1}, ContextLayout{"a2a+p2p", 4, 2}})
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      TinyOptions many = with(one, l);
      many.pipeline = 2;
      many.schedule = schedule;
      INFO(l.comm << " on " << l.ranks << ", " << schedule);
      const TinyResult cut = train_tiny(many);
      require_parity(base, cut, 1e-12);
      check_as_planned(cut);
    }
}

TEST_CASE("context parallelism in fp32 and bf16") {
  const ContextLayout l =
      GENERATE(values<ContextLayout>({{"p2p", 4, 1}, {"all_gather", 4, 1}, {"a2a+p2p", 4, 2}}));
  TinyOptions one = context_job("llama", 8);
  one.precision = "fp32";
  TinyResult cut = train_tiny(with(one, l));
  require_parity(train_tiny(one), cut, 1e-5);
  check_as_planned(cut);
  one.precision = "bf16";
  cut = train_tiny(with(one, l));
  const TinyResult base = train_tiny(one);
  for (size_t i = 0; i < base.losses.size(); ++i)
    CHECK(cut.losses[i] == Approx(base.losses[i]).epsilon(0.01));
  check_as_planned(cut);
}

TEST_CASE("a hop or a reduction of context parallelism that is left out is seen by parity") {
  TinyOptions one = context_job("llama", 8);
  one.dropout = 0;
  one.steps = 1;
  one.global_batch = 2;
  const TinyResult base = train_tiny(one);
  const auto differs = [&](const TinyOptions& o, int64_t target) {
    const auto wrap = [&](const GroupRequest& r,
                          std::unique_ptr<Communicator> group) -> std::unique_ptr<Communicator> {
      if (r.name != "context") return group;
      return std::make_unique<MutantGroup>(std::move(group), target < 0 ? Mutation::none : Mutation::remove,
                                           target);
    };
    try {
      const TinyResult cut = train_tiny(o, wrap);
      return !(std::abs(base.losses[0] - cut.losses[0]) < 1e-6 &&
               worst_relative(base.gradients, cut.gradients) < 1e-6);
    } catch (const Error&) {
      return true;  // not a number somewhere
    }
  };
  for (const ContextLayout& l : {ContextLayout{"p2p", 2, 1}, ContextLayout{"all_gather", 2, 1},
                                 ContextLayout{"a2a", 2, 1}, ContextLayout{"a2a+p2p", 4, 2}}) {
    const TinyOptions o = with(one, l);
    REQUIRE_FALSE(differs(o, -1));
    // Calls of the first step: forward of two layers, then backward.
    int64_t calls = 0;
    {
      MetaJob meta(o, 0);
      meta.program.train_step({}, tiny_adamw(1));
      for (const TraceEntry& e : meta.trace.entries())
        calls += e.stream == "context" && !e.collective.empty();
    }
    REQUIRE(calls >= 6);
    for (int64_t target = 0; target < calls; ++target) {
      INFO(l.comm << " call " << target << " of " << calls);
      CHECK(differs(o, target));
    }
  }
}
