// Heads of latent attention against loops over their definition: copies are exact, the sum over heads is
// rounded once.
#include "kernels/attention/latent_heads.h"

#include <algorithm>
#include <deque>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kTokenRows = 7;
constexpr LatentHeads kLatentShapes[] = {
    {1, 1, 2, 1}, {3, 6, 4, 5}, {2, 4, 2, 6}, {5, 16, 8, 16}, {2, 3, 2, 9}};

/// Offset of channel c of head h of part `part` (queries, keys, values) in a row of qkv.
int64_t in_qkv(const LatentHeads& p, int64_t row, int64_t part, int64_t h, int64_t c) {
  const int64_t first = row * p.heads * (2 * p.width() + p.value);
  return first + part * p.heads * p.width() + h * (part == 2 ? p.value : p.width()) + c;
}

template <class F>
void each_channel(const LatentHeads& p, F&& f) {
  for (int64_t row = 0; row < kTokenRows; ++row)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t c = 0; c < std::max(p.width(), p.value); ++c) f(row, h, c);
}

}  // namespace

TEST_CASE("heads of latent attention: shared channels of keys, values of their own width") {
  for (const LatentHeads& p : kLatentShapes)
    each_float([&]<class T>() {
      const int64_t each = p.nope + p.value;
      const auto q = random_array<T>(kTokenRows * p.heads * p.width(), 1),
                 kv = random_array<T>(kTokenRows * p.heads * each, 2),
                 shared = random_array<T>(kTokenRows * p.rope, 3);
      for (const auto& [isa, run] : BOTH_ISAS(latent_heads_forward_cpu)) {
        INFO(isa << ", " << p.heads << " heads");
        Guarded<T> qkv(kTokenRows * p.heads * (2 * p.width() + p.value));
        run(dtype_of<T>::value, qkv.data(), q.data(), kv.data(), shared.data(), kTokenRows, p);
        CHECK(qkv.intact());
        CHECK(qkv.all_written());
        bool same = true;
        each_channel(p, [&](int64_t row, int64_t h, int64_t c) {
          const int64_t of = (row * p.heads + h) * each;
          const auto is = [&](int64_t part, double want) {
            same = same && as_double(qkv[in_qkv(p, row, part, h, c)]) == want;
          };
          if (c < p.width()) is(0, as_double(q[(row * p.heads + h) * p.width() + c]));
          if (c < p.width()) is(1, as_double(c < p.nope ? kv[of + c] : shared[row * p.rope + c - p.nope]));
          if (c < p.value) is(2, as_double(kv[of + p.nope + c]));
        });
        CHECK(same);
      }
    });
}

TEST_CASE("gradients of heads of latent attention: those of shared channels are summed over heads") {
  for (const LatentHeads& p : kLatentShapes)
    each_float([&]<class T>() {
      const int64_t each = p.nope + p.value;
      const auto dqkv = random_array<T>(kTokenRows * p.heads * (2 * p.width() + p.value), 4);
      std::vector<double> want(kTokenRows * p.rope);
      each_channel(p, [&](int64_t row, int64_t h, int64_t c) {
        if (c >= p.nope && c < p.width())
          want[row * p.rope + c - p.nope] += as_double(dqkv[in_qkv(p, row, 1, h, c)]);
      });
      for (const auto& [isa, run] : BOTH_ISAS(latent_heads_backward_cpu)) {
        INFO(isa << ", " << p.heads << " heads");
        Guarded<T> dq(kTokenRows * p.heads * p.width()), dkv(kTokenRows * p.heads * each),
            shared(kTokenRows * p.rope);
        run(dtype_of<T>::value, dq.data(), dkv.data(), shared.data(), dqkv.data(), kTokenRows, p);
        CHECK((dq.intact() && dkv.intact() && shared.intact()));
        CHECK(worst_error(shared, want) < tolerance<T>());
        bool same = true;
        each_channel(p, [&](int64_t row, int64_t h, int64_t c) {
          const auto is = [&](const T& got, int64_t part) {
            same = same && as_double(got) == as_double(dqkv[in_qkv(p, row, part, h, c)]);
          };
          if (c < p.width()) is(dq[(row * p.heads + h) * p.width() + c], 0);
          if (c < p.nope) is(dkv[(row * p.heads + h) * each + c], 1);
          if (c < p.value) is(dkv[(row * p.heads + h) * each + p.nope + c], 2);
        });
        CHECK(same);
      }
    });
}

TEST_CASE("heads of latent attention that do not fit are refused") {
  const auto stream = make_inline_stream("compute");
  std::deque<Guarded<float>> kept;
  const auto tensor = [&](int64_t cols) { return tensor_of(kept.emplace_back(2 * cols), {2, cols}); };
  const LatentHeads p{2, 4, 2, 5};
  CHECK_NOTHROW(latent_heads_forward(*stream, tensor(34), tensor(12), tensor(18), tensor(2), p));
  CHECK_THROWS_WITH(latent_heads_forward(*stream, tensor(34), tensor(12), tensor(16), tensor(2), p),
                    Catch::Contains("2 heads of 4 + 2 channels and values of 5"));
  CHECK_THROWS(latent_heads_forward(*stream, tensor(36), tensor(12), tensor(18), tensor(2), p));
}
