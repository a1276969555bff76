#include "kernels/matmul/matmul_packed.h"

namespace ltrain {
namespace {

/// Describes a matrix as an operand that is contracted over its rows or columns.
PackedOperand operand(const Tensor& x, bool transposed) {
  return {.dtype = x.dtype, .data = x.data, .stride = x.shape[1], .transposed = transposed};
}

PackedOperand operand(const Fp8Operand& x) {
  PackedOperand o = operand(x.codes, true);
  o.steps = static_cast<const float*>(x.steps.data);
  o.block_rows = x.block_rows, o.steps_cols = x.steps.shape[-1];
  return o;
}

void run_packed(Tensor out, int64_t k, PackedOperand a, PackedOperand b, const MatmulArgs& args, bool tf32) {
  const PackedProduct p{.out_type = out.dtype,
                        .out = out.data,
                        .a = a,
                        .b = b,
                        .bias = args.bias.data,
                        .m = out.shape[0],
                        .n = out.shape[1],
                        .k = k,
                        .accumulate = args.accumulate,
                        .tf32 = tf32,
                        .pairs = packs_pairs(a.dtype)};
  LT_CHECK(!p.accumulate || !p.bias, "packed matmul: expected no bias with accumulate, got one");
  LT_CPU(matmul_packed_cpu)(p);
}

}  // namespace

void matmul_packed(Tensor out, Tensor a, Tensor b, const MatmulArgs& args, bool tf32) {
  run_packed(out, a.shape[args.trans_a ? 0 : 1], operand(a, !args.trans_a), operand(b, args.trans_b), args,
             tf32);
}

void matmul_fp8_packed(Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args) {
  run_packed(out, a.codes.shape[1], operand(a), operand(b), args, false);
}

}  // namespace ltrain
