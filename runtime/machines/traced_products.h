// Matrix products and their times out of the traces of other programs' profilers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain {

/// One call: `batch` products of m x k and k x n.
struct TracedProduct {
  std::string type;  ///< of the operands, as in a profile's matmul.peak; "": the trace does not say
  int64_t batch = 1, m = 0, n = 0, k = 0;
  double seconds = 0;  ///< of its kernels
  double flops() const { return 2.0 * static_cast<double>(batch * m) * static_cast<double>(n * k); }
};

struct TracedProducts {
  std::string card;  ///< as its driver names it; "": the trace does not say
  std::vector<TracedProduct> products;
  int64_t without_shapes = 0;  ///< products whose operands' sizes the trace does not have
};

/// Of the Chrome trace that torch.profiler exports, with record_shapes=True: the kernels that aten::mm,
/// addmm, bmm, baddbmm and _scaled_mm launched, found by the launch's place in its thread. fp32 operands are
/// "tf32" where the kernel's name says so. Throws Error (usage) where the text is no such trace.
TracedProducts products_of_pytorch_trace(const std::string& text, const std::string& file);

/// Of `nsys stats --report nvtx_kern_sum --format csv`, of a program under
/// torch.autograd.profiler.emit_nvtx(record_shapes=True). It has neither the card nor types. Throws Error
/// (usage) with the line.
TracedProducts products_of_nsight(const std::string& text, const std::string& file);
/// Whether the text begins as such a report does.
bool is_nsight_report(const std::string& text);

}  // namespace ltrain
