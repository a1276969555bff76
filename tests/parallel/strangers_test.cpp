// Whoever comes to a rank's port for data: a port scan, garbage, a wrong secret. The group is made all the
// same, and nobody is kept waiting.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "base/time_scale.h"
#include "parallel/comm/communicator_tree.h"
#include "parallel/comm/socket.h"
#include "tests/parallel/group_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {

/// Fields of "ADDRESS PORT SECRET".
int port_of(const std::string& published) {
  const size_t a = published.find(' '), b = published.find(' ', a + 1);
  return std::stoi(published.substr(a + 1, b - a - 1));
}

std::string hello_of(const std::string& published, uint32_t from, const std::string& key, bool right_secret) {
  const std::string secret = published.substr(published.rfind(' ') + 1);
  std::string bytes = "LTpeer1c";
  for (size_t i = 0; i < 16; ++i)
    bytes += static_cast<char>(std::stoi(secret.substr(2 * i, 2), nullptr, 16) ^ !right_secret);
  const uint32_t length = static_cast<uint32_t>(key.size());
  bytes.append(reinterpret_cast<const char*>(&from), 4);
  bytes.append(reinterpret_cast<const char*>(&length), 4);
  return bytes + key;
}

/// Keeps coming until it ends.
class Strangers {
 public:
  explicit Strangers(const std::string& published) : port_(port_of(published)), published_(published) {
    thread_ = std::thread([this] { loop(); });
  }
  ~Strangers() {
    stop_ = true;
    thread_.join();
  }
  int came() const { return came_; }

 private:
  void loop() {
    std::vector<Fd> kept;
    const std::string texts[] = {"",
                                 "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                 std::string(100000, '\0'),
                                 std::string(100000, '\xff'),
                                 "LTpeer1c",
                                 hello_of(published_, 1, "test", false),
                                 hello_of(published_, 1, "test", false) + std::string(5000, 'x'),
                                 "LTpeer1s" + std::string(56, 'x')};
    for (int i = 0; !stop_; ++i) {
      std::string error;
      Connection c = connect_once("127.0.0.1", port_, after(1), &error);
      if (c.fd.valid()) {
        const std::string& text = texts[i % 8];
        ::send(c.fd.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (i % 3) kept.push_back(std::move(c.fd));  // others are closed at once
        ++came_;
      }
      if (kept.size() > 100) kept.erase(kept.begin());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const int port_;
  const std::string published_;
  std::atomic<bool> stop_{false};
  std::atomic<int> came_{0};
  std::thread thread_;
};

}  // namespace

TEST_CASE("strangers at a rank's port do not disturb the making of groups, nor the groups") {
  const bool tree = GENERATE(false, true);
  auto store = make_memory_store();
  std::vector<std::string> errors(3);
  std::atomic<int> came{0};
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      try {
        auto listener = std::make_shared<PeerListener>("127.0.0.1");
        Strangers strangers(listener->published());
        // The first is there long before the others.
        std::this_thread::sleep_for(std::chrono::milliseconds(300 * r));
        auto stream = make_inline_stream("test");
        for (int i = 0; i < 5; ++i) {
          const std::string key = fmt::format("test{}", i);
          auto group =
              tree ? make_tree_group(listener, store, key, r, 3, {0, 0, 1}, "test", Axis::data)
                   : make_gloo_group(make_gloo_transport(listener), store, key, r, 3, "test", Axis::data);
          for (int k = 0; k < 20; ++k) {
            std::vector<float> v{static_cast<float>(r + 1)};
            group->all_reduce(*stream, tensor(v));
            if (v[0] != 6) throw std::runtime_error("sum");
          }
          group->barrier(*stream);
        }
        came += strangers.came();
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  for (const std::string& e : errors) CHECK(e == "");
  CHECK(came > 100);
}

TEST_CASE("a rank's port: who shows the secret is connected, and only for what he came for") {
  PeerListener listener("127.0.0.1");
  const std::string published = listener.published();
  std::string why;
  CHECK_FALSE(listener.accept("a", 1, 0.01).valid());
  Fd near = connect_to_peer(published, "a", 1, 5, &why);
  REQUIRE(near.valid());
  CHECK_FALSE(listener.accept("b", 1, 0.05).valid());
  CHECK_FALSE(listener.accept("a", 2, 0.05).valid());
  Fd far = listener.accept("a", 1, 5);
  REQUIRE(far.valid());
  char byte = 'x';
  CHECK(::send(near.get(), &byte, 1, 0) == 1);
  pollfd p{far.get(), POLLIN, 0};
  CHECK(::poll(&p, 1, 5000) == 1);
  CHECK((::recv(far.get(), &byte, 1, 0) == 1 && byte == 'x'));

  // Another program at the port, a port without a listener, and a broken address.
  int port = 0;
  std::string error;
  const Fd other = listen_on("127.0.0.1", {0}, &port, &error);
  const std::string secret = published.substr(published.rfind(' '));
  CHECK_FALSE(connect_to_peer(fmt::format("127.0.0.1 {}{}", port, secret), "a", 1, 0.3, &why).valid());
  CHECK_THAT(why, Contains(fmt::format("127.0.0.1 port {}: no answer", port)));
  CHECK_FALSE(connect_to_peer("127.0.0.1 1" + secret, "a", 1, 0.1, &why).valid());
  CHECK_THAT(why, Contains("127.0.0.1 port 1: Connection refused"));
  for (const char* bad :
       {"", "x", "127.0.0.1", "127.0.0.1 0 00", "127.0.0.1 70000 00", "example.invalid 80 00"})
    CHECK_FALSE(connect_to_peer(bad, "a", 1, 0.1, &why).valid());
  CHECK_THROWS_WITH(PeerListener("", "no-such-interface"), Contains("no-such-interface (launch.interface)"));
  CHECK_THROWS_WITH(PeerListener("192.0.2.1"), Contains("192.0.2.1"));
}

TEST_CASE("a small call over TCP does not wait for acknowledgements") {
  for (const bool tree : {false, true}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto body = [](Communicator& c, Stream& s) {
      for (int i = 0; i < 100; ++i) {
        std::vector<float> v(1);
        c.all_reduce(s, tensor(v));
      }
    };
    if (tree) {
      auto store = make_memory_store();
      std::vector<std::thread> threads;
      for (int r = 0; r < 2; ++r)
        threads.emplace_back([&, r] {
          auto stream = make_inline_stream("test");
          auto group = make_tree_group(std::make_shared<PeerListener>("127.0.0.1"), store, "k", r, 2, {0, 1},
                                       "t", Axis::data);
          body(*group, *stream);
        });
      for (auto& t : threads) t.join();
    } else {
      on_ranks(Kind::gloo, 2, body);
    }
    // 40 ms each when a segment is held back until the last one is acknowledged.
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(2 * time_scale()));
  }
}
