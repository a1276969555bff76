// In the place of libnvidia-ml.so.1: three cards, of which links join the first two. The second one is hot,
// and the third refuses most of what it is asked.
#include <cstring>
#include <ctime>

extern "C" {

constexpr int kOk = 0, kNotSupported = 3, kNotFound = 6;

int nvmlInit_v2() { return kOk; }

const char* nvmlErrorString(int result) { return result == kNotSupported ? "Not Supported" : "Not Found"; }

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

/// SM clock: type 1.
int nvmlDeviceGetClockInfo(void* card, int type, unsigned* mhz) {
  *mhz = type != 1 ? 0 : *static_cast<char*>(card) == 1 ? 1200 : 1980;
  return kOk;
}

int nvmlDeviceGetPowerUsage(void* card, unsigned* mw) {
  *mw = 500250;
  return *static_cast<char*>(card) == 2 ? kNotSupported : kOk;
}

/// 500 W since the machine has started.
int nvmlDeviceGetTotalEnergyConsumption(void* card, unsigned long long* mj) {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  *mj = 500ull * (1000ull * static_cast<unsigned long long>(t.tv_sec) +
                  static_cast<unsigned long long>(t.tv_nsec) / 1000000ull);
  return *static_cast<char*>(card) == 2 ? kNotSupported : kOk;
}

int nvmlDeviceGetTemperature(void* card, int sensor, unsigned* celsius) {
  *celsius = sensor != 0 ? 0 : *static_cast<char*>(card) == 1 ? 91 : 55;
  return kOk;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* card, unsigned long long* bits) {
  *bits = *static_cast<char*>(card) == 1 ? 0x48 : 0x4;
  return kOk;
}

struct Memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void*, Memory* memory) {
  if (memory->version != (sizeof(Memory) | 2u << 24)) return 25;  // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
  memory->total = 80ull << 30, memory->reserved = 1ull << 30, memory->used = 3ull << 20;
  memory->free = memory->total - memory->reserved - memory->used;
  return kOk;
}

/// Corrected errors: type 0. Since the driver was loaded: counter 0.
int nvmlDeviceGetTotalEccErrors(void* card, int type, int counter, unsigned long long* errors) {
  *errors = counter != 0 ? 1000 : type == 0 ? 7 : 1;
  return *static_cast<char*>(card) == 2 ? kNotSupported : kOk;
}

/// Replays: counter 0. Two links are active on each of the joined cards.
int nvmlDeviceGetNvLinkErrorCounter(void* card, unsigned link, int counter, unsigned long long* errors) {
  *errors = counter == 0 ? 2 + link : 1000;
  return *static_cast<char*>(card) == 2 || link > 1 ? kNotSupported : kOk;
}

// nvmlDeviceGetPcieReplayCounter is missing, as newer functions are in older drivers.
}
