#include "parallel/pipeline/schedule_csv.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"

namespace ltrain::pipeline {
namespace {

constexpr int kMaxNumber = 1 << 20;  // limit of stages, and of micro-batches
constexpr size_t kMaxRanks = 1 << 16;

const char* const kPassedOver[] = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                   "UNSHARD", "RESHARD", "REDUCE_GRAD"};

std::string_view trimmed(std::string_view s) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

/// A cell of an untrusted file in short, printable form.
std::string shown(std::string_view cell) {
  std::string s;
  for (char c : cell.substr(0, 40)) s += c >= 0x20 && c < 0x7f ? c : '?';
  return cell.size() > 40 ? s + "..." : s;
}

/// Removes and returns the number at the front of `s`; -1: none, or too large.
int take_number(std::string_view& s) {
  int v = -1;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
  if (s.empty() || s[0] == '-' || error != std::errc() || v > kMaxNumber) return -1;
  s.remove_prefix(static_cast<size_t>(end - s.data()));
  return v;
}

class Reader {
 public:
  explicit Reader(const std::string& source) : source_(source) { schedule_.name = source; }

  void row(std::string_view line) {
    ++line_;
    if (trimmed(line).empty()) {
      blank_ = blank_ ? blank_ : line_;
      return;
    }
    if (blank_) fail(ExitCode::usage, "{}:{}: an empty line; every rank has a line", source_, blank_);
    if (schedule_.order.size() == kMaxRanks)
      fail(ExitCode::usage, "{}:{}: more than {} ranks", source_, line_, kMaxRanks);
    schedule_.order.emplace_back();
    cell_ = 0;
    for (size_t at = 0; at <= line.size();) {
      const size_t comma = std::min(line.find(',', at), line.size());
      std::string_view cell = trimmed(line.substr(at, comma - at));
      ++cell_;
      if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"')
        cell = trimmed(cell.substr(1, cell.size() - 2));
      if (!cell.empty()) read_cell(cell);
      at = comma + 1;
    }
  }

  Schedule finish(std::vector<std::string>* notes) {
    Schedule& s = schedule_;
    if (s.order.empty()) fail(ExitCode::usage, "{}: has no line; every rank has one", source_);
    s.ranks = static_cast<int>(s.order.size());
    s.micros = most_micro_ + 1;
    const int64_t stages = int64_t{most_stage_} + 1;
    if (actions_ == 0) fail(ExitCode::usage, "{}: has no action", source_);
    // Checked before anything of that size is allocated.
    if (2 * stages * s.micros > actions_)
      fail(ExitCode::usage,
           "{}: names {} stages and {} micro-batches, which take at least {} actions, and has {}", source_,
           stages, s.micros, 2 * stages * s.micros, actions_);
    if (stages % s.ranks != 0)
      fail(ExitCode::usage, "{}: {} stages do not spread evenly over its {} lines, one for each rank",
           source_, stages, s.ranks);
    s.chunks = static_cast<int>(stages / s.ranks);
    s.rank_of_stage.assign(static_cast<size_t>(stages), -1);
    for (int r = 0; r < s.ranks; ++r)
      for (const Action& a : s.order[r])
        if (a.kind == ActionKind::forward && s.rank_of_stage[a.stage] < 0) s.rank_of_stage[a.stage] = r;
    for (int64_t stage = 0; stage < stages; ++stage)
      if (s.rank_of_stage[stage] < 0)
        fail(ExitCode::usage, "{}: no line runs stage {} forward, and the last stage is {}", source_, stage,
             most_stage_);
    check(s, source_);
    if (notes)
      for (const auto& [word, n] : passed_over_)
        notes->push_back(
            fmt::format("{}: {} {} passed over: transfers follow from the order of the computation, "
                        "sharding from parallel.zero_stage",
                        source_, n, word));
    return std::move(s);
  }

 private:
  [[noreturn]] void wrong(std::string_view cell, const std::string& rule) {
    fail(ExitCode::usage, "{}:{}: cell {}, {}: {}", source_, line_, cell_, shown(cell), rule);
  }

  void read_cell(std::string_view cell) {
    if (cell.front() != '(') return read_action(cell, cell, true);
    const size_t close = cell.find(')');
    if (close == std::string_view::npos || cell.substr(close + 1) != "OVERLAP_F_B")
      wrong(cell, "a pair is written (0F4;7B1)OVERLAP_F_B");
    std::string_view inside = cell.substr(1, close - 1);
    const size_t semicolon = inside.find(';');
    if (semicolon == std::string_view::npos || inside.find(';', semicolon + 1) != std::string_view::npos)
      wrong(cell, "a pair has two actions: (0F4;7B1)OVERLAP_F_B");
    read_action(cell, trimmed(inside.substr(0, semicolon)), false);
    schedule_.order.back().back().with_next = true;
    read_action(cell, trimmed(inside.substr(semicolon + 1)), false);
  }

  void read_action(std::string_view cell, std::string_view text, bool may_be_passed_over) {
    const char* const form =
        "an action is STAGE KIND MICRO-BATCH without blanks, such as 0F3; the kinds are F, B, I, W";
    std::string_view rest = text;
    const int stage = take_number(rest);
    const size_t word_size = std::min(rest.find_first_of("0123456789"), rest.size());
    const std::string_view word = rest.substr(0, word_size);
    rest.remove_prefix(word_size);
    if (stage < 0) wrong(cell, form);
    if (may_be_passed_over)
      for (const char* known : kPassedOver)
        if (word == known) {
          if (!rest.empty() && (take_number(rest) < 0 || !rest.empty())) wrong(cell, form);
          ++passed_over_[known];
          return;
        }
    const size_t kind = std::string_view("FBIW").find(word.size() == 1 ? word[0] : ' ');
    if (kind == std::string_view::npos) {
      if (word == "BW") wrong(cell, "a whole backward is B");
      wrong(cell, form);
    }
    const int micro = take_number(rest);
    if (micro < 0 || !rest.empty()) wrong(cell, form);
    schedule_.order.back().push_back({static_cast<ActionKind>(kind), stage, micro});
    most_stage_ = std::max(most_stage_, stage);
    most_micro_ = std::max(most_micro_, micro);
    ++actions_;
  }

  const std::string& source_;
  Schedule schedule_;
  int line_ = 0, cell_ = 0, blank_ = 0;
  int most_stage_ = -1, most_micro_ = -1;
  int64_t actions_ = 0;
  std::map<std::string, int64_t> passed_over_;
};

}  // namespace

Schedule read_schedule_csv(std::string_view text, const std::string& source,
                           std::vector<std::string>* notes) {
  Reader reader(source);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    reader.row(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return reader.finish(notes);
}

std::string write_schedule_csv(const Schedule& schedule) {
  std::string out;
  for (const auto& order : schedule.order) {
    for (size_t i = 0; i < order.size(); i += static_cast<size_t>(actions_at(order, i))) {
      if (i > 0) out += ',';
      out += order[i].with_next
                 ? fmt::format("({};{})OVERLAP_F_B", to_string(order[i]), to_string(order[i + 1]))
                 : to_string(order[i]);
    }
    out += '\n';
  }
  return out;
}

}  // namespace ltrain::pipeline
