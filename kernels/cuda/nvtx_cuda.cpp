#include "kernels/cuda/nvtx_cuda.h"

#include <nvtx3/nvToolsExt.h>

#include <string>

namespace ltrain::cuda {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("ltrain");
  return handle;
}

}  // namespace

void nvtx_push(std::string_view name) {
  if (!domain()) return;  // no tool attached
  const std::string text(name);
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = text.c_str();
  nvtxDomainRangePushEx(domain(), &range);
}

void nvtx_pop() {
  if (domain()) nvtxDomainRangePop(domain());
}

}  // namespace ltrain::cuda
