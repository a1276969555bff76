#include "runtime/tokenizer/bpe_merges_file.h"

#include <charconv>
#include <unordered_map>

#include "base/error.h"
#include "runtime/files/file.h"

namespace ltrain::data {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr size_t kMaxTokens = size_t{1} << 22;

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

/// Contents of a line for messages, without control characters.
std::string shown(std::string_view text) {
  std::string s;
  for (char c : text.substr(0, 40)) s += c >= 32 && c < 127 ? c : '?';
  return text.size() > 40 ? s + "..." : s;
}

}  // namespace

bool decode_base64(std::string_view text, std::string& out) {
  out.clear();
  if (text.size() % 4 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const int padding = last ? (text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=') : 0;
    uint32_t bits = 0;
    for (int k = 0; k < 4; ++k) {
      const int digit = k >= 4 - padding ? 0 : base64_digit(text[i + k]);
      if (digit < 0) return false;
      bits = bits << 6 | static_cast<uint32_t>(digit);
    }
    if ((padding == 1 && (bits & 0xFFu)) || (padding == 2 && (bits & 0xFFFFu)))
      return false;  // nonzero unused bits
    for (int k = 0; k < 3 - padding; ++k) out += static_cast<char>(bits >> (16 - 8 * k));
  }
  return true;
}

std::vector<std::string> parse_ranks(std::string_view text, const std::string& name) {
  std::vector<std::string> tokens;
  std::vector<int64_t> line_of;  // 0: the rank has not appeared yet
  std::unordered_map<std::string, int64_t> seen;
  int64_t line_number = 0;
  std::string bytes;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos)
      fail(ExitCode::data, "{}:{}: \"{}\": a line is a token in base64, a space and its rank", name,
           line_number, shown(line));
    const std::string_view base64 = line.substr(0, space), number = line.substr(space + 1);
    if (base64.empty() || !decode_base64(base64, bytes))
      fail(ExitCode::data, "{}:{}: \"{}\" is not base64", name, line_number, shown(base64));
    size_t rank = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() || rank >= kMaxTokens)
      fail(ExitCode::data, "{}:{}: rank \"{}\" is not a whole number below {}", name, line_number,
           shown(number), kMaxTokens);
    if (rank >= tokens.size()) {
      tokens.resize(rank + 1);
      line_of.resize(rank + 1);
    }
    if (line_of[rank] != 0)
      fail(ExitCode::data, "{}:{}: rank {} again; line {} has it", name, line_number, rank, line_of[rank]);
    const auto [other, fresh] = seen.emplace(bytes, line_number);
    if (!fresh)
      fail(ExitCode::data, "{}:{}: token {} again; line {} has it", name, line_number, shown(base64),
           other->second);
    tokens[rank] = bytes;
    line_of[rank] = line_number;
  }
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    if (line_of[rank] == 0)
      fail(ExitCode::data,
           "{}: rank {} is missing; {} lines need the ranks 0 to {}. The file is truncated, or not a GPT-2 "
           "rank file",
           name, rank, seen.size(), seen.size() - 1);
  for (int b = 0; b < 256; ++b)
    if (!seen.contains(std::string(1, static_cast<char>(b))))
      fail(ExitCode::data,
           "{}: no token is the single byte {}; all 256 must be there, or some text has no ids", name, b);
  return tokens;
}

std::vector<std::string> read_rank_file(const std::string& path) {
  InputFile file(path);
  if (file.size() > kMaxFileBytes)
    fail(ExitCode::data, "{}: {} bytes; a rank file has at most {}", path, file.size(), kMaxFileBytes);
  std::string text(file.size(), '\0');
  file.read(text.data(), 0, file.size());
  return parse_ranks(text, path);
}

}  // namespace ltrain::data
