// In the place of libcuda.so.1 where no driver is: cuDNN opens it to load what it has compiled, and asks no
// more of it while it plans. What loads a kernel says yes, everything else that there is no device. With
// LTRAIN_STANDIN_DRIVER=12080 it is a driver for CUDA 12.8 that has none.
#include <cstdlib>

extern "C" {

constexpr int kOk = 0, kNoDevice = 100;  // CUDA_SUCCESS, CUDA_ERROR_NO_DEVICE

int cuLibraryLoadData(void** library) {
  static char loaded;
  *library = &loaded;
  return kOk;
}
int cuLibraryGetKernel(void** kernel) {
  static char found;
  *kernel = &found;
  return kOk;
}
int cuLibraryUnload() { return kOk; }
int cuGetErrorString(int, const char** text) {
  *text = "no driver is here";
  return kOk;
}

int cuDriverGetVersion(int* version) {
  const char* given = std::getenv("LTRAIN_STANDIN_DRIVER");
  if (!given) return kNoDevice;
  *version = std::atoi(given);
  return kOk;
}

#define NO_DEVICE(name) \
  int name() { return kNoDevice; }
NO_DEVICE(cuInit)
NO_DEVICE(cuDeviceGetCount)
// cuDNN gives up where one of these is missing, and calls none of them here.
NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuGetErrorName)
NO_DEVICE(cuKernelGetAttribute)
NO_DEVICE(cuKernelSetAttribute)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE(cuStreamGetCtx)
}
