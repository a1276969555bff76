#include <cstdlib>

#include "base/error.h"
#include "parallel/nccl/library.h"

namespace ltrain::nccl {
namespace {

/// NCCL treats a second rank with the same host and the same GPU as a mistake; NCCL_HOSTID is read once, when
/// it is opened. The other variables disable transports that bypass the sockets, or take more of the card
/// than a rank's share.
void share_gpu(int rank) {
  ::setenv("NCCL_HOSTID", fmt::format("ltrain-rank-{}", rank).c_str(), 1);
  for (const auto& [name, value] : {std::pair{"NCCL_NET", "Socket"},
                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                    {"NCCL_P2P_DISABLE", "1"},
                                    {"NCCL_SHM_DISABLE", "1"},
                                    {"NCCL_IB_DISABLE", "1"},
                                    {"NCCL_NVLS_ENABLE", "0"},
                                    {"NCCL_ALGO", "Ring"},
                                    {"NCCL_PROTO", "Simple"},
                                    {"NCCL_RAS_ENABLE", "0"}})
    ::setenv(name, value, 1);
  ::setenv("NCCL_MAX_CTAS", std::to_string(kSharedGpuChannels).c_str(), 1);
}

}  // namespace

void set_environment(const Environment& e) {
  // Kernels of two groups may each wait for the other's ranks if GPUs start them in different orders,
  // especially in captured work. NCCL 2.26 and newer start them in the order of calls.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  // Sums in NVLink switches differ from call to call (NVIDIA/nccl#1497).
  if (e.deterministic) ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  if (!e.interface.empty()) ::setenv("NCCL_SOCKET_IFNAME", ("=" + e.interface).c_str(), 0);
  if (e.share_gpu_as >= 0) share_gpu(e.share_gpu_as);
}

}  // namespace ltrain::nccl
