// Who comes to the coordinator's port: silent connections take no place from ranks.
#include "runtime/launch/coordinator.h"

#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "base/time_scale.h"
#include "parallel/comm/socket.h"
#include "runtime/launch/control_client.h"
#include "runtime/launch/job_key.h"

using namespace ltrain;

namespace {

/// Keeps `count` connections open that say `text` and nothing more; opens those again that were closed.
class Scanner {
 public:
  Scanner(int port, int count, std::string text)
      : port_(port), text_(std::move(text)), open_(static_cast<size_t>(count)) {
    thread_ = std::thread([this] {
      while (!stop_) {
        for (Fd& fd : open_) renew(fd);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }
  ~Scanner() {
    stop_ = true;
    thread_.join();
  }
  int opened() const { return opened_; }

 private:
  void renew(Fd& fd) {
    char byte[64];
    while (fd.valid() && ::recv(fd.get(), byte, sizeof(byte), MSG_DONTWAIT) > 0) {
    }
    const bool closed = !fd.valid() || ::recv(fd.get(), byte, 1, MSG_DONTWAIT) == 0;
    if (!closed || stop_) return;
    std::string error;
    fd = connect_once("127.0.0.1", port_, after(1), &error).fd;
    if (!fd.valid()) return;
    ++opened_;
    ::send(fd.get(), text_.data(), text_.size(), MSG_NOSIGNAL);
  }

  const int port_;
  const std::string text_;
  std::vector<Fd> open_;
  std::atomic<bool> stop_{false};
  std::atomic<int> opened_{0};
  std::thread thread_;
};

}  // namespace

namespace {

ControlOptions client_options(int rank, int world, int port) {
  ControlOptions o;
  o.environment.rank = rank, o.environment.world_size = world;
  o.environment.coordinator_host = "127.0.0.1";
  o.environment.coordinator_ports = {port};
  o.environment.token = "token";
  o.host = "test";
  o.join_seconds = 10 * time_scale();
  return o;
}

}  // namespace

TEST_CASE("ranks join a coordinator whose port is full of connections without a proof") {
  raise_file_limit();
  const std::string text = GENERATE(std::string(), std::string("LT"), JobKey::greeting(kClientMagic));
  CoordinatorOptions options;
  options.address = "127.0.0.1";
  options.token = "token";
  options.world_size = 2;
  options.join_seconds = 60 * time_scale();
  Coordinator coordinator(std::move(options));
  const Scanner scanner(coordinator.port(), 400, text);  // more than the coordinator keeps
  while (scanner.opened() < 400) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::vector<std::string> errors(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        ControlClient client(client_options(rank, 2, coordinator.port()));
        if (!client.send_goodbye(ExitCode::done)) errors[static_cast<size_t>(rank)] = "no goodbye";
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : ranks) t.join();
  INFO(text);
  CHECK(errors == std::vector<std::string>{"", ""});
  CHECK_FALSE(coordinator.verdict().failed);
}

TEST_CASE("a job begins without a rank that does not come if the others suffice, and refuses it later") {
  CoordinatorOptions options;
  options.address = "127.0.0.1";
  options.token = "token";
  options.world_size = 3;
  options.join_seconds = 1 * time_scale();
  const bool suffice = GENERATE(true, false);
  options.least_joined = suffice ? 2 : 3;
  Coordinator coordinator(std::move(options));
  std::vector<std::string> hosts(3), errors(3);
  std::vector<std::thread> ranks;
  for (const int rank : {0, 2})
    ranks.emplace_back([&, rank] {
      const auto at = static_cast<size_t>(rank);
      try {
        ControlClient client(client_options(rank, 3, coordinator.port()));
        for (const RankAddress& r : client.ranks()) hosts[at] += r.host + ";";
        if (rank == 0) {
          try {
            ControlClient late(client_options(1, 3, coordinator.port()));
          } catch (const std::exception& e) {
            errors[1] = e.what();
          }
        }
        client.send_goodbye(ExitCode::done);
      } catch (const std::exception& e) {
        errors[at] = e.what();
      }
    });
  for (std::thread& t : ranks) t.join();
  if (suffice) {
    CHECK(hosts == std::vector<std::string>{"test;;test;", "", "test;;test;"});
    CHECK(errors[0] + errors[2] == "");
    CHECK(errors[1].find("rank 1 on host test came after the job had begun without it") != std::string::npos);
    CHECK(coordinator.finished());
  } else {
    CHECK(errors[0].find("rank 1 of 3 did not join") != std::string::npos);
    CHECK(coordinator.verdict().failed);
  }
}
