// The rate that MFU is a share of, on a CPU that `ltrain bench` has not measured: the fastest matmul that was
// seen here, found in a fraction of a second by each of the first runs, and kept.
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
  /// The fastest of several measurements, since one may have been made beside other work.
  struct Kept {
    double flops = 0;  ///< 0: none yet
    int measurements = 0;
    bool enough() const { return measurements >= kEnough; }
  };
  static constexpr int kEnough = 3;

  /// A file that cannot be read, or that is no such file, is an empty one.
  explicit MatmulPeaks(std::string file) : file_(std::move(file)) {}
  Kept find(DType dtype, int threads, int ranks) const;
  /// Adds a measurement. A folder that cannot be written is no error: the next run measures again.
  void keep(DType dtype, int threads, int ranks, double flops) const;
  /// A run was faster than what is kept: the next runs measure again.
  void exceeded(DType dtype, int threads, int ranks, double flops) const;

 private:
  void write(DType dtype, int threads, int ranks, const Kept& kept) const;
  std::string file_;
};

/// Beside the machine profile: peaks.json.
std::string matmul_peaks_path();

/// MFU of steps. A step that is faster than the peak shows that the peak was measured beside other work; from
/// then on the peak is that step's rate, so that no share is above one.
class PeakShare {
 public:
  void begin(double peak) { peak_ = peak; }  ///< FLOP/s; 0: not known
  double of(double rate);                    ///< NaN: the peak is not known
  double peak() const { return peak_; }
  /// Once, after the first step above the peak: what to say of it. Empty: nothing.
  std::string note(int64_t step, bool benched);

 private:
  double peak_ = 0, before_ = 0;
  bool exceeded_ = false, said_ = false;
};

}  // namespace ltrain
