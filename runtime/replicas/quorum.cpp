#include "runtime/replicas/quorum.h"

#include <algorithm>
#include <chrono>

#include "base/deadline.h"
#include "base/error.h"

namespace ltrain {
namespace {

constexpr auto kTick = std::chrono::milliseconds(20);

bool contains(const std::vector<int>& all, int replica) {
  return std::find(all.begin(), all.end(), replica) != all.end();
}

std::string numbers(const std::vector<int>& all) {
  std::string text = all.size() == 1 ? "replica " : "replicas ";
  for (size_t i = 0; i < all.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", all[i]);
  return text;
}

}  // namespace

bool Membership::has(int replica) const { return contains(members, replica); }
bool Membership::is_behind(int replica) const { return contains(behind, replica); }

std::string membership_text(const Membership& m, int replicas) {
  std::string text = fmt::format("{} of {} {} on after step {}", numbers(m.members), replicas,
                                 m.members.size() == 1 ? "goes" : "go", m.step);
  if (!m.behind.empty())
    text += fmt::format("; {} {} the state of replica {}", numbers(m.behind),
                        m.behind.size() == 1 ? "copies" : "copy", m.source);
  return text;
}

void Quorum::say(const std::string& text) const {
  if (o_.log) o_.log(text);
}

int64_t Quorum::arrive(int replica) {
  const Lock lock(mutex_);
  if (connections_.contains(replica)) drop(replica, "has come again");
  say(fmt::format("replica {} is there", replica));
  return connections_[replica] = ++arrivals_;
}

void Quorum::depart(int replica, int64_t connection) {
  const Lock lock(mutex_);
  const auto at = connections_.find(replica);
  if (at != connections_.end() && at->second == connection) drop(replica, "is gone");
}

void Quorum::drop(int replica, const std::string& why) {
  connections_.erase(replica);
  const bool voted = votes_.erase(replica) > 0;
  if (now_.has(replica) && !contains(lost_, replica)) {
    lost_.push_back(replica);
    say(fmt::format("replica {} {}{}", replica, why, voted ? " after its vote" : ""));
  }
  changed_.notify_all();
}

void Quorum::drop_silent_members() {
  if (votes_.empty() || steady_now() < after(o_.timeout_seconds, first_vote_)) return;
  for (const int member : std::vector<int>(now_.members))
    if (!contains(lost_, member) && !votes_.contains(member))
      drop(member, fmt::format("did not vote within {:g} s", o_.timeout_seconds));
}

bool Quorum::may_decide() const {
  if (done_) return true;
  bool goes_on = false;
  for (const int member : now_.members) {
    if (contains(lost_, member)) continue;
    if (!votes_.contains(member)) return false;
    goes_on = true;
  }
  const bool late = steady_now() >= after(o_.join_seconds, first_vote_);
  // Without a member that goes on, each replica may have the newest checkpoint.
  const int wanted = goes_on || late ? o_.least : o_.replicas;
  const auto stay = std::count_if(votes_.begin(), votes_.end(),
                                  [](const auto& v) { return v.second.after == AfterStep::stays; });
  // Replicas that leave get their answer with the others, or alone.
  return stay >= wanted || late || (stay == 0 && !votes_.empty());
}

void Quorum::decide() {
  Membership next;
  next.epoch = now_.epoch;
  const auto votes_for = [&](const Vote& v) { return v.epoch == now_.epoch && now_.has(v.replica); };
  bool asked = false, all = true;
  for (const auto& [replica, v] : votes_)
    if (votes_for(v)) asked = true, all = all && v.complete;
  next.counts = asked && all;
  for (const auto& [replica, v] : votes_) done_ |= next.counts && v.after == AfterStep::done;
  next.done = done_;
  next.step = -1;
  std::map<int, int64_t> steps;
  for (const auto& [replica, v] : votes_) {
    if (v.after != AfterStep::stays) continue;
    const int64_t step = v.step < 0 ? -1 : v.step + (next.counts && votes_for(v) ? 1 : 0);
    steps[replica] = step;
    next.members.push_back(replica);
    if (step > next.step) next.step = step, next.source = replica;
  }
  for (const auto& [replica, step] : steps)
    if (step != next.step) next.behind.push_back(replica);
  failure_.clear();
  if (!next.members.empty() && static_cast<int>(next.members.size()) < o_.least)
    failure_ = fmt::format("{} of the {} replicas that a step needs (replicas.min) came within {:g} s",
                           next.members.size(), o_.least, o_.join_seconds);
  else if (!next.members.empty() && next.step < 0)
    failure_ = "no replica is left whose state is complete: go on from a checkpoint";
  begin_epoch(std::move(next));
}

void Quorum::begin_epoch(Membership next) {
  if (next.members != now_.members || !next.behind.empty() || !next.counts || !lost_.empty()) {
    next.epoch = now_.epoch + 1;
    values_.clear();
    if (!next.members.empty() && failure_.empty()) say(membership_text(next, o_.replicas));
  }
  now_ = std::move(next);
  if (!failure_.empty()) say(failure_), now_.members.clear();
  lost_.clear();
  votes_.clear();
  ++decisions_;
  changed_.notify_all();
}

Membership Quorum::vote(const Vote& vote, int64_t connection, const std::function<bool()>& alive) {
  Lock lock(mutex_);
  const auto mine = [&] {
    const auto at = connections_.find(vote.replica);
    return at != connections_.end() && at->second == connection;
  };
  if (connections_.contains(vote.replica) && !mine())
    fail(ExitCode::rank_lost, "another process has taken the place of replica {}", vote.replica);
  connections_[vote.replica] = connection;  // again, if it was silent and taken for lost: it then joins anew
  const bool votes = vote.epoch == now_.epoch && now_.has(vote.replica);
  if (votes_.empty()) first_vote_ = steady_now();
  votes_[vote.replica] = vote;
  const int64_t before = decisions_;
  while (decisions_ == before) {
    drop_silent_members();
    if (may_decide()) {
      decide();
      break;
    }
    changed_.wait_for(lock, kTick);
    if (decisions_ != before) break;
    if (!alive() || !mine())
      fail(ExitCode::rank_lost, "the connection of replica {} has ended", vote.replica);
  }
  if (!failure_.empty()) fail(ExitCode::rank_lost, "{}", failure_);
  Membership answer = now_;
  answer.counts = answer.counts && votes;
  return answer;
}

void Quorum::set(int64_t epoch, const std::string& key, const std::string& value) {
  const Lock lock(mutex_);
  if (epoch == now_.epoch) values_[key] = value;
  changed_.notify_all();
}

std::string Quorum::get(int64_t epoch, const std::string& key, double seconds,
                        const std::function<bool()>& alive) {
  Lock lock(mutex_);
  const SteadyTime limit = after(seconds);
  while (true) {
    if (epoch != now_.epoch || !lost_.empty())
      fail(ExitCode::rank_lost, "a replica is gone while others wait for its \"{}\"", key);
    if (const auto at = values_.find(key); at != values_.end()) return at->second;
    if (steady_now() >= limit || !alive())
      fail(ExitCode::rank_lost, "no replica published \"{}\" within {:g} s", key, seconds);
    changed_.wait_for(lock, kTick);
  }
}

}  // namespace ltrain
