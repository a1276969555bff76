#include "parallel/comm/rank_texts.h"

#include <fmt/format.h>

#include <map>

namespace ltrain {

std::string error_text(const Error& error) {
  return error_text(fmt::format("{} {}", static_cast<int>(error.code()), error.what()));
}

void throw_error(const std::string& text) {
  const std::string rest = rest_of(text);
  throw Error(static_cast<ExitCode>(std::stoi(rest)), rest_of(rest));
}

std::string join_errors(const std::vector<std::string>& texts) {
  std::string all;
  std::map<std::string, std::vector<size_t>> who;
  for (size_t r = 0; r < texts.size(); ++r)
    if (!is_ok(texts[r])) who[rest_of(texts[r])].push_back(r);
  for (const auto& [error, ranks] : who)
    all += fmt::format("{}rank {}{}: {}", all.empty() ? "" : "; ", ranks[0],
                       ranks.size() > 1 ? fmt::format(" and {} more", ranks.size() - 1) : "", error);
  return all;
}

}  // namespace ltrain
