// Sparse matrices: the same zeros or masks and the same training in every layout and under every rule.
#include "parallel/optim/sparsity.h"

#include <set>

#include "base/error.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions sparse_job(const std::string& precision = "fp64") {
  TinyOptions o;
  o.precision = precision;
  o.steps = 5;
  o.optimizer.sparsity = {.match = {"*.mlp.*"}, .at_step = 3};
  return o;
}

bool chosen(const std::string& name) {
  return name.find(".mlp.") != std::string::npos && name.ends_with("weight");
}

/// Fours of a tensor that have more than two numbers other than zero; those that have all.
std::pair<int64_t, int64_t> dense_fours(const std::vector<double>& w) {
  int64_t dense = 0, full = 0;
  for (size_t i = 0; i + 4 <= w.size(); i += 4) {
    const auto zeros =
        std::count(w.begin() + static_cast<int64_t>(i), w.begin() + static_cast<int64_t>(i) + 4, 0.0);
    dense += zeros < 2;
    full += zeros == 0;
  }
  return {dense, full};
}

/// Every group of four in chosen weights is sparse, with no further zeros. Other weights have none.
void check_sparse(const NamedTensors& parameters) {
  int tensors = 0;
  for (const auto& [name, w] : parameters) {
    INFO(name);
    const auto [dense, full] = dense_fours(w);
    if (!chosen(name)) {
      if (name.ends_with("proj.weight")) CHECK(full == static_cast<int64_t>(w.size() / 4));
      continue;
    }
    ++tensors;
    CHECK(dense == 0);
    CHECK(std::count(w.begin(), w.end(), 0.0) == static_cast<int64_t>(w.size() / 2));
  }
  CHECK(tensors == 6);
}

std::map<std::string, std::vector<bool>> zeros(const NamedTensors& parameters) {
  std::map<std::string, std::vector<bool>> all;
  for (const auto& [name, w] : parameters)
    if (chosen(name))
      for (double v : w) all[name].push_back(v == 0);
  return all;
}

}  // namespace

TEST_CASE("2:4 sparse: not before the step, all of them from it on, and training differs by that alone") {
  TinyOptions o = sparse_job();
  TinyOptions dense = o;
  dense.optimizer.sparsity = {};
  o.steps = dense.steps = 2;
  check_same_bits(train_tiny(o), train_tiny(dense));
  o.steps = dense.steps = 5;
  const TinyResult sparse = train_tiny(o), whole = train_tiny(dense);
  check_sparse(sparse.parameters);
  for (size_t i = 0; i < 3; ++i) CHECK(sparse.losses[i] == whole.losses[i]);  // the third is of dense weights
  CHECK(sparse.losses[3] != whole.losses[3]);
  CHECK(sparse.norms[3] < whole.norms[3]);  // zeros have no gradient
  CHECK(sparse.plan_bytes == whole.plan_bytes);
  CHECK(sparse.plan_bytes == sparse.used_bytes);
  CHECK(sparse.plan_wire == sparse.used_wire);
}

TEST_CASE("2:4 sparse: the choice is that of the largest, and chosen ones are those of step 3") {
  TinyOptions before = sparse_job();
  before.steps = 2;
  const NamedTensors was = train_tiny(before).parameters;
  for (int64_t steps : {3, 5}) {
    TinyOptions o = sparse_job();
    o.steps = steps;
    int64_t wrong = 0, seen = 0;
    for (const auto& [name, stays] : zeros(train_tiny(o).parameters)) {
      const std::vector<double>& w = was.at(name);
      for (size_t i = 0; i < w.size(); ++i) {
        int larger = 0;
        for (size_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) larger += std::abs(w[j]) > std::abs(w[i]);
        wrong += (larger >= 2) != stays[i];
        ++seen;
      }
    }
    CHECK(seen > 1000);
    CHECK(wrong == 0);
  }
}

namespace {

/// Trains in each layout, to the numbers of one process.
TinyResult check_layouts(const TinyOptions& job) {
  const TinyResult one = train_tiny(job);
  CHECK(one.plan_bytes == one.used_bytes);
  const auto same = [&](const char* what, auto change) {
    INFO(what);
    TinyOptions o = job;
    change(o);
    const TinyResult many = train_tiny(o);
    require_parity(one, many, 1e-12);
    CHECK(zeros(one.parameters) == zeros(many.parameters));
    CHECK(many.plan_bytes == many.used_bytes);
    CHECK(many.plan_wire == many.used_wire);
  };
  for (int stage : {0, 1, 2, 3}) same("ZeRO", [&](TinyOptions& o) { o.ranks = 2, o.zero_stage = stage; });
  same("tensor", [](TinyOptions& o) { o.tensor = 2; });
  same("tensor and sequence, ZeRO 1",
       [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 1; });
  same("pipeline", [](TinyOptions& o) { o.pipeline = 2; });
  same("two levels, ZeRO 2", [](TinyOptions& o) { o.ranks = 4, o.shard = 2, o.zero_stage = 2; });
  same("small buckets, ZeRO 3",
       [](TinyOptions& o) { o.ranks = 4, o.zero_stage = 3, o.bucket_elements = 500; });
  return one;
}

/// The most numbers other than zero in four rows of a column; `tall`: matrices of `cols` columns.
int64_t most_in_columns(const std::vector<double>& w, size_t cols) {
  int64_t most = 0;
  for (size_t i = 0; i + 3 * cols < w.size(); i += i % cols + 1 == cols ? 3 * cols + 1 : 1) {
    int64_t n = 0;
    for (size_t k = 0; k < 4; ++k) n += w[i + k * cols] != 0;
    most = std::max(most, n);
  }
  return most;
}

}  // namespace

TEST_CASE("2:4 sparse: every layout chooses the same, to 1e-12") { check_layouts(sparse_job()); }

TEST_CASE("N:M sparse: every layout chooses the same, to 1e-12") {
  for (const auto& [pattern, kept, group] : {std::tuple("1:4", 1, 4), {"3:8", 3, 8}}) {
    INFO(pattern);
    TinyOptions o = sparse_job();
    o.intermediate = 48;
    o.optimizer.sparsity.pattern = pattern;
    for (const auto& [name, stays] : zeros(check_layouts(o).parameters))
      CHECK(std::count(stays.begin(), stays.end(), false) * group ==
            static_cast<int64_t>(stays.size()) * kept);
  }
}

TEST_CASE("transposable masks: every layout chooses the same, with 2:4 in columns as well") {
  TinyOptions o = sparse_job();
  o.optimizer.sparsity.transposable = true;
  const NamedTensors parameters = check_layouts(o).parameters;
  check_sparse(parameters);
  for (const auto& [name, w] : parameters)
    if (chosen(name)) CHECK(most_in_columns(w, name.find("down") != std::string::npos ? 40 : 32) == 2);
  // Rows alone have more in some columns.
  CHECK(most_in_columns(train_tiny(sparse_job()).parameters.at("model.layers.0.mlp.down_proj.weight"), 40) >
        2);
}

TEST_CASE("masks that move: every layout trains the same, to 1e-12, with planned bytes") {
  TinyOptions o = sparse_job();
  o.steps = 6;
  o.optimizer.sparsity.at_step = 2;
  o.optimizer.sparsity.mask_interval = 2;
  o.optimizer.sparsity.masked_decay = 0.1;
  for (const bool transposable : {false, true}) {
    INFO(transposable);
    o.optimizer.sparsity.transposable = transposable;
    const TinyResult one = check_layouts(o);
    TinyOptions other = o;
    other.optimizer.sparsity.masked_decay = 0;
    CHECK(train_tiny(other).losses[5] != one.losses[5]);
    other = o;
    other.optimizer.sparsity.mask_interval = 4;
    const TinyResult later = train_tiny(other);
    CHECK(later.losses[2] == one.losses[2]);
    CHECK(later.losses[3] != one.losses[3]);
    for (const auto& [name, w] : one.parameters)  // master weights stay dense
      if (chosen(name)) CHECK(std::count(w.begin(), w.end(), 0.0) == 0);
    other = o;
    other.optimizer.sparsity.train_steps = 6;  // a tail from step 3 on has the weights of step 2's update
    other.optimizer.sparsity.dense_tail = 4.0 / 6;
    const TinyResult tail = train_tiny(other);
    CHECK(tail.losses[1] == one.losses[1]);
    CHECK(tail.losses[2] != one.losses[2]);
    CHECK(tail.plan_bytes == tail.used_bytes);
  }
}

TEST_CASE("matmuls that skip zeros change no bit of a run in fp32, and a plan names them") {
  TinyOptions o = sparse_job("fp32");
  o.micro_batch = 8, o.hidden = 128, o.intermediate = 256;  // matmuls of 192 rows
  o.optimizer.sparsity.at_step = 2;
  o.optimizer.sparsity.gradient_estimator = GradientEstimator::mvue;
  const TinyResult dense = train_tiny(o);
  const auto sparse_ops = [&] {
    MetaJob meta(o, 0);
    meta.program.train_step({}, tiny_adamw(4));
    std::set<std::string> names;
    for (const TraceEntry& e : meta.trace.entries())
      if (e.name.ends_with("_sparse")) names.emplace(e.name);
    return names;
  };
  CHECK(sparse_ops().empty());
  o.optimizer.sparsity.skip_zeros = true;
  CHECK(sparse_ops() == std::set<std::string>{"matmul_nn_sparse", "matmul_nt_sparse", "matmul_tn_sparse"});
  const TinyResult sparse = train_tiny(o);
  CHECK(sparse.losses == dense.losses);
  CHECK(sparse.parameters == dense.parameters);
}

TEST_CASE("sparse output gradients: every layout draws the same numbers, to 1e-12, with planned bytes") {
  for (const bool moving : {false, true}) {
    INFO(moving);
    TinyOptions o = sparse_job();
    o.intermediate = 48;  // multiples of four on four tensor ranks
    o.optimizer.sparsity.match = {"*_proj.weight"};
    o.optimizer.sparsity.at_step = 2;
    o.optimizer.sparsity.mask_interval = moving;
    const TinyResult dense = train_tiny(o);
    o.optimizer.sparsity.gradient_estimator = GradientEstimator::mvue;
    const TinyResult one = check_layouts(o);
    // Losses of the first step with sparse gradients are those before its update.
    const size_t first = moving ? 1 : 2;
    for (size_t i = 0; i <= first; ++i) CHECK(one.losses[i] == dense.losses[i]);
    CHECK(one.norms[first] > 1.01 * dense.norms[first]);
    CHECK(one.losses[first + 1] != dense.losses[first + 1]);
    const auto same = [&](const char* what, auto change) {
      INFO(what);
      TinyOptions many = o;
      change(many);
      const TinyResult r = train_tiny(many);
      require_parity(one, r, 1e-12);
      CHECK(r.plan_bytes == r.used_bytes);
    };
    same("context", [](TinyOptions& m) { m.context = 2; });
    same("context by all-to-all", [](TinyOptions& m) { m.context = 2, m.context_comm = "a2a"; });
    TinyOptions copies = o;  // two key-value heads on four ranks
    copies.tensor = 4;
    CHECK_THROWS_WITH(train_tiny(copies),
                      Catch::Contains("k_proj.weight has copies on neighbouring tensor ranks"));
    same("tensor, sequence and chunks",
         [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = m.async_tensor_parallel = true; });
    same("deferred weight gradients", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; });
    same("two micro-batches", [](TinyOptions& m) { m.micro_batch = 2; });
  }
}

TEST_CASE("sparse output gradients: fused matrices, latent attention and modules, to 1e-12") {
  for (const std::string architecture : {"gpt2", "phi3", "deepseek_v3"}) {
    INFO(architecture);
    TinyOptions o = sparse_job();
    o.architecture = architecture;
    o.optimizer.sparsity = {.match = {"*proj*", "*.c_*.weight"}, .at_step = 1};
    if (architecture == "deepseek_v3")  // other matrices have columns in no fours
      o.optimizer.sparsity.match = {"*_a_proj*", "*mlp.*_proj*", "*eh_proj*"};
    o.optimizer.sparsity.gradient_estimator = GradientEstimator::mvue;
    if (architecture == "deepseek_v3") o.modules = 1;
    o.steps = 4;
    const TinyResult one = train_tiny(o);
    for (const bool rows : {false, true}) {
      TinyOptions many = o;
      many.tensor = 2, many.sequence_parallel = rows;
      const TinyResult r = train_tiny(many);
      require_parity(one, r, 1e-12);
      CHECK(r.plan_bytes == r.used_bytes);
    }
  }
}

TEST_CASE("masks that move: under each rule that may have them, in each precision") {
  for (const std::string precision : {"fp64", "fp32", "bf16"})
    for (UpdateRule rule :
         {UpdateRule::adamw, UpdateRule::sgd, UpdateRule::lion, UpdateRule::lamb, UpdateRule::adafactor,
          UpdateRule::muon, UpdateRule::adamw8bit, UpdateRule::sophia}) {
      if (rule == UpdateRule::adamw8bit && precision == "fp64") continue;
      INFO(precision << " " << update_rule_name(rule));
      TinyOptions o = sparse_job(precision);
      o.optimizer.rule = rule;
      o.optimizer.hessian_interval = 2;
      o.ranks = 2, o.zero_stage = 1;
      TinyOptions moving = o;
      o.optimizer.sparsity = {};
      moving.optimizer.sparsity.transposable = true;
      moving.optimizer.sparsity.mask_interval = 1;
      const TinyResult dense = train_tiny(o), masked = train_tiny(moving);
      // Adafactor's sums over a matrix have another order where buckets have other elements.
      for (size_t i = 0; i < 2; ++i)
        CHECK(std::abs(masked.losses[i] - dense.losses[i]) < (precision == "fp64" ? 1e-12 : 1e-5));
      CHECK(std::abs(masked.losses[2] - dense.losses[2]) > 1e-4);
      for (const double loss : masked.losses) CHECK(std::isfinite(loss));
      CHECK(masked.plan_bytes == masked.used_bytes);
    }
}

TEST_CASE("2:4 sparse: zeros stay under each rule that may have them, in each precision") {
  for (const std::string precision : {"fp64", "fp32", "bf16"})
    for (UpdateRule rule : {UpdateRule::adamw, UpdateRule::adam, UpdateRule::sgd, UpdateRule::lion,
                            UpdateRule::lamb, UpdateRule::adafactor, UpdateRule::sophia}) {
      INFO(precision << " " << update_rule_name(rule));
      TinyOptions o = sparse_job(precision);
      o.optimizer.rule = rule;
      o.optimizer.sgd_nesterov = true;
      o.optimizer.hessian_interval = 2;
      o.ranks = 2, o.zero_stage = 1;
      o.ema_decay = 0.5;
      const TinyResult r = train_tiny(o);
      check_sparse(r.parameters);
      for (const auto& [name, w] : r.averages)
        if (chosen(name)) CHECK(dense_fours(w).first == 0);
    }
}

TEST_CASE("2:4 sparse: with moments of bf16, without masters, and with gradients in 8 bits") {
  for (int stage : {0, 1}) {
    TinyOptions o = sparse_job("bf16");
    o.ranks = 2, o.zero_stage = stage;
    o.bf16_states = true;
    check_sparse(train_tiny(o).parameters);
    o.master_weights = false;
    check_sparse(train_tiny(o).parameters);
    o.master_weights = true, o.bf16_states = false, o.reduce_code = Code::int8;
    check_sparse(train_tiny(o).parameters);
  }
}

TEST_CASE("2:4 sparse: what cannot be is refused by name") {
  const auto refused = [](auto change, const char* what) {
    TinyOptions o = sparse_job();
    change(o);
    try {
      train_tiny(o);
      FAIL("nothing was thrown");
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::usage);
      CHECK_THAT(e.what(), Catch::Contains(what));
    }
  };
  for (UpdateRule rule : {UpdateRule::muon, UpdateRule::adamw8bit, UpdateRule::onebit_adam,
                          UpdateRule::onebit_lamb, UpdateRule::sophia})
    refused(
        [&](TinyOptions& o) {
          o.optimizer.rule = rule, o.precision = "fp32";
          o.optimizer.hessian_estimator = HessianEstimator::hutchinson;
        },
        "mlp.gate_proj.weight has ");
  refused([](TinyOptions& o) { o.intermediate = 42; }, "down_proj.weight has 42 columns");
  refused([](TinyOptions& o) { o.intermediate = 44, o.tensor = 2; },
          "down_proj.weight has 44 columns, 22 on a rank");
  refused([](TinyOptions& o) { o.intermediate = 44, o.optimizer.sparsity.pattern = "4:8"; },
          "down_proj.weight has 44 columns, and 4:8 needs a multiple of 8");
  refused(
      [](TinyOptions& o) {
        o.hidden = 36, o.tensor = 2, o.optimizer.sparsity = {.match = {"*.o_proj.*"}, .transposable = true};
      },
      "o_proj.weight has 36 columns, 18 on a rank, and 2:4 transposable needs a multiple of 4");
  refused([](TinyOptions& o) { o.optimizer.sparsity = {.match = {"*.q_proj.*"}, .transposable = true}; },
          "and they are parts of one matrix, whose masks are kept together; match both or neither");
}
