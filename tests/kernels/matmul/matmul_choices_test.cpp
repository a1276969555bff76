#include "kernels/matmul/matmul_choices.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

MatmulChoice choice(int id) {
  MatmulChoice c;
  for (size_t i = 0; i < c.algorithm.size(); ++i)
    c.algorithm[i] = 0x0123456789abcdefull * (i + 1) + static_cast<uint64_t>(id);
  c.id = id;
  c.microseconds = 12.5;
  return c;
}

const std::string kCard = "NVIDIA H200, driver 580.65, cuBLASLt 130100";

}  // namespace

TEST_CASE("choices of matmul algorithms come back from their file, of this card alone") {
  const TemporaryFolder f;
  {
    MatmulChoices c(f.path() + "/new", kCard);
    CHECK(c.find("4096-2048-tn") == nullptr);
    c.add("4096-2048-tn", choice(66));
    c.add("1-2-nn", choice(0));
    CHECK(c.note().empty());
  }
  const MatmulChoices again(f.path() + "/new", kCard);
  REQUIRE(again.find("4096-2048-tn"));
  CHECK(again.find("4096-2048-tn")->algorithm == choice(66).algorithm);
  CHECK(again.find("4096-2048-tn")->id == 66);
  CHECK(again.find("1-2-nn")->microseconds == 12.5);
  CHECK(again.size() == 2);
  for (const char* other :
       {"NVIDIA H200, driver 580.82, cuBLASLt 130100", "NVIDIA H100, driver 580.65, cuBLASLt 130100"})
    CHECK(MatmulChoices(f.path() + "/new", other).size() == 0);
  CHECK(std::distance(std::filesystem::directory_iterator(f.path() + "/new"), {}) ==
        1);  // nothing half-written is left
}

TEST_CASE("choices that two processes add are both kept") {
  const TemporaryFolder f;
  MatmulChoices a(f.path(), kCard), b(f.path(), kCard);
  a.add("a", choice(1));
  b.add("b", choice(2));
  a.add("c", choice(3));
  const MatmulChoices all(f.path(), kCard);
  CHECK(all.size() == 3);
  CHECK(all.find("b")->id == 2);
}

TEST_CASE("a damaged file of choices is passed over, says why, and is written anew") {
  const TemporaryFolder f;
  MatmulChoices good(f.path(), kCard);
  good.add("a", choice(1));
  const std::string path = good.path(), text = read_file(path);
  const auto why = [&](const std::string& changed) {
    write_text(path, changed);
    const MatmulChoices c(f.path(), kCard);
    CHECK(c.size() == 0);
    return c.note();
  };
  for (size_t at = 0; at < text.size(); ++at) {  // any byte
    std::string broken = text;
    broken[at] = static_cast<char>(broken[at] ^ 1);
    CAPTURE(at);
    CHECK(why(broken) != "");
  }
  for (size_t length = 0; length < text.size(); length += 7) CHECK(why(text.substr(0, length)) != "");
  CHECK(why(text + "\n").find("no sum") != std::string::npos);
  CHECK(why(std::string((8 << 20) + 1, 'x')).find("more than") != std::string::npos);
  MatmulChoices c(f.path(), kCard);
  c.add("b", choice(2));
  const MatmulChoices after(f.path(), kCard);
  CHECK(after.note().empty());
  CHECK(after.size() == 1);
}

TEST_CASE("choices that cannot be written are kept in memory, and it is said") {
  const TemporaryFolder f;
  write_text(f.path() + "/file", "");
  MatmulChoices c(f.path() + "/file", kCard);  // no folder
  c.add("a", choice(1));
  CHECK(c.find("a")->id == 1);
  CHECK(c.note().find("cannot be written") != std::string::npos);
  MatmulChoices nowhere("", kCard);
  nowhere.add("a", choice(1));
  CHECK(nowhere.find("a")->id == 1);
  CHECK(nowhere.note().empty());
  CHECK_THROWS_AS(c.add("a b", choice(1)), Error);
}

TEST_CASE("how matmul algorithms are chosen is said by name") {
  ::setenv("LTRAIN_MATMUL_ALGORITHMS", "measured", 1);
  CHECK(measure_matmuls());
  ::setenv("LTRAIN_MATMUL_ALGORITHMS", "fastest", 1);
  CHECK_THROWS_WITH(measure_matmuls(), Catch::Contains("must be heuristic or measured"));
  ::unsetenv("LTRAIN_MATMUL_ALGORITHMS");
  CHECK_FALSE(measure_matmuls());
}
