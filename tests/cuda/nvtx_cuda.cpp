// The ranges that NVIDIA's tools are told, against a tool of our own. Needs no GPU, but a build with CUDA.
#if defined(LTRAIN_CUDA) && !defined(LTRAIN_CUDA_EMULATED)
#define NVTX_NO_IMPL  // this file is the tool
#include <nvtx3/nvToolsExt.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "kernels/cuda/nvtx_cuda.h"

namespace {

std::vector<std::string> told;

nvtxDomainHandle_t NVTX_API create(const char* name) {
  told.push_back(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(&told);
}
int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  told.push_back(domain == reinterpret_cast<nvtxDomainHandle_t>(&told) ? range->message.ascii
                                                                       : "other domain");
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  told.push_back("pop");
  return 0;
}

/// Does what a tool does when the program first calls NVTX: puts itself into the table of functions.
int NVTX_API attach(NvtxGetExportTableFunc_t get) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

}  // namespace

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = attach;
}

TEST_CASE("a tool is told ranges of ltrain's domain", "[nvtx]") {
  ltrain::cuda::nvtx_push("layers.0.mlp");
  ltrain::cuda::nvtx_push("matmul_nt");
  ltrain::cuda::nvtx_pop();
  ltrain::cuda::nvtx_pop();
  CHECK(told == std::vector<std::string>{"domain ltrain", "layers.0.mlp", "matmul_nt", "pop", "pop"});
}

#endif
