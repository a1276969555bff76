#include "kernels/attention/attention_sinks.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kKeys = 5;

/// Attention of a row and a head to keys of its own, from the softmax's definition.
struct AttentionRow {
  std::vector<double> scores, values;  // (kKeys), (kKeys, head_dim)
  double sink = 0;
  std::vector<double> out(bool with_sink, int64_t head_dim, double* lse) const {
    double sum = with_sink ? std::exp(sink) : 0;
    for (const double s : scores) sum += std::exp(s);
    std::vector<double> made(static_cast<size_t>(head_dim));
    for (int64_t k = 0; k < kKeys; ++k)
      for (int64_t c = 0; c < head_dim; ++c) made[c] += std::exp(scores[k]) / sum * values[k * head_dim + c];
    *lse = std::log(sum);
    return made;
  }
};

struct SinksReference {
  SinkShape shape;
  std::vector<AttentionRow> rows;                            // indexed by row and head
  std::vector<double> before, lse_before, after, lse_after;  // the op's results
  std::vector<double> dsinks;

  /// Softmax over all keys and the sink, at element `i` of the output.
  double share(size_t i) const {
    const int64_t n = static_cast<int64_t>(i) / shape.head_dim, row = n / shape.heads, h = n % shape.heads,
                  at = (row / shape.rows * shape.heads + h) * shape.rows + row % shape.rows;
    return std::exp(lse_before[at] - lse_after[at]);
  }

  SinksReference(SinkShape p, const std::vector<double>& sinks, const std::vector<double>& dout) : shape(p) {
    const int64_t pairs = p.batch * p.rows * p.heads;
    before.resize(pairs * p.head_dim), after.resize(pairs * p.head_dim);
    lse_before.resize(pairs), lse_after.resize(pairs);
    dsinks.resize(sinks.size());
    for (int64_t n = 0; n < pairs; ++n) {
      const int64_t row = n / p.heads, h = n % p.heads,
                    at = (row / p.rows * p.heads + h) * p.rows + row % p.rows;
      AttentionRow r;
      for (int64_t k = 0; k < kKeys; ++k) r.scores.push_back(random_value(3, n * kKeys + k, 4));
      for (int64_t i = 0; i < kKeys * p.head_dim; ++i)
        r.values.push_back(random_value(4, n * kKeys * p.head_dim + i));
      r.sink = sinks[h];
      const auto put = [&](std::vector<double>& to, const std::vector<double>& made) {
        std::copy(made.begin(), made.end(), to.begin() + n * p.head_dim);
      };
      put(before, r.out(false, p.head_dim, &lse_before[at]));
      put(after, r.out(true, p.head_dim, &lse_after[at]));
      constexpr double kStep = 1e-5;  // central difference of the sum of dout * out
      double unused;
      AttentionRow up = r, down = r;
      up.sink += kStep, down.sink -= kStep;
      const auto high = up.out(true, p.head_dim, &unused), low = down.out(true, p.head_dim, &unused);
      for (int64_t c = 0; c < p.head_dim; ++c)
        dsinks[h] += dout[n * p.head_dim + c] * (high[c] - low[c]) / (2 * kStep);
    }
  }
};

template <class T>
Guarded<T> array_of(const std::vector<double>& values) {
  Guarded<T> a(static_cast<int64_t>(values.size()));
  for (int64_t i = 0; i < a.size(); ++i) a[i] = T(static_cast<compute_t<T>>(values[i]));
  return a;
}

}  // namespace

TEST_CASE("sinks make of attention without them the softmax that has them, and their gradient") {
  for (const SinkShape p :
       {SinkShape{1, 1, 1, 1, false}, SinkShape{2, 3, 70, 5, false}, SinkShape{1, 4, 9, 32, false}})
    each_float([&]<class T>() {
      using A = compute_t<T>;
      const auto sinks = random_array<T>(p.heads, 1, 5);
      const auto dout = random_array<T>(p.batch * p.rows * p.heads * p.head_dim, 2);
      const SinksReference want(p, doubles(sinks), doubles(dout));
      const auto old = random_array<A>(p.heads, 6);
      for (const auto& [isa, forward] : BOTH_ISAS(attention_sinks_forward_cpu)) {
        INFO(isa << " " << p.heads << " heads of " << p.head_dim);
        std::string bits;
        for (int threads : {1, 2})
          with_threads(threads, [&] {
            auto out = array_of<T>(want.before);
            auto lse = array_of<A>(want.lse_before);
            forward(dtype_of<T>::value, out.data(), lse.data(), sinks.data(), p);
            CHECK((out.intact() && lse.intact()));
            // SinksReference on the rounded input; in double this is the definition.
            std::vector<double> after(want.after.size());
            const auto before = array_of<T>(want.before);
            for (size_t i = 0; i < after.size(); ++i) after[i] = as_double(before[i]) * want.share(i);
            CHECK(worst_error(out, after) < tolerance<T>());
            CHECK((sizeof(T) < 8 || worst_error(out, want.after) < 1e-13));
            CHECK(worst_error(lse, want.lse_after) < tolerance<A>());
            CHECK((threads == 1 || out.bits() == bits));
            bits = out.bits();
          });
      }
      for (const auto& [isa, backward] : BOTH_ISAS(attention_sinks_backward_cpu)) {
        INFO(isa << " backward, " << p.heads << " heads of " << p.head_dim);
        const auto out = array_of<T>(want.after);
        const auto lse = array_of<A>(want.lse_after);
        std::string bits;
        for (int threads : {1, 2})
          for (const bool accumulate : {false, true})
            with_threads(threads, [&] {
              Guarded<A> dsinks = old;
              SinkShape shape = p;
              shape.accumulate = accumulate;
              backward(dtype_of<T>::value, dsinks.data(), dout.data(), out.data(), lse.data(), sinks.data(),
                       shape);
              CHECK(dsinks.intact());
              std::vector<double> sum(static_cast<size_t>(p.heads));
              for (size_t i = 0; i < want.after.size(); ++i) {
                const int64_t h = static_cast<int64_t>(i) / p.head_dim % p.heads;
                sum[h] -= (1 - want.share(i)) * as_double(dout[i]) * as_double(out[i]);
              }
              CHECK((sizeof(T) < 8 || accumulate || worst_error(dsinks, want.dsinks) < 1e-8));
              for (int64_t h = 0; accumulate && h < p.heads; ++h) sum[h] += as_double(old[h]);
              CHECK(worst_error(dsinks, sum) < tolerance<T>());
              if (accumulate) return;
              CHECK((threads == 1 || dsinks.bits() == bits));
              bits = dsinks.bits();
            });
      }
    });
}

TEST_CASE("negative control: a sink that takes no share is seen") {
  const SinkShape p{1, 2, 6, 4, false};
  const std::vector<double> sinks{1.0, -1.0}, dout(48, 1.0);
  const SinksReference want(p, sinks, dout);
  CHECK(worst_error(array_of<double>(want.before), want.after) > 0.1);
}
