// f32 and bf16 products on the CPU through oneDNN's matmul primitive.
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "kernels/ops/matmul.h"

namespace ltrain {
namespace {

using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, bool, DType, DType>;

dnnl::engine& engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

dnnl::memory::data_type onednn_type(DType t) {
  switch (t) {
    case DType::f32: return dnnl::memory::data_type::f32;
    case DType::bf16: return dnnl::memory::data_type::bf16;
    default: fail(ExitCode::internal, "oneDNN matmul of {}", dtype_name(t));
  }
}

struct Primitive {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, bias, out;
};

Primitive build(const Key& key) {
  const auto [m, n, k, trans_a, trans_b, accumulate, bias, in_type, out_type] = key;
  using desc = dnnl::memory::desc;
  using dims = dnnl::memory::dims;
  Primitive p;
  p.a = desc({m, k}, onednn_type(in_type), trans_a ? dims{1, m} : dims{k, 1});
  p.b = desc({k, n}, onednn_type(in_type), trans_b ? dims{1, k} : dims{n, 1});
  p.out = desc({m, n}, onednn_type(out_type), dims{n, 1});
  dnnl::primitive_attr attr;
  if (accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  if (bias) {
    p.bias = desc({1, n}, onednn_type(out_type), dims{n, 1});
    p.primitive = dnnl::matmul({{p.a, p.b, p.bias, p.out}, attr, engine()});
  } else {
    p.primitive = dnnl::matmul({{p.a, p.b, p.out}, attr, engine()});
  }
  return p;
}

}  // namespace

void matmul_onednn(Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  thread_local std::map<Key, Primitive> cache;
  thread_local dnnl::stream stream(engine());
  const int64_t m = out.shape[0], n = out.shape[1], k = a.shape[args.trans_a ? 0 : 1];
  const Key key{m, n, k, args.trans_a, args.trans_b, args.accumulate, args.bias.defined(), a.dtype, out.dtype};
  try {
    auto it = cache.find(key);
    if (it == cache.end()) it = cache.emplace(key, build(key)).first;
    const Primitive& p = it->second;
    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, dnnl::memory(p.a, engine(), a.data)},
                                                    {DNNL_ARG_WEIGHTS, dnnl::memory(p.b, engine(), b.data)},
                                                    {DNNL_ARG_DST, dnnl::memory(p.out, engine(), out.data)}};
    if (args.bias.defined()) arguments.emplace(DNNL_ARG_BIAS, dnnl::memory(p.bias, engine(), args.bias.data));
    p.primitive.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& e) {
    fail(ExitCode::internal, "oneDNN matmul m={} n={} k={} {} -> {}: {}", m, n, k, dtype_name(a.dtype),
         dtype_name(out.dtype), e.what());
  }
}

}  // namespace ltrain
