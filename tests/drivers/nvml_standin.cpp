// In the place of libnvidia-ml.so.1: three cards, of which links join the first two.
#include <cstring>

extern "C" {

constexpr int kOk = 0, kNotFound = 6;

int nvmlInit_v2() { return kOk; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** card) {
  static char cards[3];
  const char* ids[] = {"0000:18:00.0", "0000:19:00.0", "0000:C3:00.0"};
  for (int i = 0; i < 3; ++i)
    if (std::strcmp(bus_id, ids[i]) == 0) {
      *card = cards + i;
      cards[i] = static_cast<char>(i);
      return kOk;
    }
  return kNotFound;
}

/// 0: yes; index 2 asks for NVLink.
int nvmlDeviceGetP2PStatus(void* a, void* b, int index, int* status) {
  const int i = *static_cast<char*>(a), j = *static_cast<char*>(b);
  *status = index == 2 && i + j == 1 ? 0 : 4;
  return kOk;
}

struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(void* card, unsigned* count, Process* to) {
  const int i = *static_cast<char*>(card);
  *count = i < 2 ? 1 : 0;
  if (i < 2) to[0] = {4711u + static_cast<unsigned>(i), i == 0 ? 12345678ull : ~0ull, 0, 0};
  return kOk;
}
}
