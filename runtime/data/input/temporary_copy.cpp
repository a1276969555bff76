#include "runtime/data/input/temporary_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "base/limits.h"

namespace ltrain::data {

std::shared_ptr<InputFile> temporary_copy(const std::string& name,
                                          const std::function<int64_t(void* to, int64_t bytes)>& read) {
  const char* folder = std::getenv("TMPDIR");
  std::string copy = std::string(folder && *folder ? folder : "/tmp") + "/ltrain-input-XXXXXX";
  const Fd to(::mkostemp(copy.data(), O_CLOEXEC));
  if (to.get() < 0) fail_system(copy + ": cannot be created for a copy of " + name, errno, ExitCode::storage);
  ::unlink(copy.c_str());
  std::vector<char> block(1 << 20);
  while (const int64_t n = read(block.data(), static_cast<int64_t>(block.size()))) {
    for (int64_t done = 0; done < n;) {
      const ssize_t m = ::write(to.get(), block.data() + done, static_cast<size_t>(n - done));
      if (m >= 0)
        done += m;
      else if (errno != EINTR)
        fail_system(copy + ": a copy of " + name + " cannot be written; set TMPDIR to a folder with room",
                    errno, ExitCode::storage);
    }
  }
  return std::make_shared<InputFile>(fmt::format("/proc/self/fd/{}", to.get()));
}

std::shared_ptr<InputFile> copy_stream(const std::string& path, const std::string& name) {
  Fd opened;
  if (path != "-") {
    opened = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (opened.get() < 0) fail_system(path + ": cannot be opened", errno, ExitCode::data);
  }
  const int from = path == "-" ? 0 : opened.get();
  return temporary_copy(name, [&](void* to, int64_t bytes) -> int64_t {
    for (;;) {
      const ssize_t n = ::read(from, to, static_cast<size_t>(bytes));
      if (n >= 0) return n;
      if (errno != EINTR) fail_system(name + ": cannot be read", errno, ExitCode::data);
    }
  });
}

}  // namespace ltrain::data
