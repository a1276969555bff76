#include "app/data/shown_lengths.h"

#include <algorithm>
#include <cstdio>

#include "base/printable.h"

namespace ltrain::app {

void print_lengths(const data::LengthStats& lengths, const std::string& unit) {
  const auto n = [](int64_t v) { return static_cast<long long>(v); };
  std::printf("  lengths    %lld to %lld %s\n", n(lengths.shortest), n(lengths.longest), unit.c_str());
  int64_t most = 1;
  for (const int64_t count : lengths.buckets) most = std::max(most, count);
  for (size_t i = 0; i < lengths.buckets.size(); ++i) {
    if (lengths.buckets[i] == 0) continue;
    const int64_t low = i == 0 ? 0 : int64_t{1} << (i - 1), high = i == 0 ? 0 : (int64_t{1} << i) - 1;
    const std::string bar((lengths.buckets[i] * 30 + most - 1) / most, '#');
    std::printf("    %10lld - %-10lld %10lld %s\n", n(low), n(high), n(lengths.buckets[i]), bar.c_str());
  }
}

nlohmann::ordered_json histogram_json(const data::LengthStats& lengths, const std::string& counted) {
  auto histogram = nlohmann::ordered_json::array();
  for (size_t i = 0; i < lengths.buckets.size(); ++i)
    if (lengths.buckets[i] > 0)
      histogram.push_back({{"from", i == 0 ? 0 : int64_t{1} << (i - 1)}, {counted, lengths.buckets[i]}});
  return histogram;
}

std::string tokens_with_text(const data::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string all, line;
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string text;
    tokenizer.decode(&ids[i], 1, text, i == 0);
    const std::string token = fmt::format("{} \"{}\"", ids[i], printable(text));
    if (!line.empty() && line.size() + 2 + token.size() > 100) {
      all += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : "  ") + token;
  }
  return all + line;
}

}  // namespace ltrain::app
