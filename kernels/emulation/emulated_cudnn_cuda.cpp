// Emulated cuDNN: computes the description of an attention call literally, in double precision. Only in
// builds with LTRAIN_CUDA_EMULATED. For tests LTRAIN_EMULATED_CUDNN is one of
//   missing          the library is missing
//   refuses          it has no plan for any call
//   wrong            out, and the gradient of queries, are a tenth too large
//   wrong_backward   only the gradient of queries is
//   wanders          each result differs in its last bits
//   any_order        only results of the non-deterministic backward do
// The deterministic backward needs memory for the gradients of all probabilities, like the library's on an
// A100 or H100, and is refused if there is less.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain {
namespace {

bool asked_for(const char* what) {
  const char* given = std::getenv("LTRAIN_EMULATED_CUDNN");
  return given && std::strcmp(given, what) == 0;
}

/// Rows of one head of a tensor.
template <class T>
struct Rows {
  T* first;
  int64_t stride;
  double operator()(int64_t row, int64_t c) const {
    return static_cast<double>(get(first, row * stride + c));
  }
  void set(int64_t row, int64_t c, double v) const { put(first, row * stride + c, static_cast<float>(v)); }
};

template <class T, class P>
Rows<T> rows(P* base, const CudnnStrides& s, int64_t sample, int64_t head) {
  return {
      static_cast<T*>(const_cast<void*>(static_cast<const void*>(base))) + sample * s.sample + head * s.head,
      s.row};
}

template <class T>
double dot(const Rows<T>& a, int64_t i, const Rows<T>& b, int64_t j, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += a(i, c) * b(j, c);
  return sum;
}

template <class T>
void forward(const CudnnAttention& a, const CudnnBuffers& at, double grow) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t kv = h / (a.heads / a.kv_heads);
      const auto q = rows<T>(at.q, a.q, b, h), k = rows<T>(at.k, a.k, b, kv), v = rows<T>(at.v, a.v, b, kv);
      const auto out = rows<T>(at.out, a.out, b, h);
      const auto lse = rows<float>(at.lse, a.lse, b, h);
      for (int64_t i = 0; i < a.seq; ++i) {
        std::vector<double> p, sum(static_cast<size_t>(a.head_dim));
        double total = 0;
        for (int64_t j = 0; j <= i; ++j) p.push_back(std::exp(a.scale * dot(q, i, k, j, a.head_dim)));
        for (double x : p) total += x;
        for (int64_t c = 0; c < a.head_dim; ++c) {
          double x = 0;
          for (int64_t j = 0; j <= i; ++j) x += p[static_cast<size_t>(j)] / total * v(j, c);
          out.set(i, c, grow * x);
        }
        lse.set(i, 0, std::log(total));
      }
    }
}

template <class T>
void backward(const CudnnAttention& a, const CudnnBuffers& at, double grow) {
  const int64_t group = a.heads / a.kv_heads;
  const size_t cells = static_cast<size_t>(a.seq * a.head_dim);
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t kv = 0; kv < a.kv_heads; ++kv) {
      std::vector<double> gk(cells), gv(cells);
      const auto k = rows<T>(at.k, a.k, b, kv), v = rows<T>(at.v, a.v, b, kv);
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const auto q = rows<T>(at.q, a.q, b, h), out = rows<T>(at.out, a.out, b, h),
                   dout = rows<T>(at.dout, a.dout, b, h);
        const auto lse = rows<float>(at.lse, a.lse, b, h);
        for (int64_t i = 0; i < a.seq; ++i) {
          std::vector<double> gq(static_cast<size_t>(a.head_dim));
          const double delta = dot(dout, i, out, i, a.head_dim);
          for (int64_t j = 0; j <= i; ++j) {
            const double p = std::exp(a.scale * dot(q, i, k, j, a.head_dim) - lse(i, 0));
            const double ds = p * (dot(dout, i, v, j, a.head_dim) - delta) * a.scale;
            for (int64_t c = 0; c < a.head_dim; ++c) {
              const size_t cell = static_cast<size_t>(j * a.head_dim + c);
              gq[static_cast<size_t>(c)] += ds * k(j, c);
              gk[cell] += ds * q(i, c);
              gv[cell] += p * dout(i, c);
            }
          }
          const auto dq = rows<T>(at.dq, a.dq, b, h);
          for (int64_t c = 0; c < a.head_dim; ++c) dq.set(i, c, grow * gq[static_cast<size_t>(c)]);
        }
      }
      const auto dk = rows<T>(at.dk, a.dk, b, kv), dv = rows<T>(at.dv, a.dv, b, kv);
      for (int64_t j = 0; j < a.seq; ++j)
        for (int64_t c = 0; c < a.head_dim; ++c) {
          dk.set(j, c, gk[static_cast<size_t>(j * a.head_dim + c)]);
          dv.set(j, c, gv[static_cast<size_t>(j * a.head_dim + c)]);
        }
    }
}

/// Least bytes of the library's workspace: sums of rows, and gradients of queries in f32 or of probabilities.
int64_t needs(const CudnnAttention& a) {
  if (!a.backward) return 0;
  const int64_t rows = a.batch * a.heads * a.seq, length = (a.seq + 63) / 64 * 64;
  const int64_t pairs = 2 * a.batch * a.heads * length * length;
  return 4 * rows + (a.deterministic ? pairs : 4 * rows * a.head_dim);
}

template <class T>
void compute(const CudnnAttention& a, const CudnnBuffers& at, double grow) {
  // The library may overwrite the full workspace.
  if (at.workspace) std::memset(at.workspace, 0xff, static_cast<size_t>(a.workspace));
  a.backward ? backward<T>(a, at, grow) : forward<T>(a, at, grow);
}

}  // namespace

std::string cudnn_missing() {
  return asked_for("missing") ? "libcudnn is not there: the emulated one was taken away" : "";
}
std::string cudnn_version() { return "emulated"; }

std::string cudnn_attention(Stream& s, const CudnnAttention& what, const CudnnBuffers& at) {
  if (asked_for("refuses")) return "cuDNN: the emulated one has no plan";
  if (what.workspace < needs(what))
    return fmt::format("cuDNN wants a workspace of {} bytes, and there are {}", needs(what), what.workspace);
  CudnnBuffers own = at;
  if (!own.workspace) own.workspace = cuda::scratch(s, what.workspace);
  static std::atomic<int> calls{0};
  const bool other = asked_for("wanders") || (asked_for("any_order") && what.backward && !what.deterministic);
  // the number of calls differs from run to run
  const double last_bits = other ? 1 + 1e-3 * (calls++ % 7) : 1;
  const bool wrong = asked_for("wrong") || (what.backward && asked_for("wrong_backward"));
  cuda::enqueue(s, [what, own, grow = wrong ? 1.1 : last_bits] {
    what.type == DType::bf16 ? compute<bf16>(what, own, grow) : compute<f16>(what, own, grow);
  });
  return "";
}

}  // namespace ltrain
