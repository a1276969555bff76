// Clamps of queries, keys and values against what PyTorch's clamp and its gradient are, in double.
#include "kernels/norm/clip_qkv.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kQkvRows = 13;
constexpr double kLimit = 0.8;  // not a value of any 16-bit type

/// The limit as type T has it.
template <class T>
double limit_of() {
  return as_double(T(static_cast<compute_t<T>>(kLimit)));
}

}  // namespace

TEST_CASE("clip_qkv clamps to the limit of the type, in place and with any number of threads") {
  for (const int64_t n : {1, 15, 40001})
    each_float([&]<class T>() {
      const auto x = random_array<T>(n, 3, 2);
      for (const auto& [isa, forward] : BOTH_ISAS(clip_qkv_forward_cpu)) {
        INFO(isa << " " << n);
        std::string bits;
        for (int threads : {1, 2}) {
          Guarded<T> y = x;
          with_threads(threads, [&] { forward(dtype_of<T>::value, y.data(), n, kLimit); });
          CHECK(y.intact());
          bool same = true;
          for (int64_t i = 0; i < n; ++i)
            same &= as_double(y[i]) == std::clamp(as_double(x[i]), -limit_of<T>(), limit_of<T>());
          CHECK(same);
          CHECK((threads == 1 || y.bits() == bits));
          bits = y.bits();
        }
      }
    });
}

TEST_CASE("clip_qkv lets gradients of values pass that are below the limit, and no others") {
  const int64_t cols = 10, first = 6;
  each_float([&]<class T>() {
    Guarded<T> y = random_array<T>(kQkvRows * cols, 4, 2);
    const auto dy = random_array<T>(kQkvRows * cols, 5);
    for (const auto& [isa, forward] : BOTH_ISAS(clip_qkv_forward_cpu))
      forward(dtype_of<T>::value, y.data(), kQkvRows * cols, kLimit);
    for (const auto& [isa, backward] : BOTH_ISAS(clip_values_backward_cpu)) {
      INFO(isa);
      Guarded<T> d = dy;
      with_threads(2,
                   [&] { backward(dtype_of<T>::value, d.data(), y.data(), kQkvRows, cols, first, kLimit); });
      CHECK(d.intact());
      int clamped = 0, wrong = 0;
      for (int64_t i = 0; i < kQkvRows * cols; ++i) {
        const bool stopped = i % cols >= first && std::abs(as_double(y[i])) == limit_of<T>();
        clamped += stopped;
        wrong += as_double(d[i]) != (stopped ? 0 : as_double(dy[i]));
      }
      CHECK(wrong == 0);
      CHECK(clamped > 10);
    }
  });
}

TEST_CASE("clip_qkv finds where heads were clamped from the saved inputs of their norms") {
  const int64_t cols = 30;
  for (const HeadNorm part : {HeadNorm{0, 1, 18}, HeadNorm{18, 2, 5, 1e-5, 1.0}})
    each_float([&]<class T>() {
      using A = compute_t<T>;
      const int64_t all = part.heads * part.width;
      const auto before = random_array<T>(kQkvRows * cols, 6), weight = random_array<T>(part.width, 7, 2);
      const auto dy = random_array<T>(kQkvRows * cols, 8);
      const auto norms = BOTH_ISAS(head_norm_forward_cpu);
      const auto clips = BOTH_ISAS(clip_heads_backward_cpu);
      for (size_t k = 0; k < norms.size(); ++k) {
        INFO(norms[k].first << " " << part.heads);
        Guarded<T> y = before, x(kQkvRows * all);
        Guarded<A> rstd(kQkvRows * part.heads);
        norms[k].second(dtype_of<T>::value, y.data(), x.data(), rstd.data(), weight.data(), kQkvRows, cols,
                        part);
        Guarded<T> d = dy;
        with_threads(2, [&] {
          clips[k].second(dtype_of<T>::value, d.data(), x.data(), rstd.data(), weight.data(), kQkvRows, cols,
                          part, kLimit);
        });
        CHECK(d.intact());
        int clamped = 0, wrong = 0;
        for (int64_t i = 0; i < kQkvRows * cols; ++i) {
          const int64_t c = i % cols - part.first;
          // The gradient of torch.clamp passes at the limit itself.
          const bool stopped = c >= 0 && c < all && std::abs(as_double(y[i])) > limit_of<T>();
          clamped += stopped;
          wrong += as_double(d[i]) != (stopped ? 0 : as_double(dy[i]));
        }
        CHECK(wrong == 0);
        CHECK(clamped > 10);
      }
    });
}
