#include "runtime/launch/job_key.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "base/printable.h"

namespace ltrain {

JobKey::JobKey(std::string_view token, std::string_view settings)
    : job_(hmac_sha256(token, "job")),
      same_(hmac_sha256(token, std::string("recipe ").append(bytes_of(sha256(settings))))) {}

Digest JobKey::proof(Kinship of, std::string_view side, std::string_view client,
                     std::string_view server) const {
  return hmac_sha256(bytes_of(of == Kinship::same ? same_ : job_),
                     std::string(side).append(client).append(server));
}

std::string JobKey::proofs(std::string_view client, std::string_view server) const {
  return std::string(bytes_of(proof(Kinship::same, "rank", client, server)))
      .append(bytes_of(proof(Kinship::other_recipe, "rank", client, server)));
}

Kinship JobKey::judge(std::string_view proofs, std::string_view client, std::string_view server) const {
  if (proofs.size() != kProofBytes) return Kinship::none;
  const auto shows = [&](std::string_view shown, Kinship of) {
    return equal_secrets(shown, bytes_of(proof(of, "rank", client, server)));
  };
  if (shows(proofs.substr(0, sizeof(Digest)), Kinship::same)) return Kinship::same;
  return shows(proofs.substr(sizeof(Digest)), Kinship::other_recipe) ? Kinship::other_recipe : Kinship::none;
}

std::string JobKey::answer(Kinship kinship, std::string_view client, std::string_view server) const {
  return std::string(1, static_cast<char>(kinship))
      .append(bytes_of(proof(kinship, "coordinator", client, server)));
}

Kinship JobKey::read_answer(std::string_view answer, std::string_view client, std::string_view server) const {
  if (answer.size() != kAnswerBytes) return Kinship::none;
  const Kinship claimed = static_cast<Kinship>(answer[0]);
  if (claimed != Kinship::same && claimed != Kinship::other_recipe) return Kinship::none;
  const Digest expected = proof(claimed, "coordinator", client, server);
  return equal_secrets(answer.substr(1), bytes_of(expected)) ? claimed : Kinship::none;
}

std::string settings_of_job(int ranks, std::string_view recipe) {
  return fmt::format("ranks: {}\n{}", ranks, recipe);
}

namespace {

/// "key: value" lines in order.
std::vector<std::pair<std::string, std::string>> lines_of(std::string_view settings) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!settings.empty()) {
    const size_t end = std::min(settings.find('\n'), settings.size());
    const std::string_view line = settings.substr(0, end);
    const size_t colon = std::min(line.find(": "), line.size());
    out.emplace_back(line.substr(0, colon), line.substr(std::min(colon + 2, line.size())));
    settings.remove_prefix(std::min(end + 1, settings.size()));
  }
  return out;
}

}  // namespace

std::string first_difference(std::string_view settings_a, std::string_view a, std::string_view settings_b,
                             std::string_view b) {
  constexpr size_t kShown = 200;  // bytes of a value
  const auto of_a = lines_of(settings_a), of_b = lines_of(settings_b);
  const std::map<std::string, std::string> in_a(of_a.begin(), of_a.end()), in_b(of_b.begin(), of_b.end());
  std::string first;
  int more = -1;
  const auto value = [&](const std::map<std::string, std::string>& in, const std::string& key) {
    const auto at = in.find(key);
    return at == in.end() ? std::string("not there") : printable(at->second, kShown);
  };
  const auto note = [&](const std::string& key) {
    if (more++ < 0)
      first = fmt::format("{}: {} on {}, {} on {}", printable(key, kShown), value(in_a, key), a,
                          value(in_b, key), b);
  };
  for (const auto& [key, text] : of_a)
    if (const auto at = in_b.find(key); at == in_b.end() || at->second != text) note(key);
  for (const auto& [key, text] : of_b)
    if (!in_a.contains(key)) note(key);
  if (more > 0)
    first += fmt::format("; {} more key{} differ{}", more, more == 1 ? "" : "s", more == 1 ? "s" : "");
  return first;
}

}  // namespace ltrain
