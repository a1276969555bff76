// One declaration of a kernel for every device, and its launch.
//
//   LT_KERNEL(scale, DType t, void* y, const void* x, int64_t n, double factor)      // scale.h
//   LT_LAUNCH(s, scale, x.dtype, y.data, x.data, x.elements(), factor);              // scale.cpp
//   namespace ltrain::LT_ISA { void scale_cpu(DType t, ...) {...} }                  // scale_cpu.cpp
//   namespace ltrain { void scale_cuda(Stream& s, DType t, ...) {...} }              // scale_cuda.cu
#pragma once
#include <type_traits>
#include <utility>

#include "base/cpu_isa.h"
#include "kernels/tensor/last_op.h"
#include "kernels/tensor/stream.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {

/// Throws: this build has no CUDA device, and thus no CUDA stream.
[[noreturn]] void no_cuda_in_this_build(const char* what);

#ifdef LTRAIN_CUDA
#define LT_CUDA_KERNEL(name, ...) void name##_cuda(Stream& s, __VA_ARGS__);
#else
#define LT_CUDA_KERNEL(name, ...) \
  [[noreturn]] inline void name##_cuda(Stream&, __VA_ARGS__) { no_cuda_in_this_build(#name); }
#endif

#define LT_KERNEL(name, ...)                   \
  LT_CPU_KERNEL(void name##_cpu(__VA_ARGS__);) \
  LT_CUDA_KERNEL(name, __VA_ARGS__)            \
  inline constexpr const char* name##_parameters = #__VA_ARGS__;

/// Keeps the arguments for the message of a failure (last_op.h).
template <class... P>
void run_cuda_kernel(Stream& s, void (*kernel)(Stream&, P...), const char* parameters,
                     std::type_identity_t<P>... values) {
  s.note_arguments(OpArguments(parameters, values...));
  kernel(s, std::move(values)...);
}

/// Runs a kernel on the stream's device; on the CPU with the best instruction set of the machine. The
/// arguments are copies, evaluated when the kernel runs.
#define LT_LAUNCH(s, name, ...)                                                  \
  do {                                                                           \
    const ::ltrain::OpRange range_of_op(s, #name);                               \
    if ((s).device() == ::ltrain::DeviceKind::cuda) {                            \
      ::ltrain::run_cuda_kernel(s, name##_cuda, name##_parameters, __VA_ARGS__); \
    } else {                                                                     \
      (s).launch([=] { LT_CPU(name##_cpu)(__VA_ARGS__); });                      \
    }                                                                            \
  } while (false)

}  // namespace ltrain
