// Offload memory in files: bytes come back as they went, whatever their size and place, by io_uring or
// without.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "kernels/storage/io_ring.h"
#include "kernels/storage/offload.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

std::vector<char> noise(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<char> bytes(n);
  for (char& b : bytes) b = static_cast<char>(random());
  return bytes;
}

Tensor bytes_of(std::vector<char>& v) {
  Tensor t;
  t.data = v.data();
  t.dtype = DType::u8;
  t.shape = {static_cast<int64_t>(v.size())};
  return t;
}

/// Many windows of odd sizes, next to each other, written in one order and read in another.
void round_trip(OffloadMemory& m) {
  const int64_t sizes[] = {4096, 1, 4095, 4097, 700, 1 << 19, (1 << 21) + 5, 3 << 20, 12288, 17};
  std::vector<std::vector<char>> all;
  std::vector<int64_t> at;
  int64_t end = 0;
  for (unsigned i = 0; i < 10; ++i) {
    all.push_back(noise(static_cast<size_t>(sizes[i]), i));
    at.push_back(end);
    end += sizes[i];
  }
  m.reserve(end + 4096);
  const size_t order[] = {9, 0, 5, 2, 7, 1, 6, 3, 8, 4};
  for (size_t i : order) m.store(bytes_of(all[i]), at[i]);
  std::vector<std::vector<char>> back;
  for (size_t i = 0; i < all.size(); ++i) {
    back.emplace_back(all[i].size());
    m.fetch(bytes_of(back[i]), at[i]);
  }
  m.stream().synchronize();
  for (size_t i = 0; i < all.size(); ++i) {
    INFO("window " << i);
    CHECK((back[i] == all[i]));
    const char* mapped = static_cast<const char*>(m.at(at[i]));
    CHECK(std::equal(all[i].begin(), all[i].end(), mapped));
  }
  // Bytes that the host writes arrive, too.
  static_cast<char*>(m.at(at[6]))[9] ^= 1;
  m.release();
  all[6][9] ^= 1;
  m.fetch(bytes_of(back[6]), at[6]);
  m.stream().synchronize();
  CHECK((back[6] == all[6]));
}

/// Resident memory of this process, of files.
int64_t file_pages() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;)
    if (word == "RssFile:") {
      int64_t kib = 0;
      in >> kib;
      return kib << 10;
    }
  return -1;
}

class Setting {
 public:
  explicit Setting(const char* value) { setenv("LTRAIN_IO", value, 1); }
  ~Setting() { unsetenv("LTRAIN_IO"); }
};

}  // namespace

TEST_CASE("windows of odd sizes come back from a file as they went, by io_uring and by calls") {
  const std::string io = GENERATE(as<std::string>(), "auto", "pread");
  const Setting setting(io.c_str());
  TemporaryFolder folder;
  const auto m = make_file_memory(DeviceKind::cpu, folder.path(), {"offload.test", "noise"});
  round_trip(*m);
  INFO(m->how());
  CHECK((m->how().find("pread and pwrite (LTRAIN_IO=pread)") == 0) == (io == "pread"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a file system that has no way past the page cache works through it") {
  if (access("/dev/shm", W_OK) != 0) return;
  const auto m = make_file_memory(DeviceKind::cpu, "/dev/shm", {"offload.test", "noise"});
  round_trip(*m);
}

TEST_CASE("what was touched of a file is the process's memory until it lets go") {
  TemporaryFolder folder;
  const auto m = make_file_memory(DeviceKind::cpu, folder.path(), {"offload.test", "noise"});
  constexpr int64_t kBytes = 32 << 20;
  m->reserve(kBytes);
  const int64_t before = file_pages();
  std::fill_n(static_cast<char*>(m->at(0)), kBytes, 'x');
  CHECK(file_pages() - before > kBytes / 2);
  m->release();
  CHECK(file_pages() - before < kBytes / 8);
  CHECK(static_cast<char*>(m->at(0))[kBytes - 1] == 'x');
}

TEST_CASE("a sandbox that refuses io_uring is named, and transfers go by calls") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {                                               // says what it saw; no assertions here
    sock_filter filter[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},  // the number of the call
                            {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_io_uring_setup},
                            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
                            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    const sock_fprog program{4, filter};
    std::string text;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
      text = "no seccomp";
    std::string why;
    if (text.empty() && !make_io_ring(4, why)) text = why;
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  char text[256] = {};
  close(ends[1]);
  (void)!read(ends[0], text, sizeof text - 1);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  if (std::string(text) != "no seccomp")
    CHECK(std::string(text) == "io_uring_setup: Operation not permitted");
}

TEST_CASE("LTRAIN_IO has three values") {
  const Setting setting("fast");
  std::string why;
  CHECK_THROWS_WITH(make_io_ring(4, why), "LTRAIN_IO=fast: must be auto, uring or pread");
}
