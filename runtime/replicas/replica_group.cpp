#include "runtime/replicas/replica_group.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/time_scale.h"
#include "parallel/comm/host_collectives.h"
#include "runtime/launch/environment/environment.h"

namespace ltrain {
namespace {

constexpr double kJoinSeconds = 120;
constexpr int kMeetings = 10;  // failures in a row before a replica gives up

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text && *text ? text : nullptr;
}

/// A membership as numbers, which one rank sends to the others.
std::vector<int64_t> pack(const Membership& m) {
  std::vector<int64_t> all{m.epoch, m.counts, m.done,
                           m.step,  m.source, static_cast<int64_t>(m.members.size())};
  all.insert(all.end(), m.members.begin(), m.members.end());
  all.insert(all.end(), m.behind.begin(), m.behind.end());
  return all;
}

Membership unpack(const std::vector<int64_t>& all) {
  Membership m;
  m.epoch = all[0], m.counts = all[1] != 0, m.done = all[2] != 0, m.step = all[3];
  m.source = static_cast<int>(all[4]);
  const auto members = all.begin() + 6, behind = members + all[5];
  m.members.assign(members, behind);
  m.behind.assign(behind, all.end());
  return m;
}

}  // namespace

std::optional<QuorumAddress> quorum_address() {
  const char* where = variable("LTRAIN_QUORUM");
  const char* replica = variable("LTRAIN_REPLICA");
  if (!where && !replica) return std::nullopt;
  const char* token = variable("LTRAIN_QUORUM_TOKEN");
  for (const auto& [name, value] : {std::pair{"LTRAIN_QUORUM", where}, std::pair{"LTRAIN_REPLICA", replica},
                                    std::pair{"LTRAIN_QUORUM_TOKEN", token}})
    if (!value)
      fail(ExitCode::usage,
           "{} is not set: a replica needs LTRAIN_QUORUM=host:port, LTRAIN_REPLICA=0, 1, ... and "
           "LTRAIN_QUORUM_TOKEN",
           name);
  QuorumAddress a;
  std::tie(a.host, a.port) = split_host_port(where, "LTRAIN_QUORUM");
  if (a.port == 0) fail(ExitCode::usage, "LTRAIN_QUORUM: {} has no port; e.g. node0:29400", where);
  char* end = nullptr;
  const long number = std::strtol(replica, &end, 10);
  if (*end || number < 0 || number >= kMaxRanks)
    fail(ExitCode::usage, "LTRAIN_REPLICA: must be a number from 0, got {}", replica);
  a.replica = static_cast<int>(number), a.token = token;
  return a;
}

QuorumSettings quorum_settings(const Recipe& r) {
  return {.replicas = static_cast<int>(r.replicas.count),
          .least = static_cast<int>(r.replicas.min),
          .timeout_seconds = r.replicas.timeout_seconds * time_scale(),
          .join_seconds = join_seconds(process_variables(), kJoinSeconds * time_scale()),
          .log = {}};
}

std::string shared_settings(const Recipe& recipe) {
  std::string shared;
  const std::string all = job_settings(recipe);
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = all.find('\n', begin) + 1;
    const std::string line = all.substr(begin, end - begin);
    if (!line.starts_with("output_dir: ") && !line.starts_with("checkpoint.resume: ")) shared += line;
    begin = end;
  }
  return shared;
}

ReplicaGroup::ReplicaGroup(const Recipe& recipe, const QuorumAddress& address, int rank,
                           Communicator& control, Stream& control_stream, std::function<bool()> stop)
    : settings_(quorum_settings(recipe)),
      replica_(address.replica),
      rank_(rank),
      control_(control),
      control_stream_(control_stream),
      stop_(std::move(stop)),
      client_(
          std::make_shared<QuorumClient>(address, rank, shared_settings(recipe), settings_.join_seconds)) {
  transport_ = make_gloo_transport(client_->local_address(), recipe.launch.interface.value_or(""));
}

ReplicaGroup::~ReplicaGroup() = default;

int ReplicaGroup::place() const {
  const auto at = std::find(made_.members.begin(), made_.members.end(), replica_);
  return static_cast<int>(at - made_.members.begin());
}

bool ReplicaGroup::all_ranks(bool mine) {
  return max_over(control_, control_stream_, {mine ? 0 : 1})[0] == 0;
}

Membership ReplicaGroup::vote(int64_t step, bool complete, AfterStep after) {
  std::vector<int64_t> packed;
  // Before the first step there is nothing to save, and others may never come. Later the quorum limits the
  // wait.
  const bool may_stop = made_.members.empty();
  if (rank_ == 0)
    packed = pack(client_->vote(
        {.replica = replica_, .epoch = made_.epoch, .step = step, .complete = complete, .after = after},
        [&] { return may_stop && stop_(); }));
  std::string text;
  for (const int64_t n : packed) text += fmt::format("{} ", n);
  text = broadcast_text(control_, control_stream_, text);
  packed.clear();
  for (const char* at = text.c_str(); *at;) {
    char* end = nullptr;
    packed.push_back(std::strtoll(at, &end, 10));
    at = end + 1;
  }
  return unpack(packed);
}

/// Runs a call between replicas, after which this rank takes part in no further one if it fails.
template <class Call>
void ReplicaGroup::attempt(const Call& call) {
  if (failed_) return;
  try {
    call();
  } catch (const Error& e) {
    if (e.code() != ExitCode::rank_lost) throw;
    failed_ = true;
    disconnect();  // the others must not wait for this rank
  }
}

void ReplicaGroup::disconnect() {
  stream_.reset();
  group_.reset();
}

bool ReplicaGroup::connect() {
  disconnect();
  failed_ = false;
  client_->begin_epoch(made_.epoch);
  attempt([&] {
    stream_ = make_worker_stream("replicas");
    GlooOptions o;
    o.timeout_seconds = o.connect_timeout_seconds = o.reach_seconds = settings_.timeout_seconds;
    group_ = make_gloo_group(transport_, client_, fmt::format("replicas/{}/{}", made_.epoch, rank_), place(),
                             count(), "replicas", Axis::replica, o);
  });
  return !failed_;
}

int64_t ReplicaGroup::begin_step(int64_t step, const std::function<void()>& copy_state) {
  step_ = step;
  if (!next_) next_ = vote(step_, false, AfterStep::stays);
  if (next_->done) return step_;
  for (int meeting = 1; next_->epoch != made_.epoch; ++meeting) {
    if (meeting > kMeetings)
      fail(ExitCode::rank_lost, "replica {} did not reach the other replicas in {} attempts", replica_,
           kMeetings);
    made_ = *next_;
    bool good = connect();
    const bool copies = !made_.behind.empty();
    if (copies) {
      copy_state();
      good = !failed_;
    }
    if (all_ranks(good)) {
      step_ = made_.step;
      break;
    }
    // A state that was only half copied is of no use to others.
    if (copies && receives()) step_ = -1;
    disconnect();
    next_ = vote(step_, false, AfterStep::stays);
  }
  failed_ = false;
  return step_;
}

void ReplicaGroup::copy(Tensor t) {
  LT_FAULT_POINT("replicas.copy");
  attempt([&] {
    const auto at = std::find(made_.members.begin(), made_.members.end(), made_.source);
    group_->broadcast(*stream_, t, static_cast<int>(at - made_.members.begin()));
    stream_->synchronize();
    group_->check();
  });
}

void ReplicaGroup::copy(std::vector<int64_t>& numbers) {
  Tensor t;
  t.data = numbers.data(), t.dtype = DType::i64, t.shape = {static_cast<int64_t>(numbers.size())};
  copy(t);
}

void ReplicaGroup::sum(Tensor t) {
  if (count() == 1) return;
  LT_FAULT_POINT("replicas.sum");
  attempt([&] {
    group_->all_reduce(*stream_, t);
    stream_->synchronize();
    group_->check();
  });
}

bool ReplicaGroup::commit(bool leaves) {
  const bool complete = all_ranks(!failed_);
  if (!complete) disconnect();
  LT_FAULT_POINT("replicas.vote");
  next_ = vote(step_, complete, last_ ? AfterStep::done : leaves ? AfterStep::leaves : AfterStep::stays);
  LT_FAULT_POINT("replicas.voted");
  if (!next_->counts) made_.epoch = 0;  // whatever comes next, groups are made anew
  return next_->counts;
}

}  // namespace ltrain
