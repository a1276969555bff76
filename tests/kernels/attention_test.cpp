#include "kernels/attention/attention.h"

#include <array>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct AttentionCase {
  AttentionShape shape;
  double dropout = 0;
  std::vector<int64_t> samples;
};

/// Score by score, in double, from the definition in the header.
struct AttentionReference {
  const AttentionCase& c;
  std::vector<double> qkv;
  std::vector<double> out, lse;

  AttentionReference(const AttentionCase& c_in, std::vector<double> qkv_in)
      : c(c_in), qkv(std::move(qkv_in)) {
    forward();
  }

  double q(int64_t b, int64_t h, int64_t t, int64_t i) const {
    return qkv[(b * c.shape.seq + t) * c.shape.qkv_width() + h * c.shape.head_dim + i];
  }
  int64_t kv_index(bool value, int64_t b, int64_t h, int64_t t, int64_t i) const {
    const int64_t kv = h / (c.shape.heads / c.shape.kv_heads);
    const int64_t of_values = (c.shape.heads + c.shape.kv_heads) * c.shape.head_dim + kv * value_dim();
    const int64_t column = value ? of_values : (c.shape.heads + kv) * c.shape.head_dim;
    return (b * c.shape.seq + t) * c.shape.qkv_width() + column + i;
  }
  double factor(int64_t b, int64_t h, int64_t query, int64_t key) const {
    if (c.dropout == 0) return 1;
    const uint64_t calls = static_cast<uint64_t>((c.shape.seq + 3) / 4);
    const uint64_t row = (static_cast<uint64_t>(c.samples[b]) * c.shape.heads + h) * c.shape.seq + query;
    const bool keep = dropout_keep(11, 22, row * calls * 4 + key, dropout_threshold(c.dropout));
    return keep ? static_cast<float>(1 / (1 - c.dropout)) : 0;
  }
  int64_t value_dim() const { return c.shape.value_dim ? c.shape.value_dim : c.shape.head_dim; }
  double scale() const {
    return c.shape.scale > 0 ? c.shape.scale : 1 / std::sqrt(static_cast<double>(c.shape.head_dim));
  }
  /// Slope of the soft-cap at the score of a query and a key.
  double slope(int64_t b, int64_t h, int64_t t, int64_t k) const {
    if (c.shape.soft_cap == 0) return 1;
    double score = 0;
    for (int64_t i = 0; i < c.shape.head_dim; ++i) score += q(b, h, t, i) * qkv[kv_index(false, b, h, k, i)];
    const double at = std::cosh(score * scale() / c.shape.soft_cap);
    return 1 / (at * at);
  }
  std::vector<double> probabilities(int64_t b, int64_t h, int64_t t, double* log_sum) const {
    std::vector<double> s(t + 1);
    double top = -INFINITY, sum = 0;
    for (int64_t k = 0; k <= t; ++k) {
      for (int64_t i = 0; i < c.shape.head_dim; ++i) s[k] += q(b, h, t, i) * qkv[kv_index(false, b, h, k, i)];
      s[k] *= scale();
      if (c.shape.soft_cap > 0) s[k] = c.shape.soft_cap * std::tanh(s[k] / c.shape.soft_cap);
      if (c.shape.window && k <= t - c.shape.window) s[k] = -INFINITY;
      top = std::max(top, s[k]);
    }
    for (double& v : s) sum += v = std::exp(v - top);
    for (double& v : s) v /= sum;
    *log_sum = top + std::log(sum);
    return s;
  }
  void forward() {
    const AttentionShape& a = c.shape;
    out.assign(a.batch * a.seq * a.heads * value_dim(), 0);
    lse.assign(a.batch * a.heads * a.seq, 0);
    for (int64_t b = 0; b < a.batch; ++b)
      for (int64_t h = 0; h < a.heads; ++h)
        for (int64_t t = 0; t < a.seq; ++t) {
          const auto p = probabilities(b, h, t, &lse[(b * a.heads + h) * a.seq + t]);
          for (int64_t k = 0; k <= t; ++k)
            for (int64_t i = 0; i < value_dim(); ++i)
              out[((b * a.seq + t) * a.heads + h) * value_dim() + i] +=
                  p[k] * factor(b, h, t, k) * qkv[kv_index(true, b, h, k, i)];
        }
  }
  /// `saved`: the output as it was rounded, which backward reads.
  std::vector<double> backward(const std::vector<double>& dout, const std::vector<double>& saved) const {
    const AttentionShape& a = c.shape;
    std::vector<double> grad(qkv.size());
    for (int64_t b = 0; b < a.batch; ++b)
      for (int64_t h = 0; h < a.heads; ++h)
        for (int64_t t = 0; t < a.seq; ++t) {
          double unused, delta = 0;
          const auto p = probabilities(b, h, t, &unused);
          const int64_t row = ((b * a.seq + t) * a.heads + h) * value_dim();
          for (int64_t i = 0; i < value_dim(); ++i) delta += dout[row + i] * saved[row + i];
          for (int64_t k = 0; k <= t; ++k) {
            const double f = factor(b, h, t, k);
            double dp = 0;
            for (int64_t i = 0; i < value_dim(); ++i) {
              dp += dout[row + i] * qkv[kv_index(true, b, h, k, i)];
              grad[kv_index(true, b, h, k, i)] += p[k] * f * dout[row + i];
            }
            const double ds = p[k] * (dp * f - delta) * slope(b, h, t, k) * scale();
            for (int64_t i = 0; i < a.head_dim; ++i) {
              grad[(b * a.seq + t) * a.qkv_width() + h * a.head_dim + i] +=
                  ds * qkv[kv_index(false, b, h, k, i)];
              grad[kv_index(false, b, h, k, i)] += ds * q(b, h, t, i);
            }
          }
        }
    return grad;
  }
};

/// Offsets of the three gradients in a fused dqkv.
template <class T>
std::array<AttentionSink, 3> sinks(Guarded<T>& dqkv, const AttentionShape& a) {
  const auto at = [&](int64_t head) {
    return AttentionSink{dqkv.data() + head * a.head_dim, a.qkv_width(), false, false};
  };
  return {at(0), at(a.heads), at(a.heads + a.kv_heads)};
}

template <class T>
void check_attention(const AttentionCase& c) {
  using A = compute_t<T>;
  const AttentionShape& a = c.shape;
  const int64_t rows = a.batch * a.seq, width = a.heads * (a.value_dim ? a.value_dim : a.head_dim);
  const auto qkv = random_array<T>(rows * a.qkv_width(), 5, 2);
  const auto dout = random_array<T>(rows * width, 6);
  DropoutArgs drop;
  if (c.dropout > 0)
    drop = {{11, 22, c.samples.data(), {a.seq}},
            dropout_threshold(c.dropout),
            static_cast<float>(1 / (1 - c.dropout))};
  const AttentionArgs args = fused_attention_args(dtype_of<T>::value, qkv.data(), a, drop);
  const AttentionReference reference(c, doubles(qkv));
  const auto forwards = BOTH_ISAS(attention_forward_cpu);
  const auto backwards = BOTH_ISAS(attention_backward_cpu);
  for (size_t n = 0; n < forwards.size(); ++n) {
    INFO(forwards[n].first << ": batch " << a.batch << " seq " << a.seq << " heads " << a.heads << "/"
                           << a.kv_heads << " of " << a.head_dim << "/" << a.value_dim << " window "
                           << a.window << " dropout " << c.dropout);
    std::array<std::string, 3> bits;
    for (int threads : {1, 2})
      with_threads(threads, [&] {
        Guarded<T> out(rows * width), dqkv(rows * a.qkv_width());
        Guarded<A> lse(a.batch * a.heads * a.seq);
        forwards[n].second(dtype_of<T>::value, false, out.data(), lse.data(), args);
        CHECK(out.intact());
        CHECK(lse.intact());
        CHECK(worst_error(out, reference.out) < tolerance<T>());
        CHECK(worst_error(lse, reference.lse) < (sizeof(A) == 8 ? 1e-12 : 1e-5));
        const auto [dq, dk, dv] = sinks(dqkv, a);
        backwards[n].second(dtype_of<T>::value, dq, dk, dv, dout.data(), out.data(), lse.data(), args);
        CHECK(dqkv.intact());
        CHECK(dqkv.all_written());
        CHECK(worst_error(dqkv, reference.backward(doubles(dout), doubles(out))) < tolerance<T>());
        if (threads == 2) {
          CHECK(out.bits() == bits[0]);
          CHECK(lse.bits() == bits[1]);
          CHECK(dqkv.bits() == bits[2]);
        }
        bits = {out.bits(), lse.bits(), dqkv.bits()};
      });
  }
}

}  // namespace

TEST_CASE("attention equals the score-by-score reference, forward and backward") {
  const AttentionShape shapes[] = {{1, 1, 1, 1, 8},    {3, 2, 1, 1, 4},   {2, 65, 2, 1, 16},
                                   {1, 130, 3, 3, 20}, {2, 7, 4, 2, 64},  {1, 64, 2, 2, 10},
                                   {1, 63, 6, 2, 12},  {1, 193, 1, 1, 24}};
  for (const AttentionShape& shape : shapes)
    for (double p : {0.0, 0.3}) {
      AttentionCase c{shape, p, {}};
      for (int64_t b = 0; b < shape.batch; ++b) c.samples.push_back(1000003 * (b + 1));
      each_float([&]<class T>() { check_attention<T>(c); });
    }
}

TEST_CASE("attention with values narrower than keys equals the score-by-score reference") {
  for (const auto& [dim, values] : {std::pair<int64_t, int64_t>{24, 16}, {8, 7}, {12, 1}})
    for (const int64_t seq : {1, 67, 130})
      for (double p : {0.0, 0.3}) {
        AttentionCase c{{2, seq, 4, 2, dim}, p, {1000003, 2000006}};
        c.shape.value_dim = values;
        if (seq == 67) c.shape.window = 31, c.shape.soft_cap = 0.7;
        each_float([&]<class T>() { check_attention<T>(c); });
      }
}

TEST_CASE("attention with a window equals the score-by-score reference, forward and backward") {
  for (const int64_t window : {1, 5, 63, 64, 65, 100, 193, 500})
    for (double p : {0.0, 0.3}) {
      AttentionCase c{{1, 193, 2, 1, 12}, p, {1000003}};
      c.shape.window = window;
      each_float([&]<class T>() { check_attention<T>(c); });
    }
}

TEST_CASE("attention with a soft-cap and a scale of its own equals the score-by-score reference") {
  for (const double soft_cap : {0.0, 0.7, 50.0})
    for (const int64_t window : {0, 65})
      for (double p : {0.0, 0.3}) {
        AttentionCase c{{1, 130, 4, 2, 12}, p, {1000003}};
        c.shape.window = window;
        c.shape.scale = 0.4;
        c.shape.soft_cap = soft_cap;
        each_float([&]<class T>() { check_attention<T>(c); });
      }
}

TEST_CASE("attention of large scores stays finite") {
  const AttentionShape a{1, 70, 1, 1, 8};
  Guarded<float> qkv(70 * 24), out(70 * 8), lse(70), dqkv(70 * 24), dout(70 * 8);
  fill_random(qkv, 7, 60);  // scores of thousands: most probabilities underflow
  fill_random(dout, 8);
  const AttentionCase c{a, 0, {}};
  const AttentionReference reference(c, doubles(qkv));
  for (const auto& [isa, forward] : BOTH_ISAS(attention_forward_cpu)) {
    forward(DType::f32, false, out.data(), lse.data(), fused_attention_args(DType::f32, qkv.data(), a, {}));
    CHECK(worst_error(out, reference.out) < 2e-3);
    CHECK(worst_error(lse, reference.lse) < 1e-5);
  }
  for (const auto& [isa, backward] : BOTH_ISAS(attention_backward_cpu)) {
    const auto [dq, dk, dv] = sinks(dqkv, a);
    backward(DType::f32, dq, dk, dv, dout.data(), out.data(), lse.data(),
             fused_attention_args(DType::f32, qkv.data(), a, {}));
    for (double v : doubles(dqkv)) REQUIRE(std::isfinite(v));
  }
}

TEST_CASE("a query does not see later keys") {
  const AttentionShape a{1, 90, 1, 1, 8};
  Guarded<float> qkv = random_array<float>(90 * 24, 9), out(90 * 8), lse(90);
  for (const auto& [isa, forward] : BOTH_ISAS(attention_forward_cpu)) {
    forward(DType::f32, false, out.data(), lse.data(), fused_attention_args(DType::f32, qkv.data(), a, {}));
    const std::string before(out.bits());
    Guarded<float> changed = qkv;
    for (int64_t i = 70 * 24 + 8; i < 90 * 24; ++i)
      changed[i] += 3;  // keys and values from 70 on (and later queries)
    Guarded<float> out2(90 * 8), lse2(90);
    forward(DType::f32, false, out2.data(), lse2.data(),
            fused_attention_args(DType::f32, changed.data(), a, {}));
    CHECK(out2.bits().substr(0, 70 * 8 * 4) == before.substr(0, 70 * 8 * 4));
    CHECK(out2.bits().substr(71 * 8 * 4) != before.substr(71 * 8 * 4));
  }
}

TEST_CASE("attention's scratch stays below what the plan counts") {
  // The figure is by thread; the kernels keep what they took, so a fresh thread's use is at most the formula
  // (rounded to pages, one slot each).
  const AttentionShape a{1, 200, 2, 1, 32};
  const int64_t counted = attention_scratch_bytes(a, DType::f32);
  const int64_t padded = 256;
  CHECK(counted >= 4 * (7 * padded * 32 + 2 * 64 * 32 + 2 * 64 * 64 + padded));
}
