#include "kernels/matmul/cublaslt_rules.h"

#include <cstdint>

#include "kernels/tensor/fp8.h"

namespace ltrain {
namespace {

bool multiple(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

/// Name of the first operand not aligned to `bytes` (0: to its element size); empty if all are.
std::string misaligned(const Tensor& out, const Tensor& a, const Tensor& b, const MatmulArgs& args,
                       size_t bytes) {
  const auto check = [&](const char* name, const Tensor& t) -> std::string {
    const size_t wanted = bytes ? bytes : static_cast<size_t>(dtype_size(t.dtype));
    if (multiple(t.data, wanted)) return "";
    return fmt::format("{} lies at {}, expected a multiple of {} bytes", name, t.data, wanted);
  };
  for (const auto& [name, t] :
       {std::pair{"the left operand", &a}, {"the right operand", &b}, {"the output", &out}})
    if (std::string text = check(name, *t); !text.empty()) return text;
  return args.bias.defined() ? check("the bias", args.bias) : "";
}

std::string fp8_obstacle(const Tensor& out, const Tensor& a, const Tensor& b, const float* scale_a,
                         const float* scale_b, const MatmulArgs& args) {
  if (args.trans_a || !args.trans_b)
    return "FP8 operands are read along the contraction only: expected a (m, k) and b (n, k)";
  if (a.dtype == DType::f8e5m2 && b.dtype == DType::f8e5m2)
    return "two operands of f8e5m2: expected one of f8e4m3 at least";
  if (out.dtype != DType::bf16 && out.dtype != DType::f16 && out.dtype != DType::f32)
    return fmt::format("an output of {}: expected bf16, f16 or f32", dtype_name(out.dtype));
  if (args.bias.defined() && out.dtype == DType::f32)
    return "a bias beside an f32 output: expected an output of bf16 or f16";
  const int64_t n = out.shape[1], k = a.shape[1];
  if (k % 16 != 0) return fmt::format("a contraction of {}: expected a multiple of 16", k);
  if (n % 16 != 0) return fmt::format("{} output columns: expected a multiple of 16", n);
  for (const auto& [name, scale] : {std::pair{"left", scale_a}, {"right", scale_b}}) {
    if (!scale) return fmt::format("the {} operand has no scale", name);
    if (!multiple(scale, 16))
      return fmt::format("the scale of the {} operand lies at {}, expected a multiple of 16 bytes", name,
                         static_cast<const void*>(scale));
  }
  return misaligned(out, a, b, args, 16);
}

}  // namespace

std::string cublaslt_obstacle(const Tensor& out, const Tensor& a, const Tensor& b, const float* scale_a,
                              const float* scale_b, const MatmulArgs& args) {
  if (out.elements() == 0 || a.elements() == 0 || b.elements() == 0)
    return fmt::format("a matmul without elements: {} times {} into {}", to_string(a.shape),
                       to_string(b.shape), to_string(out.shape));
  for (const Tensor* t : {&out, &a, &b})
    for (const int64_t dim : {t->shape[0], t->shape[1]})
      if (dim > INT32_MAX) return fmt::format("a dim of {}: expected at most {}", dim, INT32_MAX);
  if (is_fp8(a.dtype) || is_fp8(b.dtype)) return fp8_obstacle(out, a, b, scale_a, scale_b, args);
  if (scale_a || scale_b) return fmt::format("scales beside operands of {}", dtype_name(a.dtype));
  const bool types =
      a.dtype == b.dtype && (out.dtype == a.dtype || (is_half(a.dtype) && out.dtype == DType::f32));
  if (!types)
    return fmt::format("{} times {} into {}", dtype_name(a.dtype), dtype_name(b.dtype),
                       dtype_name(out.dtype));
  return misaligned(out, a, b, args, 0);
}

void check_cublaslt(const Tensor& out, const Tensor& a, const Tensor& b, const float* scale_a,
                    const float* scale_b, const MatmulArgs& args) {
  const std::string obstacle = cublaslt_obstacle(out, a, b, scale_a, scale_b, args);
  if (!obstacle.empty()) fail(ExitCode::internal, "cuBLASLt refuses a matmul: {}", obstacle);
}

}  // namespace ltrain
