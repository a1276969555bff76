#include "runtime/launch/verdict.h"

#include <signal.h>

#include <map>
#include <set>

#include "runtime/launch/hostlist.h"

namespace ltrain {

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("signal {} (SIG{})", signal, name) : fmt::format("signal {}", signal);
}

std::string exit_code_text(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::done:
      return "exit code 0 (done)";
    case ExitCode::usage:
      return "exit code 64 (recipe, command line or a limit of the shell: change it, a restart does not "
             "help)";
    case ExitCode::data:
      return "exit code 65 (data: fix it, a restart does not help)";
    case ExitCode::internal:
      return "exit code 70 (internal error)";
    case ExitCode::rank_lost:
      return "exit code 71 (a rank died or hung: start again)";
    case ExitCode::storage:
      return "exit code 73 (a checkpoint could not be written or read)";
    case ExitCode::preempted:
      return "exit code 75 (stopped by request: start again)";
    case ExitCode::no_progress:
      return "exit code 76 (no progress: do not start again)";
    case ExitCode::does_not_fit:
      return "exit code 78 (needs more memory than there is: do not start again)";
  }
  return fmt::format("exit code {}", code);
}

namespace {

/// Connection errors are consequences. The first other failure is the cause.
int weight(const Failure& f) {
  if (f.kind == Failure::Kind::error && f.code == ExitCode::rank_lost) return 1;
  return 0;
}

std::string hosts(const std::vector<int>& list, const std::function<std::string(int)>& host) {
  std::set<std::string> names;
  for (int r : list) names.insert(host(r));
  std::string text;
  for (const auto& n : names) text += (text.empty() ? "host " : ", ") + n;
  return text;
}

}  // namespace

std::vector<std::string> Verdict::lines_after(bool text_was_shown) const {
  std::vector<std::string> out = lines;
  if (text_was_shown && !text.empty() && !out.empty() && out[0].ends_with(text))
    out[0].replace(out[0].size() - text.size(), text.size(), "its error is above");
  return out;
}

Verdict make_verdict(const std::vector<Failure>& failures, const std::function<std::string(int)>& host,
                     const std::function<std::string(int)>& where) {
  const Failure* root = nullptr;
  for (const Failure& f : failures)
    if (!root || weight(f) < weight(*root)) root = &f;
  Verdict v;
  v.failed = true;
  v.code = root->code;
  v.rank = root->rank;
  const std::string at = ", " + where(root->rank);
  if (root->kind == Failure::Kind::missing)
    v.lines.push_back("rendezvous failed: " + root->text);
  else if (root->kind == Failure::Kind::error)
    v.lines.push_back(fmt::format("rank {} on host {} failed{}: {}", root->rank, host(root->rank), at,
                                  v.text = root->text));
  else
    v.lines.push_back(fmt::format("rank {} on host {} {}{}", root->rank, host(root->rank), root->text,
                                  root->kind == Failure::Kind::overrun ? "" : at));
  // Equal texts are merged. Texts of lost connections differ in peers and ports, and all become one line.
  std::map<std::string, std::vector<int>> folded;
  std::vector<int> same;
  std::string example;
  for (const Failure& f : failures) {
    if (&f == root) continue;
    std::string text = f.text.substr(0, f.text.find('\n'));
    if (f.kind == root->kind && f.text == root->text) {
      same.push_back(f.rank);
      continue;
    }
    if (weight(f) == 1) {
      if (example.empty()) example = text;  // the first that arrived
      text = "lost their peers: " + text;
    }
    folded[text].push_back(f.rank);
  }
  if (!same.empty())
    v.lines.push_back(fmt::format("  the same on rank{} {} on {}", same.size() > 1 ? "s" : "",
                                  format_ranges(same), hosts(same, host)));
  std::vector<int> peers;
  for (auto& [text, list] : folded) {
    if (text.starts_with("lost their peers: ")) {
      peers.insert(peers.end(), list.begin(), list.end());
    } else {
      v.lines.push_back(fmt::format("  then rank{} {} on {}: {}", list.size() > 1 ? "s" : "",
                                    format_ranges(list), hosts(list, host), text));
    }
  }
  if (!peers.empty())
    v.lines.push_back(fmt::format("  consequence on rank{} {}: {}", peers.size() > 1 ? "s" : "",
                                  format_ranges(peers), example));
  return v;
}

}  // namespace ltrain
