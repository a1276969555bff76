#include "tests/runtime/data/support.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace fs = std::filesystem;

namespace ltrain::data::test {

void write_file(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return std::to_string(static_cast<int>(e.code())) + ": " + e.what();
  }
  return "";
}

Ran run_ltrain(const std::string& arguments, const std::string& input) {
  TempFolder folder;
  write_file(folder / "in", input);
  const std::string command = "'" LTRAIN_BINARY "' " + arguments + " <" + (folder / "in") + " >" +
                              (folder / "out") + " 2>" + (folder / "err");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out"), read_file(folder / "err")};
}

std::string index_bytes(int code, const std::vector<int32_t>& lengths, const std::vector<int64_t>& pointers,
                        const std::vector<int64_t>& documents, const std::string& modes) {
  return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({1}) + static_cast<char>(code) +
         bytes_of<uint64_t>({lengths.size()}) + bytes_of<uint64_t>({documents.size()}) + bytes_of(lengths) +
         bytes_of(pointers) + bytes_of(documents) + modes;
}

void write_dataset(const std::string& prefix, const std::vector<std::vector<int32_t>>& documents) {
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers, starts{0};
  std::string bin;
  for (const auto& d : documents) {
    lengths.push_back(static_cast<int32_t>(d.size()));
    pointers.push_back(static_cast<int64_t>(bin.size()));
    bin += bytes_of(d);
    starts.push_back(static_cast<int64_t>(lengths.size()));
  }
  write_file(prefix + ".bin", bin);
  write_file(prefix + ".idx", index_bytes(4, lengths, pointers, starts));
}

}  // namespace ltrain::data::test
