// Reads the sensors of a rank's GPU beside the steps, on a thread of its own.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_reading.h"
#include "runtime/telemetry/gpu_numbers.h"

namespace ltrain {

/// Finds what a user should know in the readings of one GPU: a clock that is lowered for several readings,
/// and errors of the memory.
class GpuAlarm {
 public:
  /// Adds a reading. Returns sentences for the user. `who`: "rank 3 on host node1".
  std::vector<std::string> add(const std::string& who, const GpuReading& r);

 private:
  std::optional<double> first_uncorrected_;
  std::string reason_;  // known to the user
  int with_ = 0, without_ = 0;
};

/// Until start() nothing is read, and every function returns what is empty.
class GpuWatch {
 public:
  using Sensors = std::function<GpuReading(std::vector<std::string>& refusals)>;

  GpuWatch() = default;
  ~GpuWatch();
  /// Starts the thread, which opens NVML and reads every `seconds`. `bus_id`: PCI bus id; empty: nothing is
  /// started. `who`: "rank 3 on host node1", for notes.
  void start(const std::string& bus_id, const std::string& who, double seconds = 1);
  /// The same with other sensors: `open` is called on the thread.
  void start(std::function<Sensors()> open, const std::string& who, double seconds);
  /// Waits for a new reading, at most two seconds, and begins the run's mean with it.
  void begin_run();
  /// The newest reading.
  GpuReading newest() const;
  /// Mean of the readings since the last call, or the newest one.
  GpuReading take_mean();
  /// Waits for a new reading, at most two seconds. Returns the mean since begin_run(), its energy since then.
  GpuReading run();
  /// Alarms for the user since the last call.
  std::vector<std::string> notes();
  /// Sentences about numbers that the driver refuses, since the last call; each number comes once.
  std::vector<std::string> refusals();
  /// Readings since start(), and the time that they took.
  int64_t readings() const;
  double reading_seconds() const;

 private:
  struct State;
  void read_now() const;
  std::shared_ptr<State> state_;
};

}  // namespace ltrain
