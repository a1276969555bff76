// Ranks that are slower than the others for many steps, with the reason as far as the program knows it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"
#include "runtime/telemetry/gpu_watch.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/telemetry/straggler.h"

namespace ltrain {

/// Times of a rank, means over the steps of an interval without its slowest one, in microseconds a step.
struct RankTimes {
  int64_t own = 0;   ///< wall time in which the rank did not wait for others
  int64_t data = 0;  ///< part of `own` that it waited for data
  int64_t cpu = -1;  ///< processor time of the process; -1: says nothing, because the rank runs on a GPU
};

/// Ranks whose own time is more than half above the median, slowest first. `times`: index = rank. A rank that
/// only waits for a slower one has no more time of its own than the others, so it is not among them.
/// `gpus`: readings of the ranks over the interval; empty: unknown.
std::vector<Straggler> find_stragglers(const std::vector<RankTimes>& times,
                                       const std::vector<GpuReading>& gpus = {});
/// Line of the log.
std::string straggler_text(const Straggler& s);

/// LTRAIN_STRAGGLER_STEPS, or 50. Throws Error (usage).
double straggler_steps();

/// Compares the ranks at the end of each interval of steps. The first step of a run is left out.
class StragglerWatch {
 public:
  /// `group`: all ranks; not used by anything else, since saves in the background run beside steps. `host`:
  /// name of this rank's host. `steps`: length of an interval, equal on all ranks; 0: no comparison, and no
  /// collective. `gpu`: watch of this rank's GPU; null: a CPU rank, whose processor time counts.
  StragglerWatch(std::unique_ptr<Communicator> group, std::string host, double steps, GpuWatch* gpu)
      : group_(std::move(group)), host_(std::move(host)), interval_(static_cast<int64_t>(steps)), gpu_(gpu) {}

  /// Ends a step. Collective at the end of an interval: every rank calls it after each step, with the
  /// `seconds` of the step, and the parts in which it waited for data and for other ranks.
  void step(double seconds, double data_seconds, double network_seconds);
  /// Returns whether the last step ended an interval.
  bool compared() const { return compared_; }
  const std::vector<Straggler>& found() const { return found_; }
  /// GPUs of all ranks in the last interval; empty for CPU ranks.
  const std::vector<RankGpu>& gpus() const { return gpus_; }
  /// Lines for the log: stragglers that were not known in the interval before, and those that are over.
  std::vector<std::string> notes();

 private:
  const std::unique_ptr<Communicator> group_;
  const std::unique_ptr<Stream> stream_ = make_inline_stream("stragglers");
  const std::string host_;
  const int64_t interval_;
  GpuWatch* const gpu_;
  bool begun_ = false, compared_ = false;
  int64_t steps_ = 0;
  double own_ = 0, data_ = 0, cpu_ = 0, cpu_before_ = 0;
  double slowest_own_ = 0, slowest_data_ = 0, slowest_cpu_ = 0;
  std::vector<std::string> hosts_, notes_;
  std::vector<Straggler> found_;
  std::vector<RankGpu> gpus_;
};

}  // namespace ltrain
