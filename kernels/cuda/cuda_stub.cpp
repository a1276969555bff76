// Stub of device_cuda.cpp in builds without CUDA.
#ifndef LTRAIN_CUDA
#include "base/error.h"
#include "kernels/tensor/host_work.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream_cuda.h"

namespace ltrain {

void no_cuda_in_this_build(const char* what) {
  fail(ExitCode::usage, "device: cuda: {}: {}; device: cpu works everywhere", what, cuda::no_device_reason());
}

namespace cuda {

std::string no_device_reason() {
  return "this build of ltrain has no CUDA (cmake --preset cuda makes one that has)";
}
int device_count() { return 0; }
std::vector<std::string> device_places() { return {}; }
std::vector<std::vector<bool>> device_links() { return {}; }
void use_device(int) { no_cuda_in_this_build("choosing a GPU"); }
int used_device() { no_cuda_in_this_build("asking about a GPU"); }
DeviceInfo device_info() { no_cuda_in_this_build("asking about a GPU"); }
int driver_version() { no_cuda_in_this_build("asking about a driver"); }
int64_t free_device_bytes() { no_cuda_in_this_build("asking about a GPU"); }
std::unique_ptr<Stream> make_cuda_stream(std::string) { no_cuda_in_this_build("a stream"); }
std::shared_ptr<void> device_memory(int64_t) { no_cuda_in_this_build("memory of a GPU"); }
void run_on_host(Stream&, std::function<void()>) { no_cuda_in_this_build("work of the host"); }
void fill_bytes(Stream&, void*, int64_t) { no_cuda_in_this_build("clearing memory"); }
std::shared_ptr<void> pinned_memory(int64_t) { no_cuda_in_this_build("pinned memory"); }

}  // namespace cuda
}  // namespace ltrain
#endif
