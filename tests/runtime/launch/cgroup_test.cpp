// Limits of control groups, from trees as systemd, Slurm, Docker and Kubernetes make them.
#include "runtime/launch/cgroup.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// A root with files: path below it, and text.
struct Root {
  explicit Root(const std::vector<std::pair<std::string, std::string>>& files) {
    for (const auto& [path, text] : files) {
      const std::filesystem::path file = folder.path() + path;
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
  }
  std::string path() const { return folder.path(); }
  TemporaryFolder folder;
};

constexpr int64_t kGiB = int64_t{1} << 30;
const std::string kTop = "/sys/fs/cgroup";

}  // namespace

TEST_CASE("cgroup v2: the lowest limit from this process's group up to the root", "[launch]") {
  const std::string job = kTop + "/system.slice/slurmstepd.scope/job_7";
  const Root root({{"/proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n"},
                   {kTop + "/cpu.max", "max 100000\n"},
                   {job + "/memory.max", "8589934592\n"},
                   {job + "/cpu.max", "350000 100000\n"},
                   {job + "/step_0/memory.max", "max\n"},
                   {job + "/step_0/user/task_1/memory.max", "17179869184\n"},
                   {job + "/step_0/user/task_1/cpu.max", "max 100000\n"},
                   {job + "/step_0/user/task_1/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n"},
                   {job + "/memory.events", "oom_kill 9\n"},
                   {"/proc/vmstat", "nr_free_pages 1\noom_kill 44\n"}});
  CHECK(cgroup_limits(root.path()).memory_bytes == 8 * kGiB);  // the job's, not the task's, nor the root's
  CHECK(cgroup_limits(root.path()).cores == 3.5);
  CHECK(out_of_memory_kills(root.path()) == 2);
}

TEST_CASE("cgroup v1: controllers apart, and their word for no limit", "[launch]") {
  const std::string memory = kTop + "/memory", cpu = kTop + "/cpu";
  const Root root(
      {{"/proc/self/cgroup",
        "11:memory:/kubepods/pod1/c2\n4:cpu,cpuacct:/kubepods/pod1/c2\n1:name=systemd:/x\n0::/\n"},
       {memory + "/memory.limit_in_bytes", "9223372036854771712\n"},
       {memory + "/kubepods/pod1/memory.limit_in_bytes", "4294967296\n"},
       {memory + "/kubepods/pod1/c2/memory.limit_in_bytes", "9223372036854771712\n"},
       {memory + "/kubepods/pod1/c2/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"},
       {cpu + "/kubepods/pod1/c2/cpu.cfs_quota_us", "-1\n"},
       {cpu + "/kubepods/pod1/c2/cpu.cfs_period_us", "100000\n"},
       {cpu + "/kubepods/pod1/cpu.cfs_quota_us", "200000\n"},
       {cpu + "/kubepods/pod1/cpu.cfs_period_us", "100000\n"}});
  CHECK(cgroup_limits(root.path()).memory_bytes == 4 * kGiB);
  CHECK(cgroup_limits(root.path()).cores == 2);
  CHECK(out_of_memory_kills(root.path()) == 5);
}

TEST_CASE("a container that does not see its own group has the mount's limits", "[launch]") {
  // The path of the host, which is not there, and one relative to a namespace.
  for (const char* group : {"0::/docker/0123abcd\n", "0::/../../docker/0123abcd\n", "0::/\n"}) {
    const Root root({{"/proc/self/cgroup", group},
                     {kTop + "/memory.max", "1073741824\n"},
                     {kTop + "/cpu.max", "150000 100000\n"},
                     {kTop + "/memory.events", "oom_kill 0\n"}});
    CHECK(cgroup_limits(root.path()).memory_bytes == kGiB);
    CHECK(cgroup_limits(root.path()).cores == 1.5);
    CHECK(out_of_memory_kills(root.path()) == 0);
  }
}

TEST_CASE("no control groups, no limits, and the host counts who was killed", "[launch]") {
  const std::vector<std::pair<std::string, std::string>> one_file{
      {"/proc/vmstat", "pgfault 3\noom_kill 44\n"}};
  const Root none(one_file);
  CHECK_FALSE(cgroup_limits(none.path()).memory_bytes);
  CHECK_FALSE(cgroup_limits(none.path()).cores);
  CHECK(out_of_memory_kills(none.path()) == 44);
  const Root garbage({{"/proc/self/cgroup", "nonsense\n::::\n0:\n\n0::/a\n"},
                      {kTop + "/a/memory.max", "a lot\n"},
                      {kTop + "/a/cpu.max", "\n"}});
  CHECK_FALSE(cgroup_limits(garbage.path()).memory_bytes);
  CHECK_FALSE(cgroup_limits(garbage.path()).cores);
  CHECK_FALSE(out_of_memory_kills(garbage.path()));
}

TEST_CASE("this machine's limits are numbers that a process can have", "[launch]") {
  CHECK(host_memory_bytes() > 64 << 20);
  CHECK(usable_cores() >= 1);
}
