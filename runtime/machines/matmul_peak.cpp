#include "runtime/machines/matmul_peak.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/cpu_isa.h"
#include "base/json/json.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/matmul.h"
#include "kernels/tensor/arena.h"
#include "kernels/tensor/timeline.h"
#include "runtime/files/strict_json.h"
#include "runtime/machines/machine_profile.h"

namespace ltrain {
namespace {

using nlohmann::json;

/// One machine may use several instruction sets, and a home folder may serve several machines.
std::string key_of(DType dtype, int threads, int ranks) {
  return fmt::format("{}/{}/{} threads/{} ranks/{}", cpu_model_name(), cpu_isa_name(), threads, ranks,
                     dtype_name(dtype));
}

json read_peaks(const std::string& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return json::object();
  std::ifstream in(file);
  std::string wrong;
  json j = data::parse_strict({std::istreambuf_iterator<char>(in), {}}, 3, wrong);
  return j.is_object() ? j : json::object();
}

}  // namespace

std::string cpu_model_name() {
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

double measure_matmul_peak(DType dtype) {
  // The largest size is that of layers, 7 MiB of fp32 in total, freed before the arena is allocated. The
  // smallest take less than a scheduler time slice, so that their best time is right even on a busy machine.
  constexpr std::array<int64_t, 4> kSides{256, 384, 512, 768};
  constexpr double kSeconds = 0.25;
  const int64_t most = kSides.back();
  Arena arena(DeviceKind::cpu, 3 * (most * most * dtype_size(dtype) + 4096));
  const auto stream = make_inline_stream("peak");
  std::array<Tensor, 3> whole;
  for (Tensor& t : whole) {
    t = arena.allocate(MemoryKind::temporaries, "matrix", dtype, {most, most});
    fill_value(*stream, t, 0.5);
  }
  double best = 0;
  const double begin = steady_seconds();
  for (int turn = 0; turn < 2 || steady_seconds() - begin < kSeconds; ++turn)
    for (const int64_t n : kSides) {
      const auto square = [&](const Tensor& t) { return t.flat(0, {n, n}); };
      const double start = steady_seconds();
      matmul(*stream, square(whole[2]), square(whole[0]), square(whole[1]));
      const double seconds = std::max(1e-9, steady_seconds() - start);
      if (turn > 0)
        // The first call compiles it.
        best = std::max(best, 2.0 * static_cast<double>(n * n * n) / seconds);
    }
  return best;
}

MatmulPeaks::Kept MatmulPeaks::find(DType dtype, int threads, int ranks) const {
  const json peaks = read_peaks(file_);
  const auto at = peaks.find(key_of(dtype, threads, ranks));
  if (at == peaks.end()) return {};
  const json flops = at->is_object() ? at->value("flops", json()) : *at,
             measurements = at->is_object() ? at->value("measurements", json()) : json(1);
  Kept kept{flops.is_number() ? flops.get<double>() : 0,
            measurements.is_number_integer() ? measurements.get<int>() : 0};
  if (!(kept.flops > 0 && kept.flops < 1e18)) return {};
  return kept;
}

void MatmulPeaks::keep(DType dtype, int threads, int ranks, double flops) const {
  const Kept before = find(dtype, threads, ranks);
  write(dtype, threads, ranks, {std::max(flops, before.flops), before.measurements + 1});
}

void MatmulPeaks::exceeded(DType dtype, int threads, int ranks, double flops) const {
  write(dtype, threads, ranks, {std::max(flops, find(dtype, threads, ranks).flops), 0});
}

void MatmulPeaks::write(DType dtype, int threads, int ranks, const Kept& kept) const {
  json peaks = read_peaks(file_);
  peaks[key_of(dtype, threads, ranks)] = {{"flops", kept.flops}, {"measurements", kept.measurements}};
  std::error_code error;
  const std::filesystem::path path(file_);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  const std::string temporary = fmt::format("{}.{}.tmp", file_, ::getpid());
  std::ofstream out(temporary);
  out << peaks.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
  out.close();
  if (out) std::filesystem::rename(temporary, path, error);
  if (!out || error) std::filesystem::remove(temporary, error);
}

double PeakShare::of(double rate) {
  if (!(peak_ > 0)) return std::nan("");
  if (rate > peak_) {
    if (!exceeded_) before_ = peak_;
    exceeded_ = true;
    peak_ = rate;
  }
  return rate / peak_;
}

std::string PeakShare::note(int64_t step, bool benched) {
  if (!exceeded_ || said_) return "";
  said_ = true;
  return fmt::format(
      "step {}: computes {:.1f} % of the fastest matmul that was measured here, which was measured beside "
      "other work; MFU is a share of this step's rate from here on, and {}",
      step, 100 * peak_ / before_, benched ? "`ltrain bench` measures again" : "the next runs measure again");
}

std::string matmul_peaks_path() {
  return (std::filesystem::path(default_profile_path()).parent_path() / "peaks.json").string();
}

}  // namespace ltrain
