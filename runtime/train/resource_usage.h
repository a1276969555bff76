// Bytes that one rank has used and sent, beside the plan: logs/usage-00000.json and a line of the log.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/gpu_reading.h"
#include "kernels/tensor/arena.h"
#include "kernels/tensor/device.h"
#include "parallel/mesh/groups.h"
#include "runtime/plan/plan_types.h"

namespace ltrain {

/// Checks at run time that a step uses the planned bytes. `host`: null on a CPU.
void check_used_bytes(const RankPlan& plan, const Arena& arena, const Arena* host,
                      const OffloadedBytes& offloaded);

class ResourceUsage {
 public:
  /// Notes that set-up has reached the end of a part of it, for `start` of the file: "device" for its
  /// context.
  void reached(std::string_view part, DeviceKind device);
  /// Seconds since this object was made.
  double seconds() const { return steady_seconds() - begin_; }
  /// Call before and after each training step; both count bytes that groups sent in between. `planned_bytes`:
  /// bytes that the plan expects of this step.
  void begin_step(const Groups& groups);
  void end_step(const Groups& groups, int64_t planned_bytes);

  /// Sets the mean of the GPU over the run, its energy since the first step, the readings and their time.
  void note_gpu(const GpuReading& run, int64_t readings, double reading_seconds);
  /// Writes OUTPUT_DIR/logs/usage-RANK.json. Throws Error (storage).
  void write(const std::string& output_dir, int rank, int64_t steps, const Groups& groups, const Arena& arena,
             const DeviceInfo& card, DeviceKind device, const RankPlan& plan) const;
  /// "rank 0 used 22.6 MiB ... (51.3 planned) and sent 0.1 MiB in 2 training steps ...". `routes`: tokens
  /// travel between expert ranks. `transports`: "shared memory", or empty.
  std::string text(int64_t steps, const RankPlan& plan, bool routes, const std::string& transports) const;

 private:
  using Bytes = std::map<std::string, int64_t>;
  /// Bytes sent so far, by the axes that a group spans, named as in the plan, or by comm_axis of the group.
  static Bytes sent(const Groups& groups, bool by_group);
  std::string between_experts(int64_t steps, const RankPlan& plan) const;
  int64_t sent_in_steps() const;

  /// A part of the time up to the end of the second step, where libraries load kernels and take memory.
  struct StartPart {
    std::string part;
    double until = 0;          ///< seconds()
    int64_t device_bytes = 0;  ///< used on the card, by all processes; 0 on the CPU
  };
  std::vector<StartPart> start_;
  double begin_ = steady_seconds();
  DeviceKind device_ = DeviceKind::cpu;
  Bytes by_axis_, by_group_;              // sent in training steps
  Bytes axis_at_begin_, group_at_begin_;  // sent when the present step began
  GpuReading gpu_;
  int64_t gpu_readings_ = 0;
  double gpu_reading_seconds_ = 0;
  int64_t planned_ = 0;  // planned bytes of the training steps so far
  int64_t steps_ = 0;
};

}  // namespace ltrain
