#include "kernels/tensor/device.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "kernels/tensor/out_of_memory.h"
#include "kernels/tensor/stream_cuda.h"

namespace ltrain {
namespace {

std::shared_ptr<void> mapped(int64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw OutOfMemory(ExitCode::internal,
                      fmt::format("cannot map {} bytes of memory {}: {}", bytes, MemoryPurpose::text(),
                                  std::strerror(errno)),
                      0);
  madvise(p, bytes, MADV_HUGEPAGE);
  return {p, [bytes](void* q) { munmap(q, bytes); }};
}

bool is_cuda(DeviceKind device) {
  LT_CHECK(device != DeviceKind::meta, "expected a CPU or CUDA device for streams and memory, got meta");
  return device == DeviceKind::cuda;
}

}  // namespace

std::string_view device_name(DeviceKind device) {
  return device == DeviceKind::cpu ? "cpu" : device == DeviceKind::cuda ? "cuda" : "meta";
}

std::string missing_for(DeviceKind device) { return is_cuda(device) ? cuda::no_device_reason() : ""; }

int device_count(DeviceKind device) {
  if (!is_cuda(device)) return 1;
  return missing_for(device).empty() ? cuda::device_count() : 0;
}

std::vector<std::string> device_places(DeviceKind device) {
  return is_cuda(device) ? cuda::device_places() : std::vector<std::string>();
}

std::vector<std::vector<bool>> device_links(DeviceKind device) {
  return is_cuda(device) ? cuda::device_links() : std::vector<std::vector<bool>>();
}

void use_device(DeviceKind device, int index) {
  if (is_cuda(device)) cuda::use_device(index);
}

DeviceInfo device_info(DeviceKind device) { return is_cuda(device) ? cuda::device_info() : DeviceInfo(); }

int driver_version(DeviceKind device) { return is_cuda(device) ? cuda::driver_version() : 0; }

int64_t free_device_bytes(DeviceKind device) { return is_cuda(device) ? cuda::free_device_bytes() : 0; }

std::unique_ptr<Stream> make_compute_stream(DeviceKind device, std::string name) {
  return is_cuda(device) ? cuda::make_cuda_stream(std::move(name)) : make_inline_stream(std::move(name));
}

std::unique_ptr<Stream> make_side_stream(DeviceKind device, std::string name) {
  return is_cuda(device) ? cuda::make_cuda_stream(std::move(name)) : make_worker_stream(std::move(name));
}

std::shared_ptr<void> device_memory(DeviceKind device, int64_t bytes) {
  if (bytes == 0) return nullptr;
  return is_cuda(device) ? cuda::device_memory(bytes) : mapped(bytes);
}

std::shared_ptr<void> host_memory(DeviceKind device, int64_t bytes) {
  if (bytes == 0) return nullptr;
  return is_cuda(device) ? cuda::pinned_memory(bytes) : mapped(bytes);
}

int64_t stream_scratch_bytes(DeviceKind device) {
  return device == DeviceKind::cuda ? cuda::kScratchBytes : 0;
}

}  // namespace ltrain
