// Instruction set of the CPU kernels.
//
// Every kernels/**/X_cpu.cpp is compiled once per instruction set (CMakeLists.txt), each time in the
// namespace LT_ISA. Headers declare its functions with LT_CPU_KERNEL; callers pick one at run time with
// LT_CPU:
//
//   LT_CPU_KERNEL(void add_cpu(float* y, const float* x, int64_t n);)    // add.h
//   LT_CPU(add_cpu)(y, x, n);                                            // add.cpp
//   namespace ltrain::LT_ISA { void add_cpu(...) {...} }                 // add_cpu.cpp
//
// A build with LTRAIN_ONE_ISA has AVX2 only.
#pragma once

namespace ltrain {

#if defined(__x86_64__) && !defined(LTRAIN_ONE_ISA)
enum class CpuIsa { avx2, avx512 };
#define LT_CPU_KERNEL(...) \
  namespace avx2 {         \
  __VA_ARGS__              \
  }                        \
  namespace avx512 {       \
  __VA_ARGS__              \
  }
#define LT_CPU(f) (::ltrain::cpu_isa() == ::ltrain::CpuIsa::avx512 ? ::ltrain::avx512::f : ::ltrain::avx2::f)
#else
#if defined(__x86_64__)
#define LT_ONLY_ISA avx2
#else
#define LT_ONLY_ISA generic
#endif
enum class CpuIsa { LT_ONLY_ISA };
#define LT_CPU_KERNEL(...) \
  namespace LT_ONLY_ISA {  \
  __VA_ARGS__              \
  }
#define LT_CPU(f) (::ltrain::LT_ONLY_ISA::f)
#endif

/// Widest instruction set that this CPU and the build support; LTRAIN_ISA=avx2 selects the narrower one.
/// Throws with ExitCode::usage on an x86-64 CPU without AVX2.
CpuIsa cpu_isa();
const char* cpu_isa_name();

}  // namespace ltrain
