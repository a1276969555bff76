// Faults that the kernel of a host injects into a run: its memory limit kills a rank, its file system becomes
// read-only.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"
#include "tests/support/outcome.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Exit code of a script that cannot inject its fault on this machine.
constexpr int kNotPossible = 77;

}  // namespace

TEST_CASE("the kernel's memory limit kills ranks (F7): the message speaks of memory and shows the limit") {
  const TempRun t;
  // A control group with 300 MiB for a run that plans 1.3 GiB.
  const auto run = [&](const std::string& option) {
    return t.shell(
        "g=/sys/fs/cgroup/memory/ltrain-test-$$; mkdir $g && echo 300M >$g/memory.limit_in_bytes || exit 77\n"
        "(echo 0 >$g/cgroup.procs && exec " +
        program() +
        " run tiny.yaml model.hidden_size=512 model.intermediate_size=2048 model.num_hidden_layers=8 " +
        option +
        ")\n"
        "code=$?; rmdir $g; exit $code");
  };
  const Outcome refused = run("");
  INFO(refused.text);
  if (refused.code == kNotPossible)
    return skip_test(
        "ranks that are killed by a memory limit: no memory control group (v1) can be made here");
  CHECK(refused.code == 78);
  CHECK_THAT(refused.text, Contains("this host has 300.0 MiB"));
  const Outcome killed = run("--force");
  INFO(killed.text);
  CHECK(killed.code == 71);
  CHECK_THAT(killed.text,
             Contains("was killed by signal 9 (SIGKILL): the host or its cgroup ran out of memory "
                      "(limit 0.3 GiB)"));
}

TEST_CASE(
    "a file system that becomes read-only between saves (F23): the saves fail, the checkpoint before stays, "
    "and "
    "the next run goes on from it") {
  const TempRun whole, t;
  REQUIRE(whole.sh("run tiny.yaml").code == 0);
  // An error of ext4, between the second step's save and the fourth's.
  const std::string job = program() + " run tiny.yaml checkpoint.async_save=false";
  std::ofstream(t.folder() + "/script.sh")
      << "truncate -s 32M disk && mkfs.ext4 -q -F disk && mkdir -p run/checkpoints || exit 77\n"
         "mount -o loop,errors=remount-ro disk run/checkpoints || exit 77\n"
         "rmdir run/checkpoints/lost+found\n"
         "device=$(findmnt -no SOURCE run/checkpoints); "
         "trigger=/sys/fs/ext4/${device#/dev/}/trigger_fs_error\n"
         "[ -w $trigger ] || exit 77\n"
         "LTRAIN_FAULT=train.step:0:4:sleep=2000 " +
             job +
             " & p=$!\n"
             "until [ -e run/checkpoints/step-00000002/COMMIT ]; do sleep 0.05; kill -0 $p || exit 1; done\n"
             "echo test >$trigger\n"
             "wait $p; echo \"exit code $?\"; echo \"left: $(ls run/checkpoints)\"\n"
             "umount run/checkpoints && mount -o loop disk run/checkpoints && exec " +
             job + "\n";
  const Outcome o = t.shell("unshare -m true || exit 77; unshare -m sh script.sh");
  INFO(o.text);
  if (o.code == kNotPossible)
    return skip_test("a file system that becomes read-only: no ext4 of a file can be mounted here");
  CHECK(o.code == 0);
  CHECK_THAT(o.text,
             Contains("WARNING: the checkpoint of step 4 was not saved; training goes on from memory, the "
                      "last good one is of step 2") &&
                 Contains("Read-only file system (errno 30)") &&
                 Contains("the last checkpoint could not be saved") && Contains("exit code 73\n") &&
                 Contains("left: step-00000002\n") && Contains("resuming from") &&
                 Contains("step 2, all hashes verified"));
  const auto numbers = t.values("lm_loss");
  const auto expected = whole.values("lm_loss");
  REQUIRE(numbers.size() >= 6);
  CHECK(std::vector<double>(numbers.end() - 4, numbers.end()) ==
        std::vector<double>(expected.end() - 4, expected.end()));
}
