// Matmuls and their times in traces of other programs' profilers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain {

/// One call: `batch` matmuls of m x k and k x n.
struct TracedProduct {
  std::string type;  ///< operand type, as in a profile's matmul.peak; "": unknown
  int64_t batch = 1, m = 0, n = 0, k = 0;
  double seconds = 0;  ///< duration of its kernels
  double flops() const { return 2.0 * static_cast<double>(batch * m) * static_cast<double>(n * k); }
};

struct TracedProducts {
  std::string card;  ///< name from its driver; "": unknown
  std::vector<TracedProduct> products;
  int64_t without_shapes = 0;  ///< matmuls without operand sizes in the trace
};

/// Reads the Chrome trace that torch.profiler exports with record_shapes=True: the kernels that aten::mm,
/// addmm, bmm, baddbmm and _scaled_mm launched, found by the location of the launch in its thread. fp32
/// operands are "tf32" if the kernel's name says so. Throws Error (usage) for another text.
TracedProducts products_of_pytorch_trace(const std::string& text, const std::string& file);

/// Reads the output of `nsys stats --report nvtx_kern_sum --format csv` for a program under
/// torch.autograd.profiler.emit_nvtx(record_shapes=True). It contains neither the card nor types. Throws
/// Error (usage) with the line.
TracedProducts products_of_nsight(const std::string& text, const std::string& file);
/// Returns whether the text begins like such a report.
bool is_nsight_report(const std::string& text);

}  // namespace ltrain
