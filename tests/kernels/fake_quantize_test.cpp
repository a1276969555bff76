// Fake quantization, against compressed-tensors' own to the bit
// (scripts/golden_values/make-quantization-golden_values.py).
#include "kernels/optimizer/fake_quantize.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/checkpoint/safetensors.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

template <class T>
std::vector<T> golden_values(const std::string& name) {
  static const SafetensorsFile file(std::string(LTRAIN_SOURCE_DIR) +
                                    "/tests/golden/quantization/values.safetensors");
  const SafetensorsEntry* e = file.find(name);
  REQUIRE(e);
  REQUIRE(e->dtype == safetensors_dtype(dtype_of<T>::value));
  std::vector<T> out(static_cast<size_t>(e->end - e->begin) / sizeof(T));
  file.read(*e, 0, e->end - e->begin, out.data());
  return out;
}

template <class T>
void check_golden(WeightCodes codes, int64_t group, const char* word) {
  const std::string name = fmt::format("{}.{}.{}", codes, group, word);
  const std::vector<T> want = golden_values<T>(name);
  const std::vector<float> w = golden_values<float>("w");
  const DType t = dtype_of<T>::value;
  for (const auto& [isa, quantize] : BOTH_ISAS(fake_quantize_cpu))
    for (const bool in_place : {false, true}) {
      INFO(name << " " << isa << (in_place ? " in place" : ""));
      const int64_t n = static_cast<int64_t>(w.size());
      Guarded<T> from(n), out(n);
      for (int64_t i = 0; i < n; ++i) from[i] = static_cast<T>(w[static_cast<size_t>(i)]);
      T* const to = in_place ? from.data() : out.data();
      with_threads(2, [&] { quantize(t, t, to, from.data(), codes, group == 0 ? 128 : group, n); });
      CHECK(from.intact());
      CHECK(out.intact());
      CHECK(std::memcmp(to, want.data(), want.size() * sizeof(T)) == 0);
    }
}

}  // namespace

TEST_CASE("fake quantization gives the numbers of compressed-tensors to the bit") {
  for (WeightCodes codes : {WeightCodes::int4, WeightCodes::int8, WeightCodes::fp8})
    for (int64_t group : {32, 0}) {
      check_golden<float>(codes, group, "f32");
      check_golden<double>(codes, group, "f64");
    }
}

TEST_CASE("fake quantization in 16 bits rounds scales and products, from fp32, and into fp32 likewise") {
  const int64_t n = 64 * 96, group = 96;
  for (DType type : {DType::bf16, DType::f16})
    for (WeightCodes codes : {WeightCodes::int4, WeightCodes::int8, WeightCodes::fp8})
      for (const auto& [isa, quantize] : BOTH_ISAS(fake_quantize_cpu)) {
        INFO(isa << " " << dtype_name(type) << " " << to_string(codes));
        Guarded<float> w = random_array<float>(n, 3), wide(n);
        Guarded<bf16> low(n);  // bf16, or bits of f16
        quantize(type, type, low.data(), w.data(), codes, group, n);
        quantize(DType::f32, type, wide.data(), w.data(), codes, group, n);
        int wrong = 0;
        std::vector<double> seen;
        for (int64_t g = 0; g < n / group; ++g) {
          float most = 0;
          for (int64_t i = g * group; i < (g + 1) * group; ++i) most = std::max(most, std::abs(w[i]));
          const auto rounded = [&](float v) {
            return type == DType::bf16 ? static_cast<float>(bf16(v)) : static_cast<float>(f16(v));
          };
          const float most_code = codes == WeightCodes::int4 ? 7 : codes == WeightCodes::int8 ? 127 : 448;
          const float scale = rounded(most / most_code);
          for (int64_t i = g * group; i < (g + 1) * group; ++i) {
            const float of_low =
                type == DType::bf16 ? get(low.data(), i) : get(reinterpret_cast<const f16*>(low.data()), i);
            wrong += of_low != wide[i];
            const float code = codes == WeightCodes::fp8
                                   ? fp8::from_e4m3(fp8::to_e4m3(w[i] / scale))
                                   : std::clamp(std::nearbyint(w[i] / scale), -most_code - 1, most_code);
            wrong += of_low != rounded(code * scale);
          }
        }
        CHECK(wrong == 0);
        CHECK(low.intact());
        CHECK(wide.intact());
      }
}

TEST_CASE("fake quantization keeps what is not finite visible") {
  std::vector<float> w(32, 0.5f), out(32);
  w[7] = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [isa, quantize] : BOTH_ISAS(fake_quantize_cpu)) {
    quantize(DType::f32, DType::f32, out.data(), w.data(), WeightCodes::int4, 32, 32);
    CHECK(std::isnan(out[7]));
  }
}

TEST_CASE("fake quantization refuses groups that are not full, and other dtypes") {
  const auto s = make_inline_stream("test");
  Guarded<float> w(96), out(96);
  const Tensor a = tensor_of(out, {96}), b = tensor_of(w, {96});
  CHECK_THROWS_WITH(fake_quantize(*s, a, b, WeightCodes::int4, 64, DType::f32),
                    Catch::Contains("expected full groups of 64 elements, got 96"));
  CHECK_THROWS_WITH(fake_quantize(*s, a, b, WeightCodes::int4, 32, DType::f64),
                    Catch::Contains("expected weights in f64"));
  CHECK_THROWS_WITH(fake_quantize(*s, a, b, WeightCodes::none, 32, DType::f32), Catch::Contains("got none"));
}
