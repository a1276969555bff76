#include "runtime/telemetry/metrics_lines.h"

#include <utility>

#include "base/error.h"
#include "runtime/files/strict_json.h"

namespace ltrain {
namespace {

using nlohmann::json;

constexpr size_t kLineBytes = 64u << 20;  // more than the counts of any model need

}  // namespace

MetricsLines::MetricsLines(std::string path) : path_(std::move(path)), in_(path_, std::ios::binary) {
  if (!in_) fail(ExitCode::data, "{}: cannot be read", path_);
}

bool MetricsLines::next(json& object) {
  std::string text;
  if (!read(text)) return false;
  ++at_;
  std::string error;
  object = data::parse_strict(text, 8, error);
  if (!error.empty() && cut_off_) return false;
  if (!error.empty() || !object.is_object())
    wrong("is no JSON object, which metrics.jsonl has one of in each line" +
          (error.empty() ? "" : " (" + error + ")"));
  return true;
}

void MetricsLines::wrong(const std::string& what) const {
  fail(ExitCode::data, "{}:{}: {}", path_, at_, what);
}

std::optional<double> MetricsLines::number(const json& line, const char* key) const {
  const auto it = line.find(key);
  if (it == line.end() || it->is_null()) return std::nullopt;
  if (!it->is_number())
    wrong(fmt::format("{} is {}, and must be a number or null", key, it->dump().substr(0, 40)));
  return it->get<double>();
}

int64_t MetricsLines::whole_number(const json& line, const char* key) const {
  const auto it = line.find(key);
  if (it == line.end() || !it->is_number_integer() || it->get<int64_t>() < 0)
    wrong(fmt::format("{} is {}, and must be a whole number", key,
                      it == line.end() ? "absent" : it->dump().substr(0, 40)));
  return it->get<int64_t>();
}

/// Reads a line of bounded length.
bool MetricsLines::read(std::string& text) {
  for (int c; (c = in_.get()) != std::char_traits<char>::eof();) {
    if (c == '\n') return true;
    text.push_back(static_cast<char>(c));
    if (text.size() > kLineBytes) {
      ++at_;
      wrong(fmt::format("is longer than {} MiB, which no step takes", kLineBytes >> 20));
    }
  }
  cut_off_ = !text.empty();
  return cut_off_;
}

}  // namespace ltrain
