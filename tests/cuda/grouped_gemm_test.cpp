// Grouped products of two-byte types in one launch, against sums in double, element by element.
#include "kernels/matmul/grouped/grouped_gemm.h"

#include <cstdlib>
#include <numeric>

#include "kernels/matmul/grouped/grouped_gemm_check.h"
#include "tests/cuda/twin.h"
#ifdef LTRAIN_CUDA_EMULATED
#include "kernels/cuda/emulation_cuda.h"
#endif

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// This kernel makes all grouped matmuls during its lifetime.
struct ForcedGemm {
  explicit ForcedGemm(const std::string& name) { ::setenv("LTRAIN_GROUPED_GEMM", name.c_str(), 1); }
  explicit ForcedGemm(GroupedGemm kernel) : ForcedGemm(std::string(grouped_gemm_name(kernel))) {}
  ~ForcedGemm() { ::unsetenv("LTRAIN_GROUPED_GEMM"); }
};

constexpr GroupedGemm kMmaGemm = GroupedGemm::mma, kWgmmaGemm = GroupedGemm::wgmma;

/// False, and the test counts as skipped, where there is no GPU that runs the kernel.
bool can_run(GroupedGemm kernel) {
  if (!have_cuda()) return false;
  if (kernel == kMmaGemm || cuda::device_info().capability == 90) return true;
  skip_test("the GPU is no Hopper");
  return false;
}

/// A tensor on the device between NaNs: who reads beyond it has them in the result, who writes is seen.
template <class T>
class Held {
 public:
  Held(Stream& s, Shape shape, const std::vector<T>& values) : stream_(s), shape_(shape) {
    std::vector<T> all(static_cast<size_t>(shape.elements()) + 2 * kGuard, T(NAN));
    std::copy(values.begin(), values.end(), all.begin() + kGuard);
    memory_ = cuda::device_memory(bytes(all));
    s.copy(memory_.get(), all.data(), bytes(all));
    s.synchronize();
  }
  Tensor tensor() const {
    Tensor t;
    t.data = static_cast<T*>(memory_.get()) + kGuard;
    t.dtype = dtype_of<T>(), t.shape = shape_, t.device = DeviceKind::cuda;
    return t;
  }
  std::vector<T> values() const {
    std::vector<T> all(static_cast<size_t>(shape_.elements()) + 2 * kGuard);
    stream_.copy(all.data(), memory_.get(), bytes(all));
    stream_.synchronize();
    const auto untouched = [](T v) { return std::isnan(as_double(v)); };
    REQUIRE((std::all_of(all.begin(), all.begin() + kGuard, untouched) &&
             std::all_of(all.end() - kGuard, all.end(), untouched)));
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr size_t kGuard = 1024;
  template <class V>
  static DType dtype_of() {
    return std::is_same_v<V, bf16> ? DType::bf16 : std::is_same_v<V, f16> ? DType::f16 : DType::f32;
  }
  static int64_t bytes(const std::vector<T>& v) { return static_cast<int64_t>(v.size() * sizeof(T)); }
  Stream& stream_;
  Shape shape_;
  std::shared_ptr<void> memory_;
};

template <class T>
std::vector<T> random_values(int64_t n, uint64_t stream) {
  std::vector<T> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) v[static_cast<size_t>(i)] = T(static_cast<float>(random_value(stream, i)));
  return v;
}

int64_t total(const GroupRows& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

struct GroupedCase {
  GroupRows rows;
  int64_t n, k;
  int64_t beyond = 3;  ///< rows of nobody
};

/// Forward, both gradients, and the weights' gradient a second time on top.
template <class T>
struct Products {
  std::unique_ptr<Stream> stream = cuda::make_cuda_stream("cuda");
  const GroupedCase& c;
  int64_t all, groups;
  std::vector<T> x, w, dy, y, dx;
  std::vector<float> dw, twice;
  std::vector<int64_t> launches;

  explicit Products(const GroupedCase& c)
      : c(c),
        all(total(c.rows)),
        groups(static_cast<int64_t>(c.rows.size())),
        x(random_values<T>(all * c.k, 1)),
        w(random_values<T>(groups * c.n * c.k, 2)),
        dy(random_values<T>(all * c.n, 3)) {
    x.resize(static_cast<size_t>((all + c.beyond) * c.k), T(NAN));
    dy.resize(static_cast<size_t>((all + c.beyond) * c.n), T(NAN));
    const Shape narrow{all + c.beyond, c.k}, wide{all + c.beyond, c.n}, stack{groups, c.n, c.k};
    const Held<T> hx(*stream, narrow, x), hw(*stream, stack, w), hdy(*stream, wide, dy);
    const Held<T> hy(*stream, wide, std::vector<T>(dy.size(), T(7))),
        hdx(*stream, narrow, std::vector<T>(x.size(), T(7)));
    const Held<float> hdw(*stream, stack, std::vector<float>(w.size(), NAN));
    const auto run = [&](const std::function<void()>& product) {
#ifdef LTRAIN_CUDA_EMULATED
      cuda::emulated_traffic.clear();
#endif
      product();
      stream->synchronize();
#ifdef LTRAIN_CUDA_EMULATED
      launches.push_back(cuda::emulated_traffic.launches);
      CHECK(cuda::emulated_traffic.narrow == 0);
#endif
    };
    // The first product of a process compares kernels.
    grouped_matmul(*stream, hy.tensor(), hx.tensor(), hw.tensor(), c.rows);
    stream->synchronize();
    run([&] { grouped_matmul(*stream, hy.tensor(), hx.tensor(), hw.tensor(), c.rows); });
    run([&] { grouped_matmul_dx(*stream, hdx.tensor(), hdy.tensor(), hw.tensor(), c.rows); });
    run([&] { grouped_matmul_dw(*stream, hdw.tensor(), hdy.tensor(), hx.tensor(), c.rows, false); });
    y = hy.values(), dx = hdx.values(), dw = hdw.values();
    run([&] { grouped_matmul_dw(*stream, hdw.tensor(), hdy.tensor(), hx.tensor(), c.rows, true); });
    twice = hdw.values();
    hx.values(), hw.values(), hdy.values();
  }

  /// The largest error of each result, beside what it should be and the mean of that.
  std::array<double, 4> errors() const {
    std::vector<double> want_y(y.size(), 7), want_dx(dx.size(), 7), want_dw(w.size());
    int64_t row = 0;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t r = 0; r < c.rows[static_cast<size_t>(g)]; ++r, ++row) {
        double* const to_dx = &want_dx[static_cast<size_t>(row * c.k)];
        std::fill(to_dx, to_dx + c.k, 0);
        for (int64_t o = 0; o < c.n; ++o) {
          const double d = as_double(dy[static_cast<size_t>(row * c.n + o)]);
          double sum = 0;
          for (int64_t i = 0; i < c.k; ++i) {
            const size_t at = static_cast<size_t>((g * c.n + o) * c.k + i);
            const double v = as_double(x[static_cast<size_t>(row * c.k + i)]), m = as_double(w[at]);
            sum += v * m;
            to_dx[i] += d * m;
            want_dw[at] += d * v;
          }
          want_y[static_cast<size_t>(row * c.n + o)] = sum;
        }
      }
    const auto worst = [](const auto& got, const std::vector<double>& want) {
      double mean = 1e-30, error = 0;
      for (double v : want) mean += std::abs(v) / static_cast<double>(want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        const double e = std::abs(as_double(got[i]) - want[i]) / (std::abs(want[i]) + mean);
        error = std::isfinite(e) ? std::max(error, e) : INFINITY;
      }
      return error;
    };
    std::array<double, 4> out{worst(y, want_y), worst(dx, want_dx), worst(dw, want_dw), 0};
    for (double& v : want_dw) v *= 2;
    out[3] = worst(twice, want_dw);
    return out;
  }
};

template <class T>
void check_gemm(GroupedGemm kernel, const GroupedCase& c) {
  CAPTURE(grouped_gemm_name(kernel), c.rows.size(), c.n, c.k);
  const ForcedGemm forced(kernel);
  const Products<T> p(c);
  const std::array<double, 4> errors = p.errors();
  CHECK(errors[0] < tolerance<T>());
  CHECK(errors[1] < tolerance<T>());
  CHECK(errors[2] < tolerance<float>());
  CHECK(errors[3] < tolerance<float>());
#ifdef LTRAIN_CUDA_EMULATED
  const auto of = [](int64_t groups) { return (groups + kGroupsALaunch - 1) / kGroupsALaunch; };
  const int64_t some = std::count_if(c.rows.begin(), c.rows.end(), [](int64_t n) { return n > 0; });
  CHECK(p.launches == std::vector<int64_t>{of(some), of(some), of(p.groups), of(some)});
#endif
}

void check_gemms(GroupedGemm kernel) {
  if (!can_run(kernel)) return;
  check_gemm<bf16>(kernel, {{0, 1, 300, 0, 37}, 136, 72});  // widths of parts of tiles, rows of several
  check_gemm<f16>(kernel, {{0, 1, 130, 0, 37}, 136, 72});
  check_gemm<bf16>(kernel, {{40, 64, 65, 63}, 264, 136});  // small tiles, whole and with one row more
  check_gemm<bf16>(kernel, {{0, 0, 261, 0}, 64, 200});     // all rows one group's
  check_gemm<bf16>(kernel, {GroupRows(9, 1), 16, 8, 0});   // a row each, and none beyond
  check_gemm<bf16>(kernel, {GroupRows(5, 0), 16, 24});     // none at all
  check_gemm<bf16>(kernel, {{128, 256, 128}, 256, 128});   // whole tiles
  GroupRows many;
  for (int64_t i = 0; i < 280; ++i) many.push_back(i % 40 != 7 ? 1 + i % 2 : 0);
  check_gemm<bf16>(kernel, {many, 8, 16});  // more than one launch takes
}

}  // namespace

TEST_CASE(
    "grouped products on tensor cores: groups of none, of one row, of all, and more than a launch takes") {
  check_gemms(kMmaGemm);
}

TEST_CASE("grouped products on Hopper's tensor cores: groups of none, of one row, of all, of many") {
  check_gemms(kWgmmaGemm);
}

TEST_CASE("a row's product has the same bits whatever the other rows of its group are") {
  for (const GroupedGemm kernel : {kMmaGemm, kWgmmaGemm}) {
    if (!can_run(kernel)) return;
    const ForcedGemm forced(kernel);
    // The same rows and weights: the first group's rows are few, and then many.
    const GroupedCase few{{30, 10}, 72, 80}, many{{400, 10}, 72, 80};
    const Products<bf16> a(few), b(many);
    const auto bits = [](const std::vector<bf16>& v, int64_t n) {
      return std::string(reinterpret_cast<const char*>(v.data()), static_cast<size_t>(2 * n));
    };
    CHECK(bits(a.y, 30 * 72) == bits(b.y, 30 * 72));
  }
}

TEST_CASE("which kernel makes grouped products") {
  GroupedGemmTraits t;
  t.type = DType::bf16, t.n = 128, t.k = 64, t.capability = 90;
  const auto with = [&](auto change) {
    GroupedGemmTraits other = t;
    change(other);
    return choose_grouped_gemm(other);
  };
  CHECK(choose_grouped_gemm(t) == kWgmmaGemm);
  CHECK(with([](auto& o) { o.capability = 80; }) == kMmaGemm);
  CHECK(with([](auto& o) { o.capability = 100; }) == kMmaGemm);
  CHECK(with([](auto& o) { o.type = DType::f16; }) == kWgmmaGemm);
  CHECK(with([](auto& o) { o.type = DType::f32; }) == GroupedGemm::each);
  CHECK(with([](auto& o) { o.n = 100; }) == GroupedGemm::each);
  CHECK(with([](auto& o) { o.k = 36; }) == GroupedGemm::each);
  CHECK(with([](auto& o) { o.aligned = false; }) == GroupedGemm::each);
  {
    const ForcedGemm forced(kMmaGemm);
    CHECK(choose_grouped_gemm(t) == kMmaGemm);
    CHECK_THROWS_WITH(with([](auto& o) { o.n = 100; }),
                      Catch::Contains("LTRAIN_GROUPED_GEMM=mma") && Catch::Contains("16 bytes"));
  }
  {
    const ForcedGemm forced(GroupedGemm::each);
    CHECK(choose_grouped_gemm(t) == GroupedGemm::each);
  }
  const ForcedGemm forced("fast");
  CHECK_THROWS_WITH(choose_grouped_gemm(t), Catch::Contains("LTRAIN_GROUPED_GEMM=fast"));
}

TEST_CASE("groups whose rows do not begin at multiples of 16 bytes have products of their own") {
  if (!have_cuda()) return;
  const GroupedCase odd{{5, 0, 70}, 36, 20};
  const Products<bf16> p(odd);
  const std::array<double, 4> errors = p.errors();
  CHECK(errors[0] < tolerance<bf16>());
  CHECK(errors[1] < tolerance<bf16>());
  CHECK(errors[2] < tolerance<float>());
  CHECK(errors[3] < tolerance<float>());
}

TEST_CASE("grouped products: the kernel for Hopper agrees with the other one on this GPU") {
  if (!can_run(kWgmmaGemm)) return;
  const auto s = cuda::make_cuda_stream("cuda");
  for (DType t : {DType::bf16, DType::f16}) CHECK(compare_grouped_gemms(*s, t) == "");
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("grouped products: kernels that disagree are told, with what and how much") {
  const auto s = cuda::make_cuda_stream("cuda");
  cuda::emulated_lanes_swapped = true;  // in those of mma.sync alone
  const std::string told = compare_grouped_gemms(*s, DType::bf16);
  cuda::emulated_lanes_swapped = false;
  CHECK_THAT(told, Catch::StartsWith("x w^T differs by "));
}

TEST_CASE("grouped products on tensor cores with two lanes exchanged are seen to be wrong") {
  const ForcedGemm forced(kMmaGemm);
  const GroupedCase c{{20, 30}, 64, 64};
  cuda::emulated_lanes_swapped = true;
  const std::array<double, 4> errors = Products<bf16>(c).errors();
  cuda::emulated_lanes_swapped = false;
  for (double e : errors) CHECK(e > 0.05);
}
#endif
