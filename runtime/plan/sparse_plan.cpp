#include "runtime/plan/sparse_plan.h"

#include "base/error.h"
#include "models/decoder/decoder.h"
#include "parallel/optim/optimizer.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/recipe/diagnostics.h"

namespace ltrain {

namespace {

/// Common patterns that match a matrix of this model.
std::string patterns_that_work(const ParameterStore& store) {
  std::string all;
  for (const char* pattern : {"*.mlp.*", "*.self_attn.*", "*.attn.*"})
    for (int id = 0; id < store.count(); ++id) {
      const ParameterSpec& spec = store.spec(id);
      if (!spec.is_linear() || !name_matches(pattern, spec.name)) continue;
      all += fmt::format("{}[\"{}\"]", all.empty() ? "" : ", or ", pattern);
      break;
    }
  return all;
}

}  // namespace

std::map<std::string, Shape> sparse_matrices(const Recipe& r) {
  std::map<std::string, Shape> found;
  if (!r.sparsity.on()) return found;
  const GroupSet alone;
  ParameterStore store;
  const Decoder decoder(r.model, store, alone.groups(), {});
  for (const std::string& pattern : r.sparsity.match) {
    bool any = false;
    std::string other;  // a match that cannot be sparse
    for (int id = 0; id < store.count(); ++id) {
      const ParameterSpec& spec = store.spec(id);
      if (!name_matches(pattern, spec.name)) continue;
      if (spec.is_linear()) {
        any = true;
        found.emplace(spec.name, spec.slice.global);
      } else {
        other = spec.name;
      }
    }
    if (any) continue;
    fail(ExitCode::usage,
         "{}sparsity.match: {} {}; it is for matrices of linear layers (no embedding, norm, bias, router, "
         "expert, nor the projection to the vocabulary); nearest valid value: {}",
         r.origins ? r.origins->place("sparsity.match").text() + ": " : "", pattern,
         other.empty() ? "matches no parameter" : "matches no such matrix, but " + other,
         patterns_that_work(store));
  }
  return found;
}

SparsePrice sparse_price(const Plan& plan, const Recipe& recipe, const MachineProfile& profile) {
  const SparsitySettings s = optimizer_settings(recipe).sparsity;
  SparsePrice price{.steps = s.sparse_steps(), .usual = s.mostly_sparse()};
  for (const RankPlan& r : plan.ranks) price.skips_zeros = price.skips_zeros || r.skips_zeros;
  if (price.skips_zeros && profile.sparse_matmul_speedup > 0)
    price.speedup = sparse_speedup(profile.sparse_matmul_speedup, s.kept_share());
  return price;
}

Recipe recipe_of_other_steps(const Recipe& recipe) {
  Recipe other = recipe;
  SparsitySettings& s = other.sparsity;
  if (optimizer_settings(recipe).sparsity.mostly_sparse()) {
    s.at_step = recipe.train.train_steps + 1;
    s.gradient_estimator = GradientEstimator::none;
  } else {
    s.at_step = 1;
    s.dense_tail = 0;
  }
  return other;
}

std::string dense_group(const std::vector<double>& w, const Shape& shape, const SparsitySettings& settings) {
  const SparsePattern p = sparse_pattern(settings, shape[1]);
  const int64_t rows = shape[0], cols = shape[1];
  const auto others = [&](int64_t first, int64_t step, int count) {
    int n = 0;
    for (int j = 0; j < count; ++j) n += w[static_cast<size_t>(first + j * step)] != 0;
    return n;
  };
  for (int64_t i = 0; i + p.group <= rows * cols; i += p.group)
    if (const int n = others(i, 1, p.group); n > p.kept)
      return fmt::format("row {} has {} numbers other than zero in columns {} to {}", i / cols, n, i % cols,
                         i % cols + p.group - 1);
  for (int64_t row = 0; p.cols > 0 && row + 4 <= rows; row += 4)
    for (int64_t col = 0; col < cols; ++col)
      if (const int n = others(row * cols + col, cols, 4); n > 2)
        return fmt::format("column {} has {} numbers other than zero in rows {} to {}", col, n, row, row + 3);
  return "";
}

namespace {

std::vector<double> values_of(const std::vector<char>& bytes, DType t) {
  std::vector<double> out(bytes.size() / static_cast<size_t>(dtype_size(t)));
  dispatch_float(t, [&]<class T>() {
    const T* from = reinterpret_cast<const T*>(bytes.data());
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(get(from, static_cast<int64_t>(i)));
  });
  return out;
}

}  // namespace

SparseCheck check_sparse(const std::string& checkpoint) {
  const auto control = make_single_group("checkpoint", {});
  const auto stream = make_inline_stream("checkpoint");
  ResumeOptions options;
  options.resume = checkpoint;
  options.verify_hashes = false;
  std::vector<std::string> notes;
  const auto reader = CheckpointReader::open(options, *control, *stream, notes);
  const CheckpointInfo& info = reader->info();
  if (info.recipe.find("sparsity") == std::string::npos) return {};  // older than the setting
  const Recipe recipe = parse_recipe(info.recipe, checkpoint + " (recipe)");
  SparsitySettings sparsity = recipe.sparsity;
  sparsity.train_steps = recipe.train.train_steps;
  const int64_t updates = info.updates();
  if (!sparsity.on() || updates < sparsity.at_step || (sparsity.moves() && !sparsity.masks(updates)))
    return {};
  const std::map<std::string, Shape> matrices = sparse_matrices(recipe);
  for (const auto& [name, shape] : matrices) {
    const auto at = reader->tensors().find(name);
    if (at == reader->tensors().end() || !(at->second.shape == shape))
      fail(ExitCode::storage, "{}: has no {} of shape {}, which its recipe has", checkpoint, name,
           to_string(shape));
    const DType t = at->second.dtype;
    std::vector<char> bytes(static_cast<size_t>(shape.elements() * dtype_size(t)));
    reader->read(name, t, Slice::whole(shape), bytes.data());
    if (const std::string wrong = dense_group(values_of(bytes, t), shape, sparsity); !wrong.empty())
      fail(ExitCode::storage,
           "{}: {} is not {} sparse, though sparsity.match of its recipe has it since update {}: {}; the "
           "checkpoint was changed, or a defect of ltrain wrote it",
           checkpoint, name, pattern_text(sparsity), sparsity.at_step, wrong);
  }
  return {static_cast<int>(matrices.size()), pattern_text(sparsity)};
}

}  // namespace ltrain
