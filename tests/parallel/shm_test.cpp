// Properties of groups in shared memory alone: their size, links, ends, and who may join them.
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <random>
#include <set>

#include "base/time_scale.h"
#include "parallel/shm/segment.h"
#include "tests/parallel/process_support.h"
#include "tests/support/seconds_since.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {

using Clock = std::chrono::steady_clock;

/// Bytes of the mappings of group segments in this process, and of those the resident ones.
struct Mapped {
  int64_t bytes = 0, resident = 0;
  int count = 0;
};
Mapped mapped_segments() {
  Mapped m;
  std::ifstream maps("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      ours = line.find("memfd:ltrain-group") != std::string::npos;
      if (ours) m.bytes += static_cast<int64_t>(end - begin), ++m.count;
    }
    long kib = 0;
    if (ours && std::sscanf(line.c_str(), "Rss: %ld kB", &kib) == 1) m.resident += kib * 1024;
  }
  return m;
}

int open_descriptors() {
  int n = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (::readdir(dir)) ++n;
  ::closedir(dir);
  return n;
}

/// Names in the places where shared memory could leave something.
std::multiset<std::string> things_left() {
  std::multiset<std::string> names;
  if (DIR* dir = ::opendir("/dev/shm")) {
    while (const dirent* e = ::readdir(dir)) names.insert(e->d_name);
    ::closedir(dir);
  }
  std::ifstream ipc("/proc/sysvipc/shm");
  for (std::string line; std::getline(ipc, line);) names.insert("sysv " + line.substr(0, 30));
  return names;
}

void expect(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

}  // namespace

TEST_CASE("a group maps exactly the bytes that the plan counts, and an unused one holds few", "[shm]") {
  const int before = mapped_segments().count, descriptors = open_descriptors();
  CHECK(before == 0);
  auto store = make_memory_store();
  std::vector<std::unique_ptr<Communicator>> groups(2);
  std::thread other([&] { groups[1] = make_shm_group(store, "g", 1, 2, "g", Axis::data); });
  groups[0] = make_shm_group(store, "g", 0, 2, "g", Axis::data);
  other.join();
  const Mapped m = mapped_segments();
  CHECK(m.count == 2);  // both ranks are threads of this process
  CHECK(m.bytes == 2 * shm_segment_bytes(2));
  CHECK(m.resident <= 2 * 64 << 10);
  CHECK(shm_segment_bytes(2) < 1 << 20);
  CHECK(shm_segment_bytes(1) == 0);
  CHECK(open_descriptors() - descriptors <= 4);  // pipes of each rank: its own life and the other's
  groups.clear();
  CHECK(mapped_segments().count == 0);
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("many links of two ranks: cheap to make, and none holds up another", "[shm]") {
  const WithTransport with("shm");
  Processes p(3, [](Job& job, Communicator& world, Stream& s) {
    const int me = job.info().rank, n = 3;
    // A group and a stream for each directed link, as a pipeline has them.
    struct Link {
      std::unique_ptr<Communicator> group;
      std::unique_ptr<Stream> stream;
    };
    std::vector<Link> out(n), in(n);
    world.barrier(s);
    const auto begin = Clock::now();
    for (int from = 0; from < n; ++from)
      for (int step : {1, 2}) {
        const int to = (from + step) % n;
        if (me != from && me != to) continue;
        Link l{job.new_group(fmt::format("link {} to {}", from, to), Axis::pipeline, {from, to}),
               make_worker_stream("link")};
        (me == from ? out[to] : in[from]) = std::move(l);
      }
    // One takes about 0.1 ms; the bound leaves room for a crowded machine and for sanitizers.
    expect(seconds_since(begin) / 4 < 0.05 * time_scale(), "a group takes too long to make");
    const auto data = [](int64_t from) {
      std::vector<int64_t> v(50000);
      for (size_t i = 0; i < v.size(); ++i) v[i] = from * 1000000 + static_cast<int64_t>(i);
      return v;
    };
    std::vector<int64_t> a = data(me), b(a.size()), c(a.size());
    if (me == 0) {
      // Rank 1 does not receive yet: the link to it is stuck, with more in it than its slots hold.
      out[1].group->send(*out[1].stream, tensor(a), 1);
      // The links to and from rank 2, and from rank 1, work meanwhile.
      for (int i = 0; i < 20; ++i) {
        out[2].group->send(*out[2].stream, tensor(a), 1);
        in[2].group->recv(*in[2].stream, tensor(b), 0);
        in[1].group->recv(*in[1].stream, tensor(c), 0);
        out[2].stream->synchronize(), in[2].stream->synchronize(), in[1].stream->synchronize();
        expect(b == data(2) && c == data(1), "wrong message");
      }
      expect(out[1].group->completed() == 0, "a message went to a rank that does not receive");
    }
    if (me == 1)
      for (int i = 0; i < 20; ++i) out[0].group->send(*out[0].stream, tensor(a), 1);
    if (me == 2)
      for (int i = 0; i < 20; ++i) {
        in[0].group->recv(*in[0].stream, tensor(b), 0);
        out[0].group->send(*out[0].stream, tensor(a), 1);
        in[0].stream->synchronize();
        expect(b == data(0), "wrong message");
      }
    world.barrier(s);
    if (me == 1) {
      in[0].group->recv(*in[0].stream, tensor(b), 0);
      in[0].stream->synchronize();
      expect(b == data(0), "the stuck message");
    }
    for (auto* links : {&out, &in})
      for (Link& l : *links)
        if (l.stream) l.stream->synchronize();
  });
  CHECK(p.wait() == std::vector<int>{0, 0, 0});
  INFO(p.texts);
  CHECK(p.texts.empty());
}

TEST_CASE("the processor is left alone while a rank waits", "[shm]") {
  const WithTransport with("shm");
  Processes p(2, [](Job& job, Communicator& c, Stream& s) {
    c.barrier(s);
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    if (job.info().rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    c.barrier(s);
    ::getrusage(RUSAGE_SELF, &after);
    const auto used = [](const timeval& a, const timeval& b) {
      return static_cast<double>(b.tv_sec - a.tv_sec) + 1e-6 * static_cast<double>(b.tv_usec - a.tv_usec);
    };
    expect(used(before.ru_utime, after.ru_utime) + used(before.ru_stime, after.ru_stime) < 0.2 * time_scale(),
           "waiting took processor time");
  });
  CHECK(p.wait() == std::vector<int>{0, 0});
}

TEST_CASE("a sleeper is woken by whom it waits for", "[shm]") {
  std::vector<double> late[2];  // waits for one rank, and for two
  on_ranks(Kind::shm, 3, [&](Communicator& c, Stream& s) {
    std::vector<int64_t> t(1);
    for (int i = 0; i < 41; ++i) {
      if (c.rank() == 0) {  // in a send_recv it waits for two ranks at once, else for one
        std::vector<int64_t> out(1);
        if (i % 2)
          c.send_recv(s, tensor(out), 2, tensor(t), 1);
        else
          c.recv(s, tensor(t), 1);
        late[i % 2].push_back(1e-9 * static_cast<double>(Clock::now().time_since_epoch().count() - t[0]));
      } else if (c.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        t[0] = Clock::now().time_since_epoch().count();
        c.send(s, tensor(t), 0);
      } else if (i % 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        c.recv(s, tensor(t), 0);
      }
    }
  });
  // Some 0.05 ms on an idle machine. Unwoken, a sleeper looks up every 20 ms by itself, so each would be some
  // 17 ms late; on a crowded machine many are later than 5 ms, but not most of them.
  for (auto& l : late) {
    std::sort(l.begin(), l.end());
    CHECK(l[5] < 5e-3);
  }
}

TEST_CASE("a rank that fails ends the others' waits, though it stays", "[shm]") {
  const auto begin = Clock::now();
  const auto errors = try_ranks(
      Kind::shm, 3,
      [&](Communicator& c, Stream& s) {
        std::vector<float> a(8), b(9);
        std::string error;
        try {
          if (c.rank() == 0) c.send(s, tensor(a), 1);
          if (c.rank() == 1) c.recv(s, tensor(b), 0);
          if (c.rank() == 2) c.barrier(s);
        } catch (const Error& e) {
          error = e.what();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        if (!error.empty()) throw std::runtime_error(error);
      },
      5 * time_scale());
  CHECK(seconds_since(begin) < 3 * time_scale());
  CHECK_THAT(errors[0], Contains("rank 0 lost rank 1 in send #1 of 8 f32") && Contains("it has failed"));
  CHECK_THAT(errors[1], Contains("message 1 from rank 0 to rank 1 has 8 f32, expected message 1 of 9 f32"));
  CHECK_THAT(errors[2], Contains("rank 2 lost rank"));
}

TEST_CASE("a killed peer ends every kind of wait at once", "[shm]") {
  const WithTransport with("shm");
  const std::vector<std::pair<const char*, std::function<void(Communicator&, Stream&)>>> waits{
      {"barrier", [](Communicator& c, Stream& s) { c.barrier(s); }},
      {"recv",
       [](Communicator& c, Stream& s) {
         std::vector<float> v(10);
         c.recv(s, tensor(v), 1);
         s.synchronize();
       }},
      {"send",
       [](Communicator& c, Stream& s) {
         std::vector<float> v(10);
         c.send(s, tensor(v), 1);
         s.synchronize();
       }},
      {"send_recv",
       [](Communicator& c, Stream& s) {
         std::vector<float> v(10), w(10);
         c.send_recv(s, tensor(v), 1, tensor(w), 1);
         s.synchronize();
       }},
      {"all_to_all", [](Communicator& c, Stream& s) {
         std::vector<float> v(10), w(10);
         c.all_to_all(s, tensor(v), tensor(w));
         s.synchronize();
       }}};
  for (const auto& [name, wait] : waits) {
    INFO(name);
    const SharedFlag waits_now;
    Processes p(2, [&](Job& job, Communicator& c, Stream& s) {
      if (job.info().rank == 1) std::this_thread::sleep_for(std::chrono::minutes(1));
      waits_now.say();
      wait(c, s);
    });
    waits_now.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto begin = Clock::now();
    ::kill(p.pids[1], SIGKILL);
    CHECK(p.wait() == std::vector<int>{9, 1009});
    CHECK(seconds_since(begin) < 1 * time_scale());
    CHECK_THAT(p.texts, Contains("group \"world\": rank 0 lost rank 1 in " + std::string(name)) &&
                            Contains("its process has ended"));
  }
  // Negative control: without the kill it waits.
  Processes p(2, [&](Job& job, Communicator& c, Stream& s) {
    if (job.info().rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const auto begin = Clock::now();
    c.barrier(s);
    expect(job.info().rank == 1 || seconds_since(begin) > 0.3, "did not wait");
  });
  CHECK(p.wait() == std::vector<int>{0, 0});
}

TEST_CASE("a peer that does not come ends the wait at the timeout, with its number and the call's", "[shm]") {
  const auto begin = Clock::now();
  const auto errors = try_ranks(
      Kind::shm, 3,
      [](Communicator& c, Stream& s) {
        std::vector<float> v(100000);
        for (int i = 0; i < 50; ++i) {
          if (i == 20 && c.rank() == 1)
            std::this_thread::sleep_for(std::chrono::duration<double>(2.5 * time_scale()));
          c.all_reduce(s, tensor(v));  // rank 1's finds the others gone
        }
      },
      time_scale());
  CHECK(seconds_since(begin) < 8 * time_scale());
  const std::string waited =
      fmt::format("waited {:g} s for rank 1 in all_reduce #21 of 100000 f32", time_scale());
  INFO(errors[0] << "\n" << errors[1] << "\n" << errors[2]);
  CHECK((errors[0].find(waited) != std::string::npos || errors[2].find(waited) != std::string::npos));
  for (const std::string& e : errors) CHECK_FALSE(e.empty());
  CHECK_THAT(errors[1], Contains("group \"test\": rank 1 lost rank"));
}

TEST_CASE("killed at any moment: the others end, and nothing is left", "[shm]") {
  const WithTransport with("shm");
  const auto before = things_left();
  std::mt19937 random(7);
  int killed = 0;
  const int rounds = 12;
  const auto body = [](Job& job, Communicator& world, Stream& s) {
    const int me = job.info().rank;
    for (int i = 0; i < 4000; ++i) {
      auto group = job.new_group("g", Axis::data, {0, 1, 2});  // also while groups are made
      std::vector<float> v(1 + (i * 7919) % 60000), w(100), x(100);
      group->all_reduce(s, tensor(v));
      group->send_recv(s, tensor(w), (me + 1) % 3, tensor(x), (me + 2) % 3);
      world.broadcast(s, tensor(w), i % 3);
      s.synchronize();
    }
  };
  for (int round = 0; round < rounds; ++round) {
    // A rank whose peer dies before it joins waits for it so long.
    Processes p(3, body, 20, [](int) {
      ::setenv("LTRAIN_JOIN_TIMEOUT", fmt::format("{:g}", 2 * time_scale()).c_str(), 1);
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    const int victim = static_cast<int>(random() % 3);
    ::kill(p.pids[victim], SIGKILL);
    const auto begin = Clock::now();
    const std::vector<int> codes = p.wait();
    INFO("round " << round << "\n" << p.texts);
    CHECK(seconds_since(begin) < 10 * time_scale());
    killed += codes[victim] == 1009;
    for (int r = 0; r < 3; ++r)
      if (r != victim) CHECK(codes[r] != 0);
  }
  CHECK(killed == rounds);
  CHECK(things_left() == before);
  // Negative control: a named segment is seen.
  std::ofstream("/dev/shm/ltrain-test-left") << "x";
  const bool writable = things_left() != before;
  std::remove("/dev/shm/ltrain-test-left");
  CHECK(writable);
}
