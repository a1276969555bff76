#include "runtime/launch/verdict.h"

#include <signal.h>

#include <map>
#include <set>

#include "runtime/launch/environment/hostlist.h"

namespace ltrain {

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("signal {} (SIG{})", signal, name) : fmt::format("signal {}", signal);
}

namespace {

/// Connection errors are consequences. The first other failure is the cause.
int weight(const Failure& f) {
  if (f.kind == Failure::Kind::error && f.code == ExitCode::rank_lost) return 1;
  return 0;
}

/// Verdict::how of the cause. Numbers that differ from run to run (seconds, ports, last lines) are left out.
std::string how_it_ended(const Failure& f) {
  switch (f.kind) {
    case Failure::Kind::error:
      return f.code == ExitCode::rank_lost ? "a rank lost its peers"
                                           : "a rank failed: " + f.text.substr(0, f.text.find('\n'));
    case Failure::Kind::dead:
      return "a rank " + f.text.substr(0, f.text.find_first_of(":;\n"));
    case Failure::Kind::silent:
      return "a rank sent no heartbeat";
    case Failure::Kind::overrun:
      return "a rank hangs";
    case Failure::Kind::missing:
      return "a rank did not join";
  }
  return "";
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
  v.how = how_it_ended(*root);
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
