#include "runtime/telemetry/gpu_watch.h"

#include <fmt/ranges.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/nvml.h"

namespace ltrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBegins = 3, kEnds = 30;  // readings in a row, so that a clock that flutters is told rarely
constexpr auto kPatience = std::chrono::seconds(2);

/// Sensors of NVML. Call it on the thread that will read.
GpuWatch::Sensors open_nvml(const std::string& bus_id) {
  return [sensors = std::make_shared<cuda::GpuSensors>(bus_id)](std::vector<std::string>& refusals) {
    const GpuReading r = sensors->read();
    refusals = sensors->refusals();
    return r;
  };
}

}  // namespace

std::vector<std::string> GpuAlarm::add(const std::string& who, const GpuReading& r) {
  std::vector<std::string> notes;
  // Under load a GPU is at its power cap much of the time, and nobody can act on that.
  GpuReading acted = r;
  if (acted.throttle_reasons)
    acted.throttle_reasons = throttle_bits(r) & (kThermal | kPowerBrake | kHardwareSlowdown);
  const std::string reason = throttle_text(acted);
  with_ = reason.empty() ? 0 : with_ + 1, without_ = reason.empty() ? without_ + 1 : 0;
  if (reason_.empty() && with_ >= kBegins) {
    reason_ = reason;
    const std::string clock = r.sm_clock_mhz ? fmt::format(", SM clock {:.0f} MHz", *r.sm_clock_mhz) : "";
    const std::string heat = r.temperature_c ? fmt::format(", {:.0f} C", *r.temperature_c) : "";
    notes.push_back(fmt::format("warning: the GPU of {} is throttled by {}{}{}", who, reason, clock, heat));
  } else if (!reason_.empty() && without_ >= kEnds) {
    notes.push_back(
        fmt::format("the GPU of {} is no longer throttled by {}", who, std::exchange(reason_, "")));
  }
  if (r.ecc_uncorrected) {
    if (!first_uncorrected_) first_uncorrected_ = r.ecc_uncorrected;
    if (*r.ecc_uncorrected > *first_uncorrected_) {
      notes.push_back(
          fmt::format("warning: the GPU of {} counts {:.0f} uncorrected ECC error{} more than before: steps "
                      "since then may "
                      "be wrong; going on from an earlier checkpoint on another GPU would help",
                      who, *r.ecc_uncorrected - *first_uncorrected_,
                      *r.ecc_uncorrected - *first_uncorrected_ == 1 ? "" : "s"));
      first_uncorrected_ = r.ecc_uncorrected;
    }
  }
  return notes;
}

struct GpuWatch::State {
  std::string who;
  double seconds = 1;
  std::thread thread;
  mutable std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex:
  bool stop = false, ended = false, now = false, begun = false;
  int64_t readings = 0;
  double reading_seconds = 0;
  GpuReading newest;
  GpuMean interval, run;
  std::optional<double> energy_at_begin;
  GpuAlarm alarm;
  std::vector<std::string> notes, refusals;

  void loop(const std::function<Sensors()>& open) {
    const Sensors sensors = open();
    for (std::unique_lock lock(mutex); !stop;) {
      now = false;
      lock.unlock();
      std::vector<std::string> refused;
      const auto begin = Clock::now();
      const GpuReading r = sensors(refused);
      const double took = std::chrono::duration<double>(Clock::now() - begin).count();
      lock.lock();
      add(r, took, refused);
      changed.notify_all();
      changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return stop || now; });
    }
    std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }

  void add(const GpuReading& r, double took, const std::vector<std::string>& refused) {
    ++readings, reading_seconds += took;
    newest = r;
    if (begun && !energy_at_begin) energy_at_begin = r.energy_j;  // NVML was slow to open
    interval.add(r), run.add(r);
    for (std::string& note : alarm.add(who, r)) notes.push_back(std::move(note));
    if (!refused.empty())
      refusals.push_back(fmt::format("metrics lack what NVML does not give for the GPU of {}: {}", who,
                                     fmt::join(refused, ", ")));
  }
};

GpuWatch::~GpuWatch() {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  // A driver in trouble may never answer: the end of the run does not wait for it.
  const bool ended = state_->changed.wait_for(lock, kPatience, [&] { return state_->ended; });
  lock.unlock();
  if (ended)
    state_->thread.join();
  else
    state_->thread.detach();
}

void GpuWatch::start(const std::string& bus_id, const std::string& who, double seconds) {
  if (!bus_id.empty()) start([bus_id] { return open_nvml(bus_id); }, who, seconds);
}

void GpuWatch::start(std::function<Sensors()> open, const std::string& who, double seconds) {
  state_ = std::make_shared<State>();
  state_->who = who, state_->seconds = seconds;
  state_->thread = std::thread([s = state_, open = std::move(open)] { s->loop(open); });
}

void GpuWatch::read_now() const {
  std::unique_lock lock(state_->mutex);
  const int64_t before = state_->readings;
  state_->now = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [&] { return state_->readings > before; });
}

void GpuWatch::begin_run() {
  if (!state_) return;
  read_now();
  std::lock_guard lock(state_->mutex);
  state_->run = {}, state_->begun = true;
  state_->energy_at_begin = state_->newest.energy_j;
}

GpuReading GpuWatch::newest() const {
  if (!state_) return {};
  std::lock_guard lock(state_->mutex);
  return state_->newest;
}

GpuReading GpuWatch::take_mean() {
  if (!state_) return {};
  std::lock_guard lock(state_->mutex);
  const GpuMean taken = std::exchange(state_->interval, {});
  return taken.readings() > 0 ? taken.mean() : state_->newest;
}

GpuReading GpuWatch::run() {
  if (!state_) return {};
  read_now();
  std::lock_guard lock(state_->mutex);
  GpuReading r = state_->run.mean();
  if (!state_->energy_at_begin) r.energy_j.reset();
  if (r.energy_j) *r.energy_j -= *state_->energy_at_begin;
  return r;
}

std::vector<std::string> GpuWatch::notes() {
  if (!state_) return {};
  std::lock_guard lock(state_->mutex);
  return std::exchange(state_->notes, {});
}

std::vector<std::string> GpuWatch::refusals() {
  if (!state_) return {};
  std::lock_guard lock(state_->mutex);
  return std::exchange(state_->refusals, {});
}

int64_t GpuWatch::readings() const {
  if (!state_) return 0;
  std::lock_guard lock(state_->mutex);
  return state_->readings;
}

double GpuWatch::reading_seconds() const {
  if (!state_) return 0;
  std::lock_guard lock(state_->mutex);
  return state_->reading_seconds;
}

}  // namespace ltrain
