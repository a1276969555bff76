// The rate that MFU is a share of, on a CPU that `ltrain bench` has not measured: the fastest matmul that was
// seen here, found once in a fraction of a second and kept.
#pragma once
#include <string>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// Model name of this machine's processor, as /proc/cpuinfo has it; "unknown" without it.
std::string cpu_model_name();

/// Operations a second of the fastest of several square matmuls of `dtype` on the calling thread's OpenMP
/// threads. Takes 0.25 s; ranks that share a host call it at the same time, as they will multiply.
double measure_matmul_peak(DType dtype);

/// Peaks of this machine by (dtype, threads a rank, ranks on the host), in `file`.
class MatmulPeaks {
 public:
  /// A file that cannot be read, or that is no such file, is an empty one.
  explicit MatmulPeaks(std::string file) : file_(std::move(file)) {}
  double find(DType dtype, int threads, int ranks) const;  ///< 0: not there
  /// Keeps the larger one of two. A folder that cannot be written is no error: the next run measures again.
  void keep(DType dtype, int threads, int ranks, double flops) const;

 private:
  std::string file_;
};

/// Beside the machine profile: peaks.json.
std::string matmul_peaks_path();

}  // namespace ltrain
