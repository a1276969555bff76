// Ops of a GPU leave their sizes for the message that names the last one.
#include "kernels/tensor/last_op.h"

#include "kernels/attention/attention.h"
#include "kernels/attention/rope.h"
#include "kernels/elementwise/activation.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "tests/cuda/twin.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("kernels, products and attention leave type and sizes for the message of an error") {
  if (!have_cuda()) return;
  Twin w(DType::bf16);
  const auto a = w.random(DType::bf16, {6, 16}), b = w.random(DType::bf16, {8, 16});
  const auto c = w.blank(DType::bf16, {6, 8}), gate_up = w.random(DType::bf16, {6, 32});
  const auto y = w.blank(DType::bf16, {6, 16});
  std::vector<std::string> said;
  w.check([&](Stream& s, const Twin::At& at) {
    const auto note = [&] {
      if (s.device() == DeviceKind::cuda) said.push_back(LastOp::of_thread().text());
    };
    enter_layer(s, "layers.0.mlp");
    MatmulArgs args;
    args.trans_b = true;
    matmul(s, at(c), at(a), at(b), args);
    note();
    swiglu_forward(s, at(y), at(gate_up));
    note();
    enter_layer(s, "");
  });
  REQUIRE(said.size() == 2);
  CHECK_THAT(said[0],
             Catch::Contains("matmul_nt (type = bf16, m = 6, n = 8, k = 16) of layers.0.mlp on the stream "));
  CHECK_THAT(said[1], Catch::Contains(
                          "swiglu_forward (t = bf16, rows = 6, cols = 16) of layers.0.mlp on the stream "));

  AttentionShape shape;
  shape.batch = 1, shape.seq = 8, shape.heads = 2, shape.kv_heads = 1, shape.head_dim = 32;
  Twin v(DType::bf16);
  const auto qkv = v.random(DType::bf16, {8, 4 * 32}), out = v.blank(DType::bf16, {8, 64});
  const auto lse = v.blank(DType::f32, {2, 8});
  v.check([&](Stream& s, const Twin::At& at) {
    attention_forward(s, at(out), at(lse), at(qkv), shape, {});
    if (s.device() == DeviceKind::cuda) said.push_back(LastOp::of_thread().text());
  });
  CHECK_THAT(said.back(), Catch::Contains("t = bf16") &&
                              Catch::Contains("seq = 8, heads = 2, kv_heads = 1") &&
                              Catch::Contains("head_dim = 32"));
}
