// The tree of connections for agreements: its shape, its sums, its errors, and how many connections it has.
#include "parallel/comm/communicator_tree.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "base/time_scale.h"
#include "tests/parallel/group_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {

using Body = std::function<void(Communicator&, Stream&)>;

/// Error of each rank; ranks are threads.
std::vector<std::string> try_tree(const std::vector<int>& hosts, const Body& body, double timeout = 20) {
  const int size = static_cast<int>(hosts.size());
  auto store = make_memory_store();
  std::vector<std::string> errors(hosts.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        auto listener = std::make_shared<PeerListener>("127.0.0.1");
        auto group =
            make_tree_group(listener, store, "test", r, size, hosts, "test", Axis::data, {timeout, 20, 20});
        auto stream = make_inline_stream("test");
        body(*group, *stream);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}

void on_tree(const std::vector<int>& hosts, const Body& body) {
  for (const std::string& e : try_tree(hosts, body))
    if (!e.empty()) throw std::runtime_error(e);
}

/// Connections of which both ends are in this process.
int connections() {
  int ends = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(dir)) {
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    ends += ::getpeername(std::atoi(entry->d_name), reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
            peer.sin_family == AF_INET;
  }
  ::closedir(dir);
  return ends / 2;
}

}  // namespace

TEST_CASE("a tree: each rank below the first of its host, each of those below rank 0") {
  const std::vector<int> hosts{7, 7, 3, 7, 3, 9};
  CHECK((tree_place(0, hosts).above == -1 && tree_place(0, hosts).below == std::vector<int>{1, 2, 3, 5}));
  CHECK((tree_place(1, hosts).above == 0 && tree_place(1, hosts).below.empty()));
  CHECK((tree_place(2, hosts).above == 0 && tree_place(2, hosts).below == std::vector<int>{4}));
  CHECK((tree_place(4, hosts).above == 2 && tree_place(5, hosts).above == 0));
  // Whatever hosts there are: every rank but 0 has one above it, and is below it.
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> any(1 + random() % 40);
    for (int& h : any) h = static_cast<int>(random() % 6);
    int below = 0, between = 0;
    for (int r = 0; r < static_cast<int>(any.size()); ++r) {
      const TreePlace p = tree_place(r, any);
      below += static_cast<int>(p.below.size());
      for (int b : p.below) CHECK(tree_place(b, any).above == r);
      for (int b : p.below) between += any[static_cast<size_t>(b)] != any[static_cast<size_t>(r)];
    }
    CHECK(below == static_cast<int>(any.size()) - 1);
    CHECK(between == static_cast<int>(std::set<int>(any.begin(), any.end()).size()) - 1);
  }
}

TEST_CASE("a tree gives what every group gives, to the bit") {
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{{0},
                                                                     {0, 0},
                                                                     {0, 1},
                                                                     {0, 0, 1},
                                                                     {0, 1, 1},
                                                                     {0, 1, 0, 1, 0},
                                                                     {0, 0, 0, 1, 1, 1, 2, 2},
                                                                     {0, 1, 2, 3, 4, 5, 6}}) {
    const int size = static_cast<int>(hosts.size());
    INFO(size << " ranks");
    const auto collect = [](const std::function<void(const Body&)>& run) {
      std::map<int, std::vector<std::vector<float>>> out;
      std::mutex mutex;
      run([&](Communicator& c, Stream& s) {
        std::vector<std::vector<float>> mine;
        for (int64_t n : {0, 1, 3, 1000, 70001})
          for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
            auto v = values<float>(c.rank(), n);
            c.all_reduce(s, tensor(v), op);
            mine.push_back(v);
            std::vector<float> all(static_cast<size_t>(n * c.size())), part(static_cast<size_t>(n));
            auto w = values<float>(c.rank() + 10, n);
            c.all_gather(s, tensor(all), tensor(w));
            mine.push_back(all);
            auto whole = values<float>(c.rank() + 20, n * c.size());
            c.reduce_scatter(s, tensor(part), tensor(whole));
            mine.push_back(part);
            for (int root = 0; root < c.size(); ++root) {
              auto b = values<float>(c.rank() + 30, n), r = values<float>(c.rank() + 40, n);
              c.broadcast(s, tensor(b), root);
              c.reduce(s, tensor(r), root);
              mine.push_back(b);
              if (c.rank() == root) mine.push_back(r);
            }
            c.barrier(s);
          }
        std::lock_guard lock(mutex);
        out[c.rank()] = std::move(mine);
      });
      return out;
    };
    const auto tree = collect([&](const Body& body) { on_tree(hosts, body); });
    const auto other = collect([&](const Body& body) { on_ranks(Kind::in_process, size, body); });
    REQUIRE(tree.size() == other.size());
    for (const auto& [rank, results] : tree) {
      REQUIRE(results.size() == other.at(rank).size());
      for (size_t i = 0; i < results.size(); ++i) REQUIRE(same_bits(results[i], other.at(rank)[i]));
    }
  }
}

TEST_CASE("64 ranks on 8 hosts: 63 connections, where a group with all of them has 2016") {
  std::vector<int> hosts;
  for (int r = 0; r < 64; ++r) hosts.push_back(r / 8);
  const int before = connections();
  std::atomic<int> seen{-1};
  on_tree(hosts, [&](Communicator& c, Stream& s) {
    std::vector<int64_t> v{c.rank()};
    c.all_reduce(s, tensor(v));
    if (v[0] != 63 * 64 / 2) throw std::runtime_error("sum");
    c.barrier(s);
    if (c.rank() == 0) seen = connections() - before;
    c.barrier(s);
  });
  CHECK(seen == 63);
  // Negative control: Gloo's group of 8.
  on_ranks(Kind::gloo, 8, [&](Communicator& c, Stream& s) {
    c.barrier(s);
    if (c.rank() == 0) seen = connections() - before;
    c.barrier(s);
  });
  CHECK(seen == 8 * 7 / 2);
}

TEST_CASE("ranks of a tree that make different calls all say which") {
  const auto errors = try_tree({0, 0, 1, 1, 2}, [](Communicator& c, Stream& s) {
    std::vector<float> v(100), w(c.rank() == 3 ? 101 : 100);
    c.all_reduce(s, tensor(v));
    c.all_reduce(s, tensor(w));
  });
  for (const std::string& e : errors)
    CHECK_THAT(e, Contains("make different calls") && Contains("rank 3 entered all_reduce #2 of 101 f32"));
}

TEST_CASE("a rank that leaves a tree, or does not come, ends the others' calls, wherever it is") {
  for (int gone : {0, 1, 2, 3, 4}) {
    INFO(gone);
    const auto begin = std::chrono::steady_clock::now();
    const auto errors = try_tree({0, 0, 1, 1, 2}, [&](Communicator& c, Stream& s) {
      std::vector<float> v(100);
      for (int i = 0; i < 50; ++i) {
        if (i == 20 && c.rank() == gone) return;
        c.all_reduce(s, tensor(v));
      }
    });
    for (int r = 0; r < 5; ++r)
      if (r != gone)
        CHECK_THAT(errors[static_cast<size_t>(r)],
                   Contains("group \"test\": rank ") && Contains("all_reduce #21"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(10 * time_scale()));
  }
  const auto late = try_tree(
      {0, 0, 1},
      [](Communicator& c, Stream& s) {
        if (c.rank() == 2) std::this_thread::sleep_for(std::chrono::duration<double>(1.5 * time_scale()));
        c.barrier(s);
      },
      0.5 * time_scale());
  CHECK_THAT(late[0], Contains("waited") && Contains("for rank 2 in barrier #1"));
}

TEST_CASE("what a tree is not for is refused") {
  const auto errors = try_tree({0, 1}, [](Communicator& c, Stream& s) {
    std::vector<float> v(2), w(2);
    c.all_to_all(s, tensor(w), tensor(v));
  });
  CHECK_THAT(errors[0], Contains("is a tree, which has no all_to_all"));
}
