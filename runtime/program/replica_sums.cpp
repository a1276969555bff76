#include "runtime/program/replica_sums.h"

#include <algorithm>
#include <vector>

#include "kernels/tensor/staging.h"

namespace ltrain {
namespace {

constexpr int64_t kPartBytes = 64 << 20;  // host memory for a copy

}  // namespace

void through_host(Stream& s, Tensor t, const std::function<void(Tensor)>& f) {
  s.synchronize();
  if (t.device == DeviceKind::cpu) return f(t);
  const int64_t part = kPartBytes / dtype_size(t.dtype);
  std::vector<char> host(static_cast<size_t>(std::min(kPartBytes, t.bytes())));
  for (int64_t at = 0; at < t.elements(); at += part) {
    const Tensor here = t.flat(at, {std::min(part, t.elements() - at)});
    Tensor copy = here;
    copy.data = host.data(), copy.device = DeviceKind::cpu;
    download(s, copy.data, here);
    f(copy);
    upload(s, here, copy.data);
  }
}

}  // namespace ltrain
