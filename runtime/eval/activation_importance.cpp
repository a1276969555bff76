#include "runtime/eval/activation_importance.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/moe/route.h"

namespace ltrain {
namespace {

constexpr double kLeastNorm = 1e-8;  // the limit of torch.nn.functional.cosine_similarity

/// The first `rows` rows of an activation.
std::vector<double> on_host(Stream& s, const Tensor& t, int64_t rows) {
  LT_CHECK(t.dtype == DType::f32 || t.dtype == DType::f64, "expected activations of fp32 or fp64, got {}",
           dtype_name(t.dtype));
  const Tensor part = t.narrow(0, rows);
  std::vector<double> all(static_cast<size_t>(part.elements()));
  if (t.dtype == DType::f64) {
    download(s, all.data(), part);
    return all;
  }
  std::vector<float> narrow(all.size());
  download(s, narrow.data(), part);
  std::copy(narrow.begin(), narrow.end(), all.begin());
  return all;
}

/// Sum over rows of `columns` elements of the cosine of the rows of x and y.
double sum_of_cosines(const std::vector<double>& x, const std::vector<double>& y, int64_t columns) {
  double sum = 0;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(columns)) {
    double xy = 0, xx = 0, yy = 0;
    for (size_t i = row; i < row + static_cast<size_t>(columns); ++i)
      xy += x[i] * y[i], xx += x[i] * x[i], yy += y[i] * y[i];
    sum += xy / (std::max(std::sqrt(xx), kLeastNorm) * std::max(std::sqrt(yy), kLeastNorm));
  }
  return sum;
}

}  // namespace

ActivationSums::ActivationSums(const ModelConfig& model)
    : cosines_(static_cast<size_t>(model.num_hidden_layers)),
      squares_(static_cast<size_t>(model.num_hidden_layers),
               std::vector<double>(static_cast<size_t>(model.intermediate_size))) {}

void ActivationSums::begin_batch(const data::Batch& batch) {
  samples_ = std::ranges::count_if(batch.sample_index, [](int64_t i) { return i >= 0; });
  length_ = static_cast<int64_t>(batch.tokens.size() / batch.sample_index.size());
  residuals_ = 0;
  tokens_ += samples_ * length_;
}

void ActivationSums::residual(Stream& s, const Tensor& x) {
  std::vector<double> now = on_host(s, x, samples_ * length_);
  if (residuals_ > 0)
    cosines_.at(static_cast<size_t>(residuals_ - 1)) += sum_of_cosines(before_, now, x.shape[1]);
  before_ = std::move(now);
  ++residuals_;
}

void ActivationSums::neurons(Stream& s, const Tensor& activation) {
  std::vector<double>& squares = squares_.at(static_cast<size_t>(residuals_ - 1));
  LT_CHECK(activation.shape[1] == static_cast<int64_t>(squares.size()), "expected {} neurons, got {}",
           squares.size(), activation.shape[1]);
  const std::vector<double> values = on_host(s, activation, samples_ * length_);
  std::vector<double> sums(squares.size());
  auto value = values.begin();
  for (int64_t sample = 0; sample < samples_; ++sample) {
    std::fill(sums.begin(), sums.end(), 0);
    for (int64_t t = 0; t < length_; ++t)
      for (double& sum : sums) sum += std::abs(*value++);
    for (size_t i = 0; i < sums.size(); ++i) {
      const double mean = sums[i] / static_cast<double>(length_);
      squares[i] += mean * mean;
    }
  }
}

Importance ActivationSums::importance() const {
  Importance out;
  for (const double sum : cosines_) out.layers.push_back(1 - sum / static_cast<double>(tokens_));
  out.neurons = squares_;
  for (std::vector<double>& layer : out.neurons)
    for (double& x : layer) x = std::sqrt(x);
  return out;
}

ExpertSums::ExpertSums(const ModelConfig& model) : experts_(model.moe.num_experts) {}

void ExpertSums::begin_batch(const data::Batch& batch) {
  const auto samples = std::ranges::count_if(batch.sample_index, [](int64_t i) { return i >= 0; });
  real_tokens_ = samples * static_cast<int64_t>(batch.tokens.size() / batch.sample_index.size());
  layer_ = -1;
}

void ExpertSums::residual(Stream& /*s*/, const Tensor& /*x*/) { ++layer_, first_ = 0; }

void ExpertSums::experts(Stream& s, const Routing& routing, const Tensor& outputs) {
  const int64_t tokens = routing.experts.shape[0], each = routing.experts.shape[1], width = outputs.shape[1];
  std::vector<int32_t> chosen(static_cast<size_t>(tokens * each)), slots(chosen.size());
  download(s, chosen.data(), routing.experts);
  download(s, slots.data(), routing.slots);
  const std::vector<double> weights = on_host(s, routing.weights, tokens),
                            rows = on_host(s, outputs, outputs.shape[0]);
  std::vector<Sum>& sums = sums_[layer_];
  sums.resize(static_cast<size_t>(experts_));
  const int64_t real = std::clamp<int64_t>(real_tokens_ - first_, 0, tokens);
  for (size_t choice = 0; choice < static_cast<size_t>(real * each); ++choice) {
    if (chosen[choice] < 0 || slots[choice] < 0) continue;
    double squares = 0;
    for (int64_t i = slots[choice] * width; i < (slots[choice] + 1) * width; ++i)
      squares += rows[static_cast<size_t>(i)] * rows[static_cast<size_t>(i)];
    Sum& sum = sums.at(static_cast<size_t>(chosen[choice]));
    sum.total += weights[choice] * std::sqrt(squares);
    ++sum.tokens;
  }
  first_ += tokens;
}

ExpertUse ExpertSums::saliency() const {
  ExpertUse out;
  for (const auto& [layer, sums] : sums_)
    for (const Sum& s : sums)
      out[layer].push_back(s.tokens > 0 ? s.total / static_cast<double>(s.tokens) : 0);
  return out;
}

namespace {

/// Evaluates the first samples of `options` while `sums` observes.
template <class Sums>
void observe(TrainProgram& program, const data::LoaderOptions& options, Sums& sums) {
  data::BatchLoader loader(options, 0);
  int64_t left = (loader.eval_samples() + options.micro_batch - 1) / options.micro_batch;
  if (left == 0)
    fail(ExitCode::data, "{}: has no sequence of {} tokens", options.sources.at(0).path, options.seq_length);
  program.observe(&sums);
  data::Batch batch;
  program.evaluate([&]() -> const data::Batch* {
    if (left-- == 0) return nullptr;
    loader.next(batch);
    sums.begin_batch(batch);
    return &batch;
  });
  program.observe(nullptr);
}

}  // namespace

Importance activation_importance(TrainProgram& program, const data::LoaderOptions& options) {
  ActivationSums sums(program.options().model);
  observe(program, options, sums);
  return sums.importance();
}

ExpertUse expert_saliency(TrainProgram& program, const data::LoaderOptions& options) {
  ExpertSums sums(program.options().model);
  observe(program, options, sums);
  return sums.saliency();
}

}  // namespace ltrain
