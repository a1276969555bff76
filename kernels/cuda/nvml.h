// Facts about cards from NVIDIA's management library, if installed.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_reading.h"

namespace ltrain::cuda {

/// "
/// process 4711 holds 12345678 bytes" for each process on the card of this PCI bus id, or the reason why it
/// is unknown.
std::string processes_on(const char* bus_id);

/// [a][b]: NVLink connects the cards of these PCI bus ids, directly or through switches. All false if NVML is
/// missing or does not know.
std::vector<std::vector<bool>> nvlinks_between(const std::vector<std::string>& bus_ids);

/// Sensors and counters of the GPU with a PCI bus id. One thread uses it.
class GpuSensors {
 public:
  /// Opens NVML, which may take a second on a node with many GPUs. Does not throw.
  explicit GpuSensors(const std::string& bus_id);
  ~GpuSensors();
  /// Asks for each number, which takes milliseconds. Numbers that NVML refuses are absent.
  GpuReading read();
  /// Numbers that NVML has refused since the last call, and why, for the log; each comes once.
  std::vector<std::string> refusals();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ltrain::cuda
