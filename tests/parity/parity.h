// Two runs of one job under different layouts, compared.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/fault_point.h"
#include "tests/support/tiny_job.h"

namespace ltrain::test {

/// Parameters as they are before the first step.
inline NamedTensors at_first(TinyOptions o) {
  o.steps = 0;
  return train_tiny(o).parameters;
}

/// Largest difference relative to the largest value, tensor by tensor.
inline double worst_relative(const NamedTensors& a, const NamedTensors& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 0;
  for (const auto& [name, x] : a)
    for (double v : x) largest = std::max(largest, std::abs(v));
  for (const auto& [name, x] : a) {
    INFO(name);
    REQUIRE(b.count(name) == 1);
    const std::vector<double>& y = b.at(name);
    REQUIRE(x.size() == y.size());
    double scale = 1e-3 * largest, apart = 0;  // a key bias has no gradient but rounding
    for (size_t i = 0; i < x.size(); ++i) {
      scale = std::max(scale, std::abs(x[i]));
      apart = std::max(apart, std::abs(x[i] - y[i]));
    }
    worst = std::max(worst, apart / scale);
  }
  return worst;
}

/// Losses, norms, the gradients of the first step and, in fp64, all parameters after the last. Adam divides
/// the rounding of gradients that are zero (those of key biases, about 1e-17) by its epsilon of 1e-8:
/// parameters may be a hundred times further apart, and in fp32 they say nothing.
inline void require_parity(const TinyResult& one, const TinyResult& many, double tolerance) {
  REQUIRE(one.losses.size() == many.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(std::abs(one.losses[i] - many.losses[i]) <= tolerance * std::abs(one.losses[i]));
    CHECK(std::abs(one.mtp_losses[i] - many.mtp_losses[i]) <= tolerance * std::abs(one.mtp_losses[i]));
    CHECK(std::abs(one.norms[i] - many.norms[i]) <= tolerance * 10 * std::abs(one.norms[i]));
  }
  CHECK(std::abs(one.eval_loss - many.eval_loss) <= tolerance * std::abs(one.eval_loss));
  CHECK(worst_relative(one.gradients, many.gradients) <= tolerance * 10);
  if (tolerance < 1e-8) CHECK(worst_relative(one.parameters, many.parameters) <= tolerance * 100);
}

/// Two ways that must not differ in a bit. (Of many values it is said whether they are equal, not each of
/// them.)
inline void check_same_bits(const TinyResult& a, const TinyResult& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.mtp_losses == b.mtp_losses);
  CHECK(a.eval_loss == b.eval_loss);
  const bool gradients = a.gradients == b.gradients, parameters = a.parameters == b.parameters;
  CHECK(gradients);
  CHECK(parameters);
}

/// A layout by what it changes in a job of one process.
struct NamedLayout {
  const char* name;
  std::function<void(TinyOptions&)> set;
};

/// Ways in which rows travel to experts of two ranks and more, of a job of eight experts.
inline std::vector<NamedLayout> expert_layouts() {
  return {
      {"expert 2", [](TinyOptions& o) { o.ranks = o.expert = 2; }},
      {"expert 2, tensor 2, ZeRO-3",
       [](TinyOptions& o) { o.ranks = o.expert = o.tensor = 2, o.zero_stage = 3; }},
      {"experts over tensor 2 and data 2",
       [](TinyOptions& o) {
         o.ranks = o.tensor = 2, o.expert = 4, o.sequence_parallel = true, o.expert_tensor = false;
       }},
      {"experts over context 2 and data 2", [](TinyOptions& o) { o.ranks = o.context = 2, o.expert = 4; }},
      {"two levels", [](TinyOptions& o) { o.ranks = o.expert = 4, o.intra_node_experts = 2; }},
      {"in two parts", [](TinyOptions& o) { o.ranks = o.expert = 2, o.dispatch.chunks = 2; }},
      {"gathered", [](TinyOptions& o) { o.ranks = o.expert = 2, o.dispatch.gather = true; }},
      {"a budget of rows", [](TinyOptions& o) { o.ranks = o.expert = 2, o.dispatch.row_budget = 1; }}};
}

inline std::vector<NamedLayout> joined(std::vector<NamedLayout> a, const std::vector<NamedLayout>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A bf16 job that multiplies in FP8 stays close to the same job without, and what `many` makes of it to
/// that, in planned memory. Returns the first. Layouts round sums of bf16 apart: the first losses say so
/// alone, later ones what training has made of it (up to 5e-3 in six steps).
inline TinyResult check_fp8_follows_bf16(TinyOptions o, const std::function<void(TinyOptions&)>& many) {
  o.precision = "bf16";
  o.steps = 6;
  TinyOptions plain = o, spread = o;
  plain.fp8.reset();
  many(spread);
  const TinyResult eight = train_tiny(o), sixteen = train_tiny(plain), of_many = train_tiny(spread);
  CHECK(eight.used_bytes == eight.plan_bytes);
  CHECK(of_many.used_bytes == of_many.plan_bytes);
  for (size_t i = 0; i < eight.losses.size(); ++i) {
    CHECK(std::abs(eight.losses[i] / sixteen.losses[i] - 1) < 0.03);
    CHECK(std::abs(of_many.losses[i] / eight.losses[i] - 1) < (i == 0 ? 2e-4 : i == 1 ? 2e-3 : 1e-2));
  }
  CHECK(eight.losses != sixteen.losses);
  return eight;
}

/// Five layers with dropout; two steps of four sequences.
inline TinyOptions five_layer_job(const char* architecture) {
  TinyOptions o;
  o.architecture = architecture;
  o.dropout = 0.1;
  o.layers = 5;
  o.steps = 2;
  o.global_batch = 4;
  o.padded_targets = true;
  return o;
}

/// Calls check(name, options) for the layouts of a job of four sequences, five layers and four heads.
template <class F>
void each_layout(const TinyOptions& one, F check) {
  TinyOptions o = one;
  o.tensor = 2, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 3;
  check("tensor 2, sequence, ZeRO-3", o);
  for (const char* comm : {"p2p", "all_gather", "a2a"}) {
    o = one;
    o.context = 2, o.context_comm = comm, o.kv_heads = one.architecture == "llama" ? 2 : 0;
    check(comm, o);
  }
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"}) {
    o = one;
    o.pipeline = 2, o.schedule = schedule, o.ranks = 2, o.zero_stage = 1;
    o.chunks = schedule == "zbv" || schedule == "interleaved" ? 2 : 1;
    o.global_batch = 8;
    check(schedule, o);
  }
  o = one;
  o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2;
  check("2d", o);
  o = one;
  o.tensor = 8, o.tensor_mode = "3d", o.micro_batch = 4, o.heads = 4, o.kv_heads = 4, o.intermediate = 64;
  check("3d", o);
}

/// The `nth` write to offload memory finds a full disk: the job ends with the code of storage and names the
/// key of the folder; and it is the disk that ends it.
inline void check_full_disk(const TinyOptions& o, int nth, const std::string& key) {
  arm_faults(fmt::format("offload.store:*:{}:skip", nth));
  try {
    train_tiny(o);
    FAIL("nothing was thrown");
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::storage);
    CHECK_THAT(e.what(), Catch::Contains("No space left on device") && Catch::Contains(key));
  }
  arm_faults("");
  CHECK_NOTHROW(train_tiny(o));
}

/// First difference of two lists of ops (TinyResult::plan_ops); empty if they are equal. Some numbers and
/// paddings are zeroed without a plan.
inline std::string op_difference(std::vector<std::string> plan, std::vector<std::string> used) {
  for (auto* list : {&plan, &used})
    std::erase_if(*list, [](const std::string& op) { return op.ends_with(" fill_zero"); });
  for (size_t i = 0; i < std::max(plan.size(), used.size()); ++i) {
    const std::string a = i < plan.size() ? plan[i] : "(end)", b = i < used.size() ? used[i] : "(end)";
    if (a != b) return fmt::format("entry {}: planned {}, run {}", i, a, b);
  }
  return "";
}

}  // namespace ltrain::test
