#include "runtime/telemetry/exposed.h"

#include <algorithm>
#include <map>

namespace ltrain {

std::string comm_axis(AxisSet axes) {
  if (!axes.bits) return "";
  // Gradient groups span data and context, and the world spans all axes, so the widest meaning wins. Experts
  // are sharded over axes that count as data for other tensors, and their groups never span the data axis
  // itself.
  if (axes.has(Axis::data) || axes.has(Axis::replica)) return "dp";
  if (axes.has(Axis::expert)) return "ep";
  if (axes.has(Axis::pipeline)) return "pp";
  if (axes.has(Axis::context)) return "cp";
  return "tp";
}

double exposed_ms(const std::vector<std::pair<std::string, double>>& exposed, const std::string& axis) {
  for (const auto& [name, seconds] : exposed)
    if (name == axis) return 1e3 * seconds;
  return 0;
}

double total_of(const std::vector<std::pair<std::string, double>>& exposed) {
  double seconds = 0;
  for (const auto& [axis, s] : exposed)
    if (!axis.empty()) seconds += s;
  return seconds;
}

std::vector<std::pair<std::string, double>> exposed_by_axis(const Stream::Waits& now,
                                                            const Stream::Waits& before) {
  std::map<std::string, double> sums;
  for (const auto& [axes, seconds] : now) {
    const auto earlier = before.find(axes);
    sums[comm_axis(axes)] += seconds - (earlier == before.end() ? 0 : earlier->second);
  }
  std::vector<std::pair<std::string, double>> out(sums.begin(), sums.end());
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

}  // namespace ltrain
