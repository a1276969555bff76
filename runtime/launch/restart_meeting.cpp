#include "runtime/launch/restart_meeting.h"

#include <unistd.h>

#include <mutex>
#include <optional>

#include "base/deadline.h"
#include "base/json/json.h"
#include "base/time_scale.h"
#include "parallel/comm/socket.h"
#include "runtime/launch/control_client.h"
#include "runtime/launch/coordinator.h"
#include "runtime/launch/environment/hostlist.h"

namespace ltrain {
namespace {

constexpr double kLauncherAnswerSeconds = 10;  // limit for a launcher that has come
constexpr const char* kOrder = "restart/order";

std::string end_key(int node) { return fmt::format("restart/end/{}", node); }

std::string write_order(const RestartOrder& o) {
  return nlohmann::json{{"restart", o.restart},
                        {"code", static_cast<int>(o.code)},
                        {"number", o.number},
                        {"wait_seconds", o.wait_seconds},
                        {"from_newest", o.from_newest},
                        {"note", o.note},
                        {"text", o.text},
                        {"nodes", o.nodes}}
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// Reads what another launcher has written. Throws Error (internal).
template <class Read>
auto read_json(const std::string& text, const Read& read) {
  try {
    return read(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& e) {
    fail(ExitCode::internal, "a launcher of another node sent {}: {}", text.substr(0, 200), e.what());
  }
}

RestartOrder read_order(const std::string& text) {
  return read_json(text, [](const nlohmann::json& j) {
    RestartOrder o;
    o.restart = j.at("restart").get<bool>(), o.code = static_cast<ExitCode>(j.at("code").get<int>());
    o.number = j.at("number").get<int>(), o.wait_seconds = j.at("wait_seconds").get<double>();
    o.from_newest = j.at("from_newest").get<bool>();
    o.note = j.at("note").get<std::string>(), o.text = j.at("text").get<std::string>();
    o.nodes = j.at("nodes").get<std::vector<int>>();
    return o;
  });
}

}  // namespace

class RestartMeeting::Impl {
 public:
  explicit Impl(const MeetingOptions& options) : o_(options) {
    if (o_.node == 0) {
      CoordinatorOptions c;
      c.ports = {o_.port};
      c.token = o_.token;
      c.owner = "the launcher of node 0";
      c.world_size = o_.nodes;
      c.join_seconds = o_.join_seconds;
      c.least_joined = o_.least_nodes;
      coordinator_.emplace(std::move(c));
    }
    ControlOptions c;
    LaunchEnvironment& e = c.environment;
    e.kind = LaunchEnvironment::Kind::rank, e.source = "ltrain run";
    e.rank = e.node = o_.node, e.world_size = e.nodes = o_.nodes;
    e.coordinator_host = o_.node == 0 ? "127.0.0.1" : o_.host;
    e.coordinator_ports = {o_.port};
    e.coordinator_is_launcher = true;
    e.token = o_.token;
    c.host = host_name();
    c.identity = fmt::format("launcher {}", o_.node);
    c.join_seconds = o_.join_seconds;
    c.status = [] { return RankStatus{}; };  // a heartbeat
    c.on_stop = [this](const std::string& reason) { note(signalled_, reason); };
    c.on_end = [this](ExitCode, int node, const std::string& reason) {
      note(broken_, node < 0 ? reason : fmt::format("the launcher of node {} is gone", node));
    };
    try {
      client_.emplace(std::move(c));
    } catch (const Error& error) {
      fail(ExitCode::rank_lost, "{}", missing(error));
    }
  }

  ~Impl() {
    if (client_) client_->close();
  }

  RestartOrder agree(const NodeEnd& own,
                     const std::function<RestartOrder(const std::vector<NodeEnd>&)>& decide) {
    const double seconds = kLauncherAnswerSeconds * time_scale();
    client_->set(
        end_key(o_.node),
        nlohmann::json{{"code", static_cast<int>(own.code)}, {"asked_to_stop", own.asked_to_stop}}.dump());
    if (o_.node != 0) return read_order(client_->get(kOrder, seconds));
    std::vector<NodeEnd> ends;
    for (int node = 0; node < o_.nodes; ++node) {
      if (client_->ranks().at(static_cast<size_t>(node)).host.empty()) continue;
      ends.push_back(read_json(client_->get(end_key(node), seconds), [&](const nlohmann::json& j) {
        return NodeEnd{node, static_cast<ExitCode>(j.at("code").get<int>()),
                       j.at("asked_to_stop").get<bool>()};
      }));
    }
    const RestartOrder order = decide(ends);
    client_->set(kOrder, write_order(order));
    return order;
  }

  void report_signal(const std::string& name) {
    note(signalled_, name);
    client_->send_signal(name);
  }

  void say_goodbye() {
    client_->send_goodbye(ExitCode::done);
    if (!coordinator_) return;
    const SteadyTime limit = after(kLauncherAnswerSeconds * time_scale());
    while (!coordinator_->finished() && steady_now() < limit) ::usleep(5000);
  }

  std::string signalled() const { return text(signalled_); }
  std::string broken() const { return text(broken_); }

 private:
  void note(std::string& what, const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (what.empty()) what = reason;
  }
  std::string text(const std::string& what) const {
    std::lock_guard lock(mutex_);
    return what;
  }

  std::string missing(const Error& error) const {
    if (!coordinator_)
      return fmt::format("the launcher of node 0 on host {}, port {}, was not met within {:g} s: {}", o_.host,
                         o_.port, o_.join_seconds, error.what());
    std::vector<int> nodes;
    for (int node = 0; node < o_.nodes; ++node)
      if (!coordinator_->joined(node)) nodes.push_back(node);
    return fmt::format("the launcher{} of node{} {} did not come to port {} of host {} within {:g} s",
                       nodes.size() == 1 ? "" : "s", nodes.size() == 1 ? "" : "s", format_ranges(nodes),
                       o_.port, host_name(), o_.join_seconds);
  }

  const MeetingOptions o_;
  mutable std::mutex mutex_;
  std::string signalled_, broken_;
  std::optional<Coordinator> coordinator_;
  std::optional<ControlClient> client_;  // destroyed first: its thread tells of the coordinator
};

RestartMeeting::RestartMeeting(const MeetingOptions& options) : impl_(std::make_unique<Impl>(options)) {}
RestartMeeting::~RestartMeeting() = default;
RestartOrder RestartMeeting::agree(const NodeEnd& own,
                                   const std::function<RestartOrder(const std::vector<NodeEnd>&)>& decide) {
  return impl_->agree(own, decide);
}
void RestartMeeting::report_signal(const std::string& name) { impl_->report_signal(name); }
std::string RestartMeeting::signalled() const { return impl_->signalled(); }
std::string RestartMeeting::broken() const { return impl_->broken(); }
void RestartMeeting::part() { impl_->say_goodbye(); }

}  // namespace ltrain
