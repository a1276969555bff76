#include "base/cpu_isa.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace ltrain {

#if defined(__x86_64__)
static CpuIsa detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    fail(ExitCode::usage, "this CPU has no AVX2; ltrain's x86-64 kernels need at least AVX2 and FMA");
#if defined(LTRAIN_ONE_ISA)
  constexpr bool has_avx512 = false, built_avx512 = false;
  constexpr CpuIsa widest = CpuIsa::avx2;
#else
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  constexpr bool built_avx512 = true;
  const CpuIsa widest = has_avx512 ? CpuIsa::avx512 : CpuIsa::avx2;
#endif
  const char* asked = std::getenv("LTRAIN_ISA");
  if (asked && *asked) {
    const std::string_view name = asked;
    if (name == "avx2") return CpuIsa::avx2;
    if (name == "avx512" && has_avx512) return widest;
    fail(ExitCode::usage, "LTRAIN_ISA={}: must be avx2{}", name,
         has_avx512     ? " or avx512"
         : built_avx512 ? "; this CPU has no AVX-512"
                        : "; this build has no kernels for AVX-512");
  }
  return widest;
}
CpuIsa cpu_isa() {
  static const CpuIsa isa = detect();
  return isa;
}
const char* cpu_isa_name() { return cpu_isa() == CpuIsa::avx2 ? "avx2" : "avx512"; }
#else
CpuIsa cpu_isa() { return CpuIsa::generic; }
const char* cpu_isa_name() { return "generic"; }
#endif

}  // namespace ltrain
