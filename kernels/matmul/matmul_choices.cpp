#include "kernels/matmul/matmul_choices.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace {

constexpr const char* kFirstLine = "ltrain matmul choices 1";
constexpr size_t kMostBytes = 8 << 20, kMostName = 200;

bool is_name(std::string_view s) {
  if (s.empty() || s.size() > kMostName) return false;
  for (char c : s)
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_' && c != '-') return false;
  return true;
}

template <class T>
bool read_number(std::string_view s, T& to, int base = 10) {
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), to, base);
  return error == std::errc() && end == s.data() + s.size();
}

/// Reads a line: product, id, microseconds, bytes of the algorithm.
bool read_line(const std::string& line, std::string& product, MatmulChoice& c) {
  std::istringstream in(line);
  std::string id, time, bytes, more;
  if (!(in >> product >> id >> time >> bytes) || in >> more) return false;
  if (!is_name(product) || !read_number(id, c.id) || c.id < 0 || bytes.size() != 128) return false;
  char* end = nullptr;
  c.microseconds = std::strtod(time.c_str(), &end);
  if (*end != 0 || !std::isfinite(c.microseconds) || c.microseconds < 0) return false;
  for (size_t i = 0; i < c.algorithm.size(); ++i)
    if (!read_number(std::string_view(bytes).substr(16 * i, 16), c.algorithm[i], 16)) return false;
  return true;
}

}  // namespace

MatmulChoices::MatmulChoices(const std::string& folder, std::string card) : card_(std::move(card)) {
  LT_CHECK(card_.find('\n') == std::string::npos, "expected the name of a card in one line, got {}", card_);
  if (folder.empty()) return;
  path_ = fmt::format("{}/matmul-{:016x}.txt", folder, hash_name(card_));
  read();
}

void MatmulChoices::read() {
  std::ifstream in(path_, std::ios::binary);
  if (!in) return;  // nothing measured yet
  std::string text(kMostBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  Choices found;
  std::string wrong =
      text.size() > kMostBytes ? fmt::format("more than {} bytes", kMostBytes) : parse(text, found);
  if (!wrong.empty()) {
    note_ = fmt::format("{}: {}: nothing of it is used, and it is written anew", path_, wrong);
    return;
  }
  for (auto& [product, choice] : found) choices_.try_emplace(product, choice);
}

std::string MatmulChoices::parse(const std::string& text, Choices& to) const {
  const size_t last = text.rfind("sum ");
  uint64_t sum = 0;
  if (last == std::string::npos || text.size() != last + 21 || text.back() != '\n' ||
      !read_number(std::string_view(text).substr(last + 4, 16), sum, 16))
    return "no sum at its end";
  if (sum != hash_name(std::string_view(text).substr(0, last))) return "its sum is another";
  std::istringstream in(text.substr(0, last));
  std::string line;
  if (!std::getline(in, line) || line != kFirstLine) return fmt::format("line 1 is not `{}`", kFirstLine);
  if (!std::getline(in, line) || line != card_)
    return fmt::format("line 2 names another card than {}", card_);
  for (int number = 3; std::getline(in, line); ++number) {
    std::string product;
    MatmulChoice choice;
    if (!read_line(line, product, choice)) return fmt::format("line {} is no choice", number);
    to[product] = choice;
  }
  return "";
}

const MatmulChoice* MatmulChoices::find(const std::string& product) const {
  const auto at = choices_.find(product);
  return at == choices_.end() ? nullptr : &at->second;
}

void MatmulChoices::add(const std::string& product, const MatmulChoice& choice) {
  LT_CHECK(is_name(product), "expected a matmul name of letters, digits, _ and -, got {}", product);
  choices_[product] = choice;
  if (path_.empty()) return;
  read();  // adds choices of other processes; ours take precedence
  std::string text = fmt::format("{}\n{}\n", kFirstLine, card_);
  for (const auto& [name, c] : choices_) {
    text += fmt::format("{} {} {:.3f} ", name, c.id, c.microseconds);
    for (uint64_t word : c.algorithm) text += fmt::format("{:016x}", word);
    text += '\n';
  }
  text += fmt::format("sum {:016x}\n", hash_name(text));
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  const std::string next = fmt::format("{}.{}", path_, ::getpid());
  std::ofstream out(next, std::ios::binary);
  out << text;
  out.close();
  if (out) std::filesystem::rename(next, path_, error);
  if (!out || error) {
    note_ = fmt::format("{}: cannot be written: products are measured again in the next run", path_);
    std::filesystem::remove(next, error);
  }
}

bool measure_matmuls() {
  const char* given = std::getenv("LTRAIN_MATMUL_ALGORITHMS");
  const std::string_view how = given && *given ? given : "heuristic";
  if (how != "heuristic" && how != "measured")
    fail(ExitCode::usage, "LTRAIN_MATMUL_ALGORITHMS = {}: must be heuristic or measured", how);
  return how == "measured";
}

}  // namespace ltrain
