// Helpers of the data tests.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace ltrain::data::test {

/// A folder that is removed at the end.
class TempFolder : public ltrain::test::TemporaryFolder {
 public:
  std::string operator/(const std::string& name) const { return path() + "/" + name; }
};

void write_file(const std::string& path, const std::string& bytes);  ///< makes the folders above it
using ltrain::test::read_file;

/// Text of the Error that `f` throws, with "EXITCODE: " before it; "" if it throws none.
std::string error_of(const std::function<void()>& f);

/// Ranks of a small vocabulary in tiktoken's form.
inline const std::string kRanks = LTRAIN_SOURCE_DIR "/tests/golden/small.tiktoken";

struct Ran {
  int code;
  std::string out, err;
};
/// The ltrain binary with shell arguments.
Ran run_ltrain(const std::string& arguments, const std::string& input = "");

/// Little-endian bytes of values.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

/// An .idx as Megatron's builder writes it.
std::string index_bytes(int code, const std::vector<int32_t>& lengths, const std::vector<int64_t>& pointers,
                        const std::vector<int64_t>& documents, const std::string& modes = "");

/// PREFIX.bin and .idx of documents of i32 tokens, without a sidecar.
void write_dataset(const std::string& prefix, const std::vector<std::vector<int32_t>>& documents);

}  // namespace ltrain::data::test
