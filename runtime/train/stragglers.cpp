#include "runtime/train/stragglers.h"

#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "parallel/comm/host_collectives.h"

namespace ltrain {
namespace {

constexpr double kSlow = 1.5;                 // times the median
constexpr int64_t kLeastMicroseconds = 2000;  // a step: less is noise of the system
constexpr double kLowClock = 0.95;            // times the median SM clock
constexpr double kMain = 0.5;                 // part of the excess that a reason must explain

double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// The lower median, so that of two ranks the faster one counts.
int64_t median_of(std::vector<int64_t> values) {
  const size_t middle = (values.size() - 1) / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  return values[middle];
}

/// Median SM clock; 0 if a rank's is unknown.
double median_clock(const std::vector<GpuReading>& gpus) {
  std::vector<int64_t> clocks;
  for (const GpuReading& g : gpus) {
    if (!g.sm_clock_mhz) return 0;
    clocks.push_back(static_cast<int64_t>(*g.sm_clock_mhz));
  }
  if (clocks.empty()) return 0;
  const size_t middle = clocks.size() / 2;  // the upper one: of two ranks the faster one counts
  std::nth_element(clocks.begin(), clocks.begin() + static_cast<std::ptrdiff_t>(middle), clocks.end());
  return static_cast<double>(clocks[middle]);
}

/// Reason of a rank whose own work takes longer.
std::string compute_reason(const GpuReading& gpu, double median_clock_mhz) {
  if (!gpu.sm_clock_mhz || *gpu.sm_clock_mhz >= kLowClock * median_clock_mhz) return "compute";
  const unsigned bits = throttle_bits(gpu);
  return bits & kThermal ? "temperature" : bits & (kPowerCap | kPowerBrake) ? "power" : "clock";
}

std::string reason_text(const Straggler& s) {
  if (s.reason == "data") return fmt::format("it waits {:.1f} ms for its data", s.reason_ms);
  if (s.reason == "stalled")
    return fmt::format(
        "its process does not run for {:.1f} ms: it is stopped, sleeps, or other processes have its cores",
        s.reason_ms);
  if (s.reason == "compute") return "its own work takes longer";
  const std::string why = throttle_text(s.gpu);
  return fmt::format("its GPU {}: SM clock {:.0f} MHz, the median is {:.0f} MHz{}",
                     why.empty() ? "has a low clock" : "is throttled by " + why,
                     s.gpu.sm_clock_mhz.value_or(0), s.median_clock_mhz,
                     s.gpu.temperature_c ? fmt::format("; {:.0f} C", *s.gpu.temperature_c) : "");
}

}  // namespace

std::string straggler_text(const Straggler& s) {
  return fmt::format(
      "straggler: rank {} on host {}: {:.1f} ms a step of its own, the median of the ranks is {:.1f} ms; {}",
      s.rank, s.host, s.own_ms, s.median_ms, reason_text(s));
}

std::vector<Straggler> find_stragglers(const std::vector<RankTimes>& times,
                                       const std::vector<GpuReading>& gpus) {
  std::vector<Straggler> found;
  if (times.size() < 2) return found;
  std::vector<int64_t> own, data;
  for (const RankTimes& t : times) own.push_back(t.own), data.push_back(t.data);
  const int64_t median = median_of(own), median_data = median_of(data);
  const double clock = median_clock(gpus);
  for (size_t rank = 0; rank < times.size(); ++rank) {
    const RankTimes& t = times[rank];
    const int64_t excess = t.own - median;
    if (excess < kLeastMicroseconds || static_cast<double>(t.own) <= kSlow * static_cast<double>(median))
      continue;
    Straggler s;
    s.rank = static_cast<int>(rank);
    s.own_ms = 1e-3 * static_cast<double>(t.own), s.median_ms = 1e-3 * static_cast<double>(median);
    if (!gpus.empty()) s.gpu = gpus[rank], s.median_clock_mhz = clock;
    // A rank that computes has at least one processor's time. Threads that wait spin, so a large processor
    // time says nothing.
    const int64_t asleep = t.cpu < 0 ? 0 : t.own - t.data - t.cpu;
    const double enough = kMain * static_cast<double>(excess);
    if (static_cast<double>(t.data - median_data) > enough)
      s.reason = "data", s.reason_ms = 1e-3 * static_cast<double>(t.data);
    else if (static_cast<double>(asleep) > enough)
      s.reason = "stalled", s.reason_ms = 1e-3 * static_cast<double>(asleep);
    else
      s.reason = compute_reason(s.gpu, clock), s.reason_ms = s.own_ms;
    found.push_back(std::move(s));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Straggler& a, const Straggler& b) { return a.own_ms > b.own_ms; });
  return found;
}

double straggler_steps() {
  constexpr int64_t kUsual = 50, kMost = 1000000;
  const char* given = std::getenv("LTRAIN_STRAGGLER_STEPS");
  if (!given) return kUsual;
  const std::string_view text = given;
  int64_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0 || steps > kMost)
    fail(ExitCode::usage, "LTRAIN_STRAGGLER_STEPS=\"{}\": expected a whole number from 0 to {}",
         printable(given), kMost);
  return static_cast<double>(steps);
}

void StragglerWatch::step(double seconds, double data_seconds, double network_seconds) {
  compared_ = false;
  if (interval_ == 0 || group_->size() < 2) return;
  const double cpu_now = processor_seconds(), cpu = cpu_now - std::exchange(cpu_before_, cpu_now);
  if (!std::exchange(begun_, true)) return;
  const double own = std::max(0.0, seconds - network_seconds);
  own_ += own, data_ += data_seconds, cpu_ += cpu;
  if (own >= slowest_own_) slowest_own_ = own, slowest_data_ = data_seconds, slowest_cpu_ = cpu;
  if (++steps_ < interval_) return;
  const double each = 1e6 / static_cast<double>(std::max<int64_t>(1, steps_ - 1));
  const auto mean = [&](double sum, double slowest) {
    return static_cast<int64_t>((steps_ == 1 ? sum : std::max(0.0, sum - slowest)) * each);
  };
  const std::vector<int64_t> all = gather_numbers(
      *group_, *stream_,
      {mean(own_, slowest_own_), mean(data_, slowest_data_), gpu_ ? -1 : mean(cpu_, slowest_cpu_)});
  if (hosts_.empty()) hosts_ = gather_texts(*group_, *stream_, host_);
  std::vector<RankTimes> times;
  for (size_t i = 0; i + 2 < all.size(); i += 3) times.push_back({all[i], all[i + 1], all[i + 2]});
  std::vector<GpuReading> readings;
  if (gpu_) readings = gather_readings(*group_, *stream_, gpu_->take_mean());
  gpus_.clear();
  for (size_t i = 0; i < readings.size(); ++i)
    gpus_.push_back({static_cast<int>(i), hosts_.at(i), readings[i]});
  std::set<std::pair<int, std::string>> before, now;
  for (const Straggler& s : found_) before.emplace(s.rank, s.reason);
  const std::vector<Straggler> old = std::exchange(found_, find_stragglers(times, readings));
  for (Straggler& s : found_) {
    s.host = hosts_.at(static_cast<size_t>(s.rank));
    now.emplace(s.rank, "");
    if (!before.contains({s.rank, s.reason})) notes_.push_back(straggler_text(s));
  }
  for (const Straggler& s : old)
    if (!now.contains({s.rank, ""}))
      notes_.push_back(
          fmt::format("straggler: rank {} on host {} is as fast as the others again", s.rank, s.host));
  own_ = data_ = cpu_ = slowest_own_ = slowest_data_ = slowest_cpu_ = 0;
  steps_ = 0, compared_ = true;
}

std::vector<std::string> StragglerWatch::notes() { return std::exchange(notes_, {}); }

}  // namespace ltrain
