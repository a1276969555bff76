#include "runtime/weights/pissa.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/matmul/singular_vectors.h"
#include "kernels/tensor/staging.h"
#include "models/moe/expert_adapters.h"
#include "runtime/checkpoint/convert_elements.h"

namespace ltrain {
namespace {

constexpr int64_t kElements = int64_t{1} << 20;  // chunk of a piece

/// Values as `dtype` holds them.
void round_to(DType dtype, std::vector<double>& values) {
  std::vector<char> bytes(values.size() * static_cast<size_t>(dtype_size(dtype)));
  const int64_t n = static_cast<int64_t>(values.size());
  convert_elements(DType::f64, values.data(), dtype, bytes.data(), n);
  convert_elements(dtype, bytes.data(), DType::f64, values.data(), n);
}

/// Elements [first, end) of a piece: what it has of one matrix, consecutive in its memory.
struct MatrixPart {
  const OwnedPiece* piece;
  int64_t first, end;
};
using MatrixParts = std::map<int64_t, std::vector<MatrixPart>>;  // key: index of a matrix in its stack

/// Parts that pieces of a stack of matrices of `each` elements have of the single matrices.
MatrixParts parts_of(const std::vector<OwnedPiece>& pieces, int64_t each) {
  MatrixParts parts;
  for (const OwnedPiece& piece : pieces) {
    Runs runs(piece.slice);
    for (Run run = runs.next(); run.count > 0; run = runs.next())
      for (int64_t at = 0, n; at < run.count; at += n) {
        n = std::min(run.count - at, each - (run.global + at) % each);
        std::vector<MatrixPart>& of = parts[(run.global + at) / each];
        if (of.empty() || of.back().piece != &piece) of.push_back({&piece, run.local + at, 0});
        of.back().end = run.local + at + n;
      }
  }
  return parts;
}

/// Fills a part of a piece with value(index in the matrix of `each` elements).
template <class F>
void fill(ParameterStore& parameters, const MatrixPart& part, int64_t each, F value) {
  const OwnedPiece& piece = *part.piece;
  std::vector<double> values;
  for (int64_t done = part.first; done < part.end; done += kElements) {
    const int64_t n = std::min(kElements, part.end - done);
    values.resize(static_cast<size_t>(n));
    Runs runs(piece.slice.range(done, done + n));
    for (Run run = runs.next(); run.count > 0; run = runs.next())
      for (int64_t i = 0; i < run.count; ++i)
        values[static_cast<size_t>(run.local + i)] = value((run.global + i) % each);
    Stream& s = parameters.stream();
    if (piece.nf4.defined()) {
      std::vector<float> narrow(values.begin(), values.end());
      const Nf4Matrix to{piece.nf4.codes.flat(done / kNf4Pair, {n / kNf4Pair}),
                         piece.nf4.absmax.flat(done / kNf4Block, {n / kNf4Block})};
      LT_CHECK(nf4_store(s, to, parameters.precision().compute, narrow.data()),
               "{}: expected finite weights without their singular vectors, got others",
               parameters.spec(piece.id).name);
      continue;
    }
    std::vector<char> bytes(values.size() * static_cast<size_t>(dtype_size(piece.master.dtype)));
    convert_elements(DType::f64, values.data(), piece.master.dtype, bytes.data(), n);
    upload(s, piece.master.flat(done, {n}), bytes.data());
    parameters.release_offloaded();
  }
}

}  // namespace

double PissaFactors::rest(int64_t row, int64_t col) const {
  double sum = 0;
  for (int64_t k = 0; k < rank; ++k)
    sum += b[static_cast<size_t>(row * rank + k)] * a[static_cast<size_t>(k * cols + col)];
  return static_cast<double>(w[static_cast<size_t>(row * cols + col)]) - scale * sum;
}

PissaFactors pissa_factors(const std::string& name, const LoraConfig& lora, const Shape& shape,
                           std::vector<float> w, DType dtype) {
  PissaFactors f{.rows = shape[0],
                 .cols = shape[1],
                 .rank = lora.rank_of(name),
                 .scale = lora.scale_of(name),
                 .w = std::move(w),
                 .a = {},
                 .b = {}};
  if (f.rank > std::min(f.rows, f.cols))
    fail(ExitCode::usage,
         "lora.init = pissa: {} of {} has {} singular values, and its adapter rank {}; lower "
         "lora.r, or set lora.rank_pattern",
         name, to_string(shape), std::min(f.rows, f.cols), f.rank);
  if (!std::all_of(f.w.begin(), f.w.end(), [](float v) { return std::isfinite(v); }))
    fail(ExitCode::data, "lora.init = pissa: {} has values that are not finite", name);
  const SingularVectors largest = largest_singular_vectors(f.w.data(), f.rows, f.cols, f.rank);
  f.residual = largest.residual;
  f.a = largest.right;
  f.b.resize(static_cast<size_t>(f.rows * f.rank));
  for (int64_t k = 0; k < f.rank; ++k) {
    const double root = std::sqrt(largest.values[static_cast<size_t>(k)] / f.scale);
    for (int64_t c = 0; c < f.cols; ++c) f.a[static_cast<size_t>(k * f.cols + c)] *= root;
    for (int64_t r = 0; r < f.rows; ++r)
      f.b[static_cast<size_t>(r * f.rank + k)] = root * largest.left[static_cast<size_t>(k * f.rows + r)];
  }
  round_to(dtype, f.a);
  round_to(dtype, f.b);
  return f;
}

std::set<std::string> pissa_weights(const Recipe& recipe, const ParameterStore& parameters) {
  std::set<std::string> names;
  if (recipe.model.lora.init != LoraInit::pissa) return names;
  for (int id = 0; id < parameters.count(); ++id) {
    const std::string& name = parameters.spec(id).name;
    if (!parameters.spec(id).adapter || !name.ends_with(".lora_A.weight")) continue;
    const std::string module(module_of(module_of(name)));
    names.insert(parameters.find(module) >= 0 ? module
                                              : module + ".weight");  // a stack of experts, or a matrix
  }
  return names;
}

void load_pissa(const Recipe& recipe, ParameterStore& parameters, PieceReader& reader,
                std::vector<std::string>& notes) {
  const std::set<std::string> weights = pissa_weights(recipe, parameters);
  std::map<std::string, std::vector<OwnedPiece>> pieces;
  for (OwnedPiece& piece : parameters.stored_pieces())
    pieces[parameters.spec(piece.id).name].push_back(std::move(piece));
  const LoraConfig lora = lora_of_stacks(recipe.model);
  const DType kept =
      parameters.precision().has_master() ? parameters.precision().master : parameters.precision().compute;
  double residual = 0;
  int64_t decomposed = 0;
  for (const std::string& name : weights) {
    const std::string weight = name.ends_with(".weight") ? name : name + ".weight";
    const std::string a = lora_a_name(weight), b = lora_b_name(weight);
    if (reader.has(a))
      fail(ExitCode::usage, "lora.init = pissa: {} has adapters already; nearest valid value: zero",
           reader.path());
    const Shape shape = parameters.spec(parameters.find(name)).slice.global;
    const int64_t rows = shape[-2], cols = shape[-1], rank = lora.rank_of(weight), all = rows * cols;
    const MatrixParts of_w = parts_of(pieces[name], all), of_a = parts_of(pieces[a], rank * cols),
                      of_b = parts_of(pieces[b], rows * rank);
    std::set<int64_t> matrices;  // with elements on this rank
    for (const MatrixParts* parts : {&of_w, &of_a, &of_b})
      for (const auto& [k, part] : *parts) matrices.insert(k);
    for (const int64_t k : matrices) {
      std::vector<float> w(static_cast<size_t>(all));
      reader.read(name, DType::f32, Slice::flat(shape, k * all, (k + 1) * all), w.data());
      const PissaFactors f = pissa_factors(weight, lora, {rows, cols}, std::move(w), kept);
      residual = std::max(residual, f.residual);
      const auto fill_all = [&](const MatrixParts& parts, int64_t each, const auto& value) {
        if (const auto found = parts.find(k); found != parts.end())
          for (const MatrixPart& part : found->second) fill(parameters, part, each, value);
      };
      fill_all(of_a, rank * cols, [&](int64_t i) { return f.a[static_cast<size_t>(i)]; });
      fill_all(of_b, rows * rank, [&](int64_t i) { return f.b[static_cast<size_t>(i)]; });
      fill_all(of_w, all, [&](int64_t i) { return f.rest(i / cols, i % cols); });
    }
    decomposed += static_cast<int64_t>(matrices.size());
  }
  notes.push_back(
      fmt::format("the adapters begin with the largest singular vectors of {} matrices (residuals up "
                  "to {:.1e})",
                  decomposed, residual));
}

}  // namespace ltrain
