// Heads of latent attention against loops over their definition: copies are exact, the sum over heads is
// rounded once.
#include "kernels/attention/latent_heads.h"

#include <deque>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kRows = 7;
constexpr LatentHeads kShapes[] = {{1, 1, 2, 1}, {3, 6, 4, 5}, {2, 4, 2, 6}, {5, 16, 8, 16}};

/// Where channel c of head h of part `part` (queries, keys, values) of a row of qkv lies.
int64_t in_qkv(const LatentHeads& p, int64_t row, int64_t part, int64_t h, int64_t c) {
  return ((row * 3 + part) * p.heads + h) * p.width() + c;
}

template <class F>
void each_channel(const LatentHeads& p, F&& f) {
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t c = 0; c < p.width(); ++c) f(row, h, c);
}

}  // namespace

TEST_CASE("heads of latent attention: shared channels of keys, zeros behind values") {
  for (const LatentHeads& p : kShapes)
    each_float([&]<class T>() {
      const int64_t each = p.nope + p.value;
      const auto q = random_array<T>(kRows * p.heads * p.width(), 1),
                 kv = random_array<T>(kRows * p.heads * each, 2), shared = random_array<T>(kRows * p.rope, 3);
      for (const auto& [isa, run] : BOTH_ISAS(latent_heads_forward_cpu)) {
        INFO(isa << ", " << p.heads << " heads");
        Guarded<T> qkv(kRows * 3 * p.heads * p.width());
        run(dtype_of<T>::value, qkv.data(), q.data(), kv.data(), shared.data(), kRows, p);
        CHECK(qkv.intact());
        bool same = true;
        each_channel(p, [&](int64_t row, int64_t h, int64_t c) {
          const int64_t of = (row * p.heads + h) * each;
          const auto is = [&](int64_t part, double want) {
            same = same && as_double(qkv[in_qkv(p, row, part, h, c)]) == want;
          };
          is(0, as_double(q[(row * p.heads + h) * p.width() + c]));
          is(1, as_double(c < p.nope ? kv[of + c] : shared[row * p.rope + c - p.nope]));
          is(2, c < p.value ? as_double(kv[of + p.nope + c]) : 0);
        });
        CHECK(same);
      }
    });
}

TEST_CASE("gradients of heads of latent attention: those of shared channels are summed over heads") {
  for (const LatentHeads& p : kShapes)
    each_float([&]<class T>() {
      const int64_t each = p.nope + p.value;
      const auto dqkv = random_array<T>(kRows * 3 * p.heads * p.width(), 4);
      std::vector<double> want(kRows * p.rope);
      each_channel(p, [&](int64_t row, int64_t h, int64_t c) {
        if (c >= p.nope) want[row * p.rope + c - p.nope] += as_double(dqkv[in_qkv(p, row, 1, h, c)]);
      });
      for (const auto& [isa, run] : BOTH_ISAS(latent_heads_backward_cpu)) {
        INFO(isa << ", " << p.heads << " heads");
        Guarded<T> dq(kRows * p.heads * p.width()), dkv(kRows * p.heads * each), shared(kRows * p.rope);
        run(dtype_of<T>::value, dq.data(), dkv.data(), shared.data(), dqkv.data(), kRows, p);
        CHECK((dq.intact() && dkv.intact() && shared.intact()));
        CHECK(worst_error(shared, want) < tolerance<T>());
        bool same = true;
        each_channel(p, [&](int64_t row, int64_t h, int64_t c) {
          const auto is = [&](const T& got, int64_t part) {
            same = same && as_double(got) == as_double(dqkv[in_qkv(p, row, part, h, c)]);
          };
          is(dq[(row * p.heads + h) * p.width() + c], 0);
          if (c < p.nope) is(dkv[(row * p.heads + h) * each + c], 1);
          if (c < p.value) is(dkv[(row * p.heads + h) * each + p.nope + c], 2);
        });
        CHECK(same);
      }
    });
}

TEST_CASE("heads made narrower and wider") {
  each_float([&]<class T>() {
    for (const auto& [to, from] : {std::pair<int64_t, int64_t>{3, 5}, {5, 3}, {4, 4}}) {
      const int64_t heads = 150;
      const auto x = random_array<T>(heads * from, 5);
      for (const auto& [isa, run] : BOTH_ISAS(resize_heads_cpu)) {
        Guarded<T> y(heads * to);
        run(dtype_of<T>::value, y.data(), x.data(), heads, to, from);
        CHECK(y.intact());
        bool same = true;
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t c = 0; c < to; ++c)
            same = same && as_double(y[h * to + c]) == (c < from ? as_double(x[h * from + c]) : 0);
        CHECK(same);
      }
    }
  });
}

TEST_CASE("heads of latent attention that do not fit are refused") {
  const auto stream = make_inline_stream("compute");
  std::deque<Guarded<float>> kept;
  const auto tensor = [&](int64_t cols) { return tensor_of(kept.emplace_back(2 * cols), {2, cols}); };
  const LatentHeads p{2, 4, 2, 5};
  CHECK_NOTHROW(latent_heads_forward(*stream, tensor(36), tensor(12), tensor(18), tensor(2), p));
  CHECK_THROWS_WITH(latent_heads_forward(*stream, tensor(36), tensor(12), tensor(16), tensor(2), p),
                    Catch::Contains("2 heads of 4 + 2 channels and values of 5"));
  CHECK_THROWS(latent_heads_forward(*stream, tensor(36), tensor(12), tensor(22), tensor(2), {2, 4, 2, 7}));
  CHECK_THROWS_WITH(resize_heads(*stream, tensor(7), tensor(6), 2), Catch::Contains("2 heads of"));
}
