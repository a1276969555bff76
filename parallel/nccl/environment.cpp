#include <cstdlib>

#include "kernels/base/error.h"
#include "parallel/nccl/library.h"

namespace ltrain::nccl {

void keep_order() {
  // Kernels of two groups may each wait for the other's ranks when GPUs start them in different orders, in
  // captured work most of all: NCCL 2.26 and newer start them in the order of calls. A user's value stays.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

void share_gpu(int rank) {
  // NCCL refuses a second rank with the same host and the same GPU; NCCL_HOSTID is read once, when it is
  // opened.
  ::setenv("NCCL_HOSTID", fmt::format("ltrain-rank-{}", rank).c_str(), 1);
  // Ways that would lead past the sockets, or take more of the card than a rank's share.
  for (const auto& [name, value] : {std::pair{"NCCL_NET", "Socket"},
                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                    {"NCCL_P2P_DISABLE", "1"},
                                    {"NCCL_SHM_DISABLE", "1"},
                                    {"NCCL_IB_DISABLE", "1"},
                                    {"NCCL_NVLS_ENABLE", "0"},
                                    {"NCCL_ALGO", "Ring"},
                                    {"NCCL_PROTO", "Simple"},
                                    {"NCCL_MAX_CTAS", "2"},
                                    {"NCCL_RAS_ENABLE", "0"}})
    ::setenv(name, value, 1);
}

}  // namespace ltrain::nccl
