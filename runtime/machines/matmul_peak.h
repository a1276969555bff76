// Peak rate for MFU on a CPU that `ltrain bench` has not measured: the fastest matmul measured on this
// machine. Each of the first runs measures it in a fraction of a second, and the best is kept.
#pragma once
#include <string>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// Processor model name from /proc/cpuinfo; "unknown" if it is missing.
std::string cpu_model_name();

/// FLOP/s of the fastest of several square matmuls of `dtype` on the calling thread's OpenMP threads. Takes
/// 0.25 s. Ranks that share a host call it at the same time, as they compute at the same time.
double measure_matmul_peak(DType dtype);

/// Peaks of this machine in `file`, keyed by dtype, threads per rank, and ranks on the host.
class MatmulPeaks {
 public:
  /// The fastest of several measurements, because one may have been disturbed by other work.
  struct Kept {
    double flops = 0;  ///< 0: none yet
    int measurements = 0;
    bool enough() const { return measurements >= kEnough; }
  };
  static constexpr int kEnough = 3;

  /// A missing or invalid file counts as empty.
  explicit MatmulPeaks(std::string file) : file_(std::move(file)) {}
  Kept find(DType dtype, int threads, int ranks) const;
  /// Adds a measurement. A write error is ignored, and the next run measures again.
  void keep(DType dtype, int threads, int ranks, double flops) const;
  /// Called if a run was faster than the kept peak. The next runs measure again.
  void exceeded(DType dtype, int threads, int ranks, double flops) const;

 private:
  void write(DType dtype, int threads, int ranks, const Kept& kept) const;
  std::string file_;
};

/// peaks.json next to the machine profile.
std::string matmul_peaks_path();

/// MFU of steps. A step faster than the peak shows that the measurement was disturbed by other work. From
/// then on the peak is the rate of that step, so that no share exceeds one.
class PeakShare {
 public:
  void begin(double peak) { peak_ = peak; }  ///< FLOP/s; 0: unknown
  double of(double rate);                    ///< NaN: the peak is unknown
  double peak() const { return peak_; }
  /// Note for the user, once after the first step above the peak; else empty.
  std::string note(int64_t step, bool benched);

 private:
  double peak_ = 0, before_ = 0;
  bool exceeded_ = false, said_ = false;
};

}  // namespace ltrain
