// Record files with random changes. LTRAIN_FUZZ_EXECUTIONS asks for a longer run (docs/testing.md).
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/hash/crc32c.h"
#include "tests/runtime/records/golden_path.h"
#include "tests/runtime/records/record_files_support.h"
#include "tests/support/mutations.h"

using namespace ltrain;
using namespace ltrain::records;
using namespace ltrain::records::test;
using Catch::Contains;
using data::test::bytes_of;
using data::test::read_file;
using data::test::TempFolder;
using data::test::write_file;
using ltrain::test::mutated;
using ltrain::test::Random;

namespace {

struct Seed {
  const char* format;
  std::string bytes;
  void (*repair)(std::string&) = nullptr;  ///< makes checksums right again, so that what they cover is read
};

std::string decompressed_file(const std::string& path) {
  const auto file = std::make_shared<data::InputFile>(path);
  return beginning(file, path, compression_of(read_file(path).substr(0, 4)), 1 << 20);
}

void repair_tfrecord(std::string& file) {
  for (size_t at = 0; at + 16 <= file.size();) {
    uint64_t size = 0;
    std::memcpy(&size, file.data() + at, 8);
    const uint32_t head = masked_crc32c(file.data() + at, 8);
    std::memcpy(file.data() + at + 8, &head, 4);
    if (size > file.size() - at - 16) return;
    const uint32_t body = masked_crc32c(file.data() + at + 12, size);
    std::memcpy(file.data() + at + 12 + size, &body, 4);
    at += 16 + size;
  }
}

/// The sum of a header's bytes, with spaces in the place of the sum.
void repair_tar(std::string& file) {
  for (size_t at = 0; at + 512 <= file.size(); at += 512) {
    if (file.compare(at + 257, 5, "ustar") != 0) continue;
    unsigned sum = 8 * ' ';
    for (size_t i = 0; i < 512; ++i)
      if (i < 148 || i >= 156) sum += static_cast<unsigned char>(file[at + i]);
    std::snprintf(file.data() + at + 148, 8, "%06o", sum & 0777777u);
    file[at + 155] = ' ';
  }
}

std::vector<Seed> seeds() {
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 9;
  const std::string tokens = bytes_of(std::vector<uint16_t>{50256, 1, 2, 50256, 3, 4, 50256, 5, 6});
  return {{"mds", read_file(golden_path("shard.mds"))},
          {"mds", read_file(golden_path("shard.mds.zstd"))},
          {"tfrecord", read_file(golden_path("examples.tfrecord")), repair_tfrecord},
          {"tar", read_file(golden_path("samples.tar.gz"))},
          {"tar", decompressed_file(golden_path("samples.tar.gz")), repair_tar},
          {"arrow", read_file(golden_path("stream.arrow"))},
          {"arrow", read_file(golden_path("file-lz4.arrow"))},
          {"arrow", read_file(golden_path("types-stream.arrow"))},
          {"arrow", read_file(golden_path("views-stream.arrow"))},
          {"arrow", read_file(golden_path("views-file-zstd.arrow"))},
          {"parquet", read_file(golden_path("v1-plain-none.parquet"))},
          {"parquet", read_file(golden_path("v1-dictionary-snappy.parquet"))},
          {"parquet", read_file(golden_path("v1-small-dictionary-lz4.parquet"))},
          {"parquet", read_file(golden_path("v2-delta-zstd.parquet"))},
          {"parquet", read_file(golden_path("v2-split-gzip.parquet"))},
          {"parquet", read_file(golden_path("types-brotli.parquet"))},
          {"csv", "lang,text\r\nen,plain\n\nde,\"two\nlines, \"\"quoted\"\"\"\nfr\nit,\n"},
          {"llmc", bytes_of(header) + tokens},
          {"nanogpt", tokens}};
}

struct MutantCounts {
  int64_t refused = 0, read = 0;
};

/// Reads a file to its end: whole records, or one field.
void read_mutant(const Format& format, const std::string& path, const std::string& bytes, bool whole,
                 MutantCounts& out) {
  write_file(path, bytes);
  const auto opened = std::make_shared<data::InputFile>(path);
  Selection selection{{}, whole};
  if (!whole) selection.fields = {format.default_field};
  try {
    const auto source = format.open({opened, "mutant", compression_of(bytes.substr(0, 4))}, selection);
    for (Record r; source->next(r);) ++out.read;
  } catch (const Error& e) {
    ++out.refused;
    CHECK_THAT(std::string(e.what()), Contains("mutant"));
  }
}

}  // namespace

TEST_CASE("records: mutated files end in records or in an error, never otherwise", "[records]") {
  const bool asked = std::getenv("LTRAIN_FUZZ_EXECUTIONS");
  const std::vector<Seed> all = seeds();
  const int64_t each = ltrain::test::fuzz_executions(7600) / static_cast<int64_t>(all.size());
  TempFolder f;
  MutantCounts sum;
  for (size_t i = 0; i < all.size(); ++i) {
    const Seed& seed = all[i];
    INFO(seed.format << ", seed " << i);
    const Format* format = format_named(seed.format);
    REQUIRE(format);
    Random random = ltrain::test::fuzz_random(7 + i);
    MutantCounts out;
    for (int64_t k = 0; k < each; ++k) {
      std::string mutant = mutated(seed.bytes, random);
      if (seed.repair && k % 2) seed.repair(mutant);
      read_mutant(*format, f / "mutant", mutant, random() % 2, out);
    }
    CHECK(out.refused > 0);
    sum.read += out.read, sum.refused += out.refused;
    if (asked)
      WARN(seed.format << ": " << each << " files, " << out.refused << " refused, " << out.read
                       << " records");
  }
  CHECK(sum.refused > 1000);
  CHECK(sum.read > 1000);
}
