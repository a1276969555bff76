// One element of update_fp8_steps, for every device.
#pragma once
#include "kernels/ops/quantize.h"

namespace ltrain {

LT_HD inline void update_fp8_step(float* steps, float* amax, float* history, int64_t i, int64_t length,
                                  const Fp8StepArgs& args) {
  float counts = amax[i];
  if (length > 0) {
    float* own = history + i * length;
    if (args.record) {
      for (int64_t k = length - 1; k > 0; --k) own[k] = own[k - 1];
      own[0] = counts;
      amax[i] = 0;
    }
    counts = own[0];
    if (!args.most_recent)
      // What is not finite says nothing of the numbers to come.
      for (int64_t k = 0; k < length; ++k) {
        const bool finite = fp8::bits_of(own[k]) < 0x7f800000u;
        const bool mine = fp8::bits_of(counts) < 0x7f800000u;
        if (finite && (!mine || own[k] > counts)) counts = own[k];
      }
  }
  steps[i] = fp8::step_of(counts, args.top[i % args.period], args.margin);
}

}  // namespace ltrain
