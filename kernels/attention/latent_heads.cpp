#include "kernels/attention/latent_heads.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check(const LatentHeads& h, const Tensor& qkv, const Tensor& q, const Tensor& kv, const Tensor& rope) {
  const int64_t rows = qkv.rows();
  LT_CHECK(h.value > 0 && qkv.cols() == h.qkv_width() && q.rows() == rows &&
               q.cols() == h.heads * h.width() && kv.rows() == rows &&
               kv.cols() == h.heads * (h.nope + h.value) && rope.rows() == rows && rope.cols() == h.rope &&
               q.dtype == qkv.dtype && kv.dtype == qkv.dtype && rope.dtype == qkv.dtype,
           "latent attention: expected {} heads of {} + {} channels and values of {}: qkv (T, {}), q (T, "
           "{}), kv (T, {}), key_rope (T, {}) of one dtype; got qkv {}, q {}, kv {}, key_rope {}",
           h.heads, h.nope, h.rope, h.value, h.qkv_width(), h.heads * h.width(), h.heads * (h.nope + h.value),
           h.rope, to_string(qkv.shape), to_string(q.shape), to_string(kv.shape), to_string(rope.shape));
}

}  // namespace

void latent_heads_forward(Stream& s, Tensor qkv, Tensor q, Tensor kv, Tensor key_rope, const LatentHeads& h) {
  check(h, qkv, q, kv, key_rope);
  if (s.meta()) {
    s.meta()->add(s, op_cost("latent_heads_forward", OpClass::elementwise, 0, {qkv}, {q, kv, key_rope}));
    place(s, "latent_heads_forward", Rule::elementwise, {qkv}, {q, kv, key_rope});
    return;
  }
  LT_LAUNCH(s, latent_heads_forward, qkv.dtype, qkv.data, q.data, kv.data, key_rope.data, qkv.rows(), h);
}

void latent_heads_backward(Stream& s, Tensor dq, Tensor dkv, Tensor dkey_rope, Tensor dqkv,
                           const LatentHeads& h) {
  check(h, dqkv, dq, dkv, dkey_rope);
  if (s.meta()) {
    s.meta()->add(s, op_cost("latent_heads_backward", OpClass::elementwise,
                             1.0 * dqkv.rows() * h.heads * h.rope, {dq, dkv, dkey_rope}, {dqkv}));
    place(s, "latent_heads_backward", Rule::elementwise, {dq, dkv}, {dqkv});
    place(s, "latent_heads_backward", Rule::sum_columns, {dkey_rope}, {dqkv});
    return;
  }
  LT_LAUNCH(s, latent_heads_backward, dqkv.dtype, dq.data, dkv.data, dkey_rope.data, dqkv.data, dqkv.rows(),
            h);
}

}  // namespace ltrain
