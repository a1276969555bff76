#include "runtime/plan/matmul_peak.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/cpu_isa.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/matmul.h"
#include "kernels/tensor/arena.h"
#include "kernels/tensor/timeline.h"
#include "runtime/files/strict_json.h"
#include "runtime/plan/machine_profile.h"

namespace ltrain {
namespace {

using nlohmann::json;

/// One machine may run with several instruction sets, and a home folder may serve several machines.
std::string key_of(DType dtype, int threads, int ranks) {
  return fmt::format("{}/{}/{} threads/{} ranks/{}", cpu_model_name(), cpu_isa_name(), threads, ranks,
                     dtype_name(dtype));
}

json read_peaks(const std::string& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return json::object();
  std::ifstream in(file);
  std::string wrong;
  json j = data::parse_strict({std::istreambuf_iterator<char>(in), {}}, 2, wrong);
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
  // The largest is of the size of layers, 7 MiB of fp32 in all, gone before the arena; the smallest ones take
  // less than a slice of the scheduler's time, so that their best time is right on a busy machine too.
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
        best = std::max(best, 2.0 * static_cast<double>(n * n * n) / seconds);  // the first compiles it
    }
  return best;
}

double MatmulPeaks::find(DType dtype, int threads, int ranks) const {
  const json peaks = read_peaks(file_);
  const auto at = peaks.find(key_of(dtype, threads, ranks));
  const double flops = at != peaks.end() && at->is_number() ? at->get<double>() : 0;
  return flops > 0 && flops < 1e18 ? flops : 0;
}

void MatmulPeaks::keep(DType dtype, int threads, int ranks, double flops) const {
  json peaks = read_peaks(file_);
  json& at = peaks[key_of(dtype, threads, ranks)];
  at = std::max(flops, at.is_number() ? at.get<double>() : 0);
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

std::string matmul_peaks_path() {
  return (std::filesystem::path(default_profile_path()).parent_path() / "peaks.json").string();
}

}  // namespace ltrain
