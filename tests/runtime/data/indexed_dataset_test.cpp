#include "runtime/data/indexed_dataset.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "runtime/data/dataset_writer.h"
#include "tests/runtime/data/support.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kAny = int64_t{1} << 31;

std::vector<int32_t> read_all(const IndexedDataset& d) {
  std::vector<int32_t> tokens(d.tokens());
  d.read(0, d.tokens(), kAny, tokens.data());
  return tokens;
}

/// A tokenizer of any vocabulary size, for the writer.
class SizedTokenizer final : public data::Tokenizer {
 public:
  explicit SizedTokenizer(int64_t size) : size_(size) {}
  std::string name() const override { return "sized"; }
  int64_t vocab_size() const override { return size_; }
  int32_t eot() const override { return static_cast<int32_t>(size_ - 1); }
  std::string hash() const override { return "0"; }
  std::unique_ptr<data::Tokenizer> clone() const override { return std::make_unique<SizedTokenizer>(size_); }
  void encode(std::string_view, std::vector<int32_t>&) override {}
  void decode(const int32_t*, int64_t, std::string&, bool) const override {}
  int64_t text_bytes(int32_t) const override { return 0; }
  int64_t safe_cut(std::string_view) const override { return 0; }

 private:
  int64_t size_;
};

}  // namespace

TEST_CASE("dataset: the writer's bytes are Megatron's", "[data]") {
  TempFolder f;
  DatasetWriter w(f / "a", SizedTokenizer(257), true, false);
  const std::vector<int32_t> one{1, 2, 3}, two{256};
  w.add(one.data(), 3);
  CHECK(w.end_document());
  CHECK_FALSE(w.end_document());  // no tokens, no document
  w.add(two.data(), 1);
  w.end_document();
  CHECK_FALSE(file_exists(f / "a.idx"));
  const SourceInfo info = w.finish();
  CHECK(read_file(f / "a.bin") == bytes_of<uint16_t>({1, 2, 3, 256, 256, 256}));
  CHECK(read_file(f / "a.idx") == index_bytes(8, {4, 2}, {0, 8}, {0, 1, 2}));
  CHECK(info.max_token == 256);

  const SourceInfo seen = inspect_source(f / "a");
  CHECK(seen.has_sidecar);
  CHECK(seen.documents == 2);
  CHECK(seen.tokens == 6);
  CHECK(seen.vocab_size == 257);
  CHECK(seen.eot == 256);
  IndexedDataset d(f / "a.idx");
  CHECK(read_all(d) == std::vector<int32_t>{1, 2, 3, 256, 256, 256});
  CHECK(d.scan().bin_hash == seen.bin_hash);
  for (const char* end : {".bin", ".idx", ".json"}) CHECK(file_exists(f / "a" + end));
  CHECK_FALSE(file_exists(f / "a.lengths"));
}

TEST_CASE("dataset: element type by vocabulary as in Megatron", "[data]") {
  for (const auto& [vocab, type] :
       {std::pair{int64_t{65499}, TokenType::u16}, {int64_t{65500}, TokenType::i32}}) {
    TempFolder f;
    DatasetWriter w(f / "a", SizedTokenizer(vocab), false, false);
    const int32_t t = static_cast<int32_t>(vocab - 1);
    w.add(&t, 1);
    w.end_document();
    CHECK(w.finish().type == type);
    CHECK(read_all(IndexedDataset(f / "a")) == std::vector<int32_t>{t});
  }
}

TEST_CASE("dataset: a document longer than a sequence takes several", "[data]") {
  TempFolder f;
  DatasetWriter w(f / "a", SizedTokenizer(1000), true, false);
  w.max_sequence = 4;
  std::vector<int32_t> tokens(10);
  for (int i = 0; i < 10; ++i) tokens[i] = i;
  w.add(tokens.data(), 8);
  w.end_document();  // 8 + end of text: 4 + 4 + 1
  w.add(tokens.data(), 2);
  w.end_document();
  w.finish();
  CHECK(read_file(f / "a.idx") == index_bytes(8, {4, 4, 1, 3}, {0, 8, 16, 18}, {0, 3, 4}));
  IndexedDataset d(f / "a");
  CHECK(d.document(0).count == 9);
  CHECK(d.document(1).first == 9);
  CHECK(d.document(1).count == 3);
  CHECK(d.document_lengths().longest == 9);
  CHECK(d.document_lengths().shortest == 3);
}

TEST_CASE("dataset: an interrupted build leaves nothing", "[data]") {
  TempFolder f;
  {
    DatasetWriter w(f / "a", SizedTokenizer(9), false, false);
    const int32_t t = 1;
    w.add(&t, 1);
    w.end_document();
  }
  CHECK_FALSE(file_exists(f / "a.bin"));
  CHECK(rmdir(f.path().c_str()) == 0);  // empty
}

TEST_CASE("file: it has its name only after commit", "[data]") {
  TempFolder f;
  write_file(f / "x", "old");
  {
    OutputFile file(f / "x");
    file.write("new", 3);
    file.flush();
    CHECK(read_file(f / "x") == "old");
    CHECK(read_file(file.path_before_commit()) == "new");
    file.commit();
  }
  CHECK(read_file(f / "x") == "new");
  OutputFile(f / "y").write("z", 1);
  CHECK(std::distance(std::filesystem::directory_iterator(f.path()), {}) == 1);
  CHECK_THAT(error_of([&] { OutputFile(f / "no/x"); }), Contains("73: ") && Contains("cannot be created"));
}

TEST_CASE("dataset: every element type and any order of sequences reads the same", "[data]") {
  TempFolder f;
  write_file(f / "u8.bin", bytes_of<uint8_t>({200, 7}));
  write_file(f / "u8.idx", index_bytes(1, {2}, {0}, {0, 1}));
  CHECK(read_all(IndexedDataset(f / "u8")) == std::vector<int32_t>{200, 7});
  write_file(f / "i8.bin", bytes_of<int8_t>({100, 7}));
  write_file(f / "i8.idx", index_bytes(2, {2}, {0}, {0, 1}));
  CHECK(read_all(IndexedDataset(f / "i8")) == std::vector<int32_t>{100, 7});
  write_file(f / "i16.bin", bytes_of<int16_t>({30000, 7}));
  write_file(f / "i16.idx", index_bytes(3, {2}, {0}, {0, 1}));
  CHECK(read_all(IndexedDataset(f / "i16")) == std::vector<int32_t>{30000, 7});
  write_file(f / "i64.bin", bytes_of<int64_t>({2000000000, 7}));
  write_file(f / "i64.idx", index_bytes(5, {2}, {0}, {0, 1}, std::string(1, '\0')));  // with modes, all text
  CHECK(read_all(IndexedDataset(f / "i64")) == std::vector<int32_t>{2000000000, 7});

  // Sequences that lie in .bin in another order, among them an empty one.
  write_file(f / "mixed.bin", bytes_of<uint16_t>({3, 4, 5, 1, 2}));
  write_file(f / "mixed.idx", index_bytes(8, {2, 0, 3}, {6, 0, 0}, {0, 1, 3}));
  IndexedDataset mixed(f / "mixed");
  CHECK(read_all(mixed) == std::vector<int32_t>{1, 2, 3, 4, 5});
  std::vector<int32_t> part(3);
  mixed.read(1, 3, kAny, part.data());
  CHECK(part == std::vector<int32_t>{2, 3, 4});
  CHECK(mixed.document(1).count == 3);
}

TEST_CASE("dataset: many sequences out of order", "[data]") {
  // More than a block of the reader's table, lengths 0 to 4, written backwards.
  TempFolder f;
  const int n = 10000;
  std::mt19937 rng(1);
  std::vector<int32_t> lengths(n), all;
  std::vector<int64_t> pointers(n), documents(n + 1);
  std::vector<std::vector<int32_t>> sequences(n);
  for (int i = 0; i < n; ++i) {
    lengths[i] = static_cast<int32_t>(rng() % 5);
    documents[i + 1] = i + 1;
    for (int k = 0; k < lengths[i]; ++k)
      sequences[i].push_back(static_cast<int32_t>(all.size())), all.push_back(all.size());
  }
  std::string bin;
  for (int i = n - 1; i >= 0; --i) {
    pointers[i] = static_cast<int64_t>(bin.size());
    bin += bytes_of(sequences[i]);
  }
  write_file(f / "a.bin", bin);
  write_file(f / "a.idx", index_bytes(4, lengths, pointers, documents));
  IndexedDataset d(f / "a");
  CHECK(read_all(d) == all);
  for (int i = 0; i < 200; ++i) {
    const int64_t first = rng() % (all.size() - 50);
    std::vector<int32_t> part(50);
    d.read(first, 50, kAny, part.data());
    CHECK(part == std::vector<int32_t>(all.begin() + first, all.begin() + first + 50));
    const int64_t at = rng() % n;
    CHECK(d.document(at).count == lengths[at]);
    if (lengths[at] > 0) CHECK(d.document(at).first == sequences[at][0]);
  }
}

TEST_CASE("dataset: damaged files are refused with path and offset", "[data]") {
  const std::string good_bin = bytes_of<uint16_t>({1, 2, 3, 4, 5});
  const std::string good = index_bytes(8, {2, 3}, {0, 4}, {0, 1, 2});
  auto patched = [&](size_t at, const std::string& bytes) {
    std::string s = good;
    return s.replace(at, bytes.size(), bytes);
  };
  auto u64 = [](uint64_t v) { return bytes_of<uint64_t>({v}); };
  struct Case {
    std::string name, index, bin, rule;
  };
  const std::vector<Case> cases = {
      {"empty index", "", good_bin, "0 bytes; an index has a header of 34"},
      {"short header", good.substr(0, 33), good_bin, "truncated or not an index"},
      {"magic", patched(0, "X"), good_bin, "byte offset 0: does not begin with MMIDIDX"},
      {"version", patched(9, u64(2)), good_bin, "byte offset 9: version 2"},
      {"type zero", patched(17, std::string(1, '\0')), good_bin, "byte offset 17: element type code 0"},
      {"type float", patched(17, "\x07"), good_bin, "element type code 7"},
      {"type beyond", patched(17, "\x09"), good_bin, "element type code 9"},
      {"sequences overflow", patched(18, u64(~0ull)), good_bin, "byte offset 18"},
      {"sequences times 12 overflows", patched(18, u64(~0ull / 12 + 2)), good_bin, "byte offset 18"},
      {"documents overflow", patched(26, u64(~0ull / 8 + 2)), good_bin, "byte offset 26"},
      {"no documents", patched(26, u64(0)), good_bin, "byte offset 26"},
      {"index cut", good.substr(0, good.size() - 1), good_bin, "it is truncated"},
      {"index too long", good + std::string(5, '\0'), good_bin, "is unknown"},
      {"modes", good + std::string("\0\1", 2), good_bin, "sequence 1 has mode 1"},
      {"negative length", patched(34, bytes_of<int32_t>({-1})), good_bin,
       "byte offset 34: sequence 0 has length -1"},
      {"pointer past the end", patched(42 + 8, bytes_of<int64_t>({6})), good_bin, "truncated"},
      {"pointer overflow", patched(42, bytes_of<int64_t>({INT64_MAX - 1})), good_bin, "past the end"},
      {"negative pointer", patched(42, bytes_of<int64_t>({-2})), good_bin, "not a multiple"},
      {"odd pointer", patched(42, bytes_of<int64_t>({1})), good_bin,
       "lies at 1, not a multiple of the 2 bytes"},
      {"first document", patched(58, bytes_of<int64_t>({1})), good_bin, "begins at sequence 0"},
      {"documents go down", patched(58 + 8, bytes_of<int64_t>({-1})), good_bin, "do not go down"},
      {"last document", patched(58 + 16, bytes_of<int64_t>({1})), good_bin, "the number of sequences"},
      {"bin cut", good, good_bin.substr(0, 8), "a.bin: 8 bytes"},
      {"bin odd", good, good_bin.substr(0, 9), "not whole tokens of 2 bytes"},
      {"bin empty", good, "", "a.bin: 0 bytes"},
      {"bin too long", good, good_bin + "xx", "names only the first 10"},
      {"overlap", patched(42 + 8, bytes_of<int64_t>({2})), good_bin, "names only the first 8"},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    TempFolder f;
    write_file(f / "a.bin", c.bin);
    write_file(f / "a.idx", c.index);
    const std::string error = error_of([&] { IndexedDataset d(f / "a"); });
    CHECK_THAT(error, Contains("65: ") && Contains(f / "a.") && Contains(c.rule));
  }
  TempFolder f;  // and the undamaged one is taken
  write_file(f / "a.bin", good_bin);
  write_file(f / "a.idx", good);
  CHECK(error_of([&] { IndexedDataset d(f / "a"); }) == "");
}

TEST_CASE("dataset: what is missing is named with what would work", "[data]") {
  TempFolder f;
  CHECK_THAT(error_of([&] { inspect_source(f / "none"); }),
             Contains("none.idx: not found") && Contains("data build"));
  write_file(f / "text.txt", "hello");
  CHECK_THAT(error_of([&] { inspect_source(f / "text.txt"); }),
             Contains("data build --input " + (f / "text.txt")));
  write_file(f / "half.idx", index_bytes(8, {}, {}, {0}));
  CHECK_THAT(error_of([&] { inspect_source(f / "half"); }), Contains("half.bin: not found"));
}

TEST_CASE("dataset: a bad token is named with its byte offset", "[data]") {
  TempFolder f;
  write_dataset(f / "a", {{1, 2, 300}, {-5, 4}});
  IndexedDataset d(f / "a");
  std::vector<int32_t> out(5);
  d.read(0, 3, 301, out.data());
  CHECK_THAT(error_of([&] { d.read(0, 3, 300, out.data()); }),
             Contains("65: " + (f / "a.bin: byte offset 8: token 300 is outside the vocabulary of 300")));
  CHECK_THAT(error_of([&] { d.read(0, 5, kAny, out.data()); }), Contains("byte offset 12: token -5"));
  CHECK_THAT(error_of([&] { d.scan(); }), Contains("byte offset 12: token -5"));
  // 64-bit tokens whose low 32 bits look harmless.
  write_file(f / "b.bin", bytes_of<int64_t>({7, (int64_t{1} << 32) + 7}));
  write_file(f / "b.idx", index_bytes(5, {2}, {0}, {0, 1}));
  CHECK_THAT(error_of([&] { IndexedDataset(f / "b").read(0, 2, kAny, out.data()); }),
             Contains("token 4294967303"));
}

TEST_CASE("dataset: a file cut short while it is open gives an error", "[data]") {
  TempFolder f;
  write_dataset(f / "a", {std::vector<int32_t>(100000, 5)});
  IndexedDataset d(f / "a");
  REQUIRE(truncate((f / "a.bin").c_str(), 1000) == 0);
  std::vector<int32_t> out(100);
  d.read(0, 100, kAny, out.data());
  CHECK_THAT(error_of([&] { d.read(200, 100, kAny, out.data()); }),
             Contains("65: " + (f / "a.bin")) && Contains("ends at byte offset 1000") &&
                 Contains("400000 bytes when"));
}

TEST_CASE("dataset: offsets beyond 2^32 bytes and 2^31 tokens", "[data]") {
  TempFolder f;
  const int32_t length = 1500000000;  // twice: 6 GB of u16, sparse
  write_file(f / "a.idx", index_bytes(8, {length, length}, {0, int64_t{2} * length}, {0, 1, 2}));
  write_file(f / "a.bin", "");
  if (truncate((f / "a.bin").c_str(), int64_t{4} * length) != 0) {
    ltrain::test::skip_test("offsets beyond 2^32 bytes: no sparse files here");
    return;
  }
  FILE* file = std::fopen((f / "a.bin").c_str(), "r+b");
  REQUIRE(file);
  REQUIRE(fseeko(file, int64_t{4} * length - 2, SEEK_SET) == 0);
  const uint16_t last = 4321;
  REQUIRE(std::fwrite(&last, 2, 1, file) == 1);
  std::fclose(file);
  IndexedDataset d(f / "a");
  CHECK(d.tokens() == int64_t{2} * length);
  CHECK(d.info().samples(4096) == (int64_t{2} * length - 1) / 4096);
  int32_t out[2];
  d.read(d.tokens() - 2, 2, 5000, out);
  CHECK(out[0] == 0);
  CHECK(out[1] == 4321);
}

TEST_CASE("dataset: the sidecar must fit the index", "[data]") {
  TempFolder f;
  DatasetWriter w(f / "a", SizedTokenizer(300), false, false);
  const std::vector<int32_t> t{1, 2, 299};
  w.add(t.data(), 3);
  w.end_document();
  w.finish();
  const std::string good = read_file(f / "a.json");
  auto with = [&](const std::string& from, const std::string& to) {
    std::string s = good;
    const size_t at = s.find(from);
    REQUIRE(at != std::string::npos);
    write_file(f / "a.json", s.replace(at, from.size(), to));
    return error_of([&] { inspect_source(f / "a"); });
  };
  CHECK(with("\"tokens\": 3", "\"tokens\": 3") == "");
  CHECK_THAT(with("\"tokens\": 3", "\"tokens\": 4"), Contains("tokens is 4, but") && Contains("has 3"));
  CHECK_THAT(with("\"documents\": 1", "\"documents\": 2"), Contains("not of the same build"));
  CHECK_THAT(with("\"vocab_size\": 300", "\"vocab_size\": -1"), Contains("vocab_size is -1"));
  CHECK_THAT(with("\"max_token\": 299", "\"max_token\": 1e3"),
             Contains("max_token is 1000.0, not a whole number"));
  CHECK_THAT(with("\"eot\": 299,", ""), Contains("key eot is missing"));
  CHECK_THAT(with("ltrain-tokens", "other"), Contains("not the sidecar"));
  CHECK_THAT(with("{", "{{"), Contains("not JSON: "));
  CHECK_THAT(with("\"version\": 1", "\"version\": 2"), Contains("version 2; this ltrain reads version 1"));

  write_file(f / "a.json", good);
  const SourceInfo info = inspect_source(f / "a");
  CHECK(error_of([&] { check_source(info, 300, 2); }) == "");
  CHECK_THAT(error_of([&] { check_source(info, 299, 2); }), Contains("65: ") && Contains("holds token 299"));
  CHECK_THAT(error_of([&] { check_source(info, 300, 3); }),
             Contains("shorter than one sample of seq_length + 1 = 4"));
}

TEST_CASE("dataset: random damage is an error or harmless", "[data]") {
  TempFolder f;
  DatasetWriter w(f / "a", SizedTokenizer(300), true, false);
  std::vector<int32_t> t(50);
  for (int i = 0; i < 50; ++i) t[i] = i;
  for (int d = 0; d < 6; ++d) {
    w.add(t.data(), 7 * d + 1);
    w.end_document();
  }
  w.finish();
  const std::string parts[3] = {read_file(f / "a.bin"), read_file(f / "a.idx"), read_file(f / "a.json")};
  const char* ends[3] = {".bin", ".idx", ".json"};
  std::mt19937 rng(99);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string now[3] = {parts[0], parts[1], parts[2]};
    const int which = round % 3;
    for (int k = 1 + static_cast<int>(rng() % 3); k > 0; --k) {
      std::string& s = now[which];
      switch (rng() % 4) {
        case 0:
          s[rng() % s.size()] = static_cast<char>(rng());
          break;
        case 1:
          s[rng() % s.size()] ^= static_cast<char>(1 << rng() % 8);
          break;
        case 2:
          s.resize(rng() % s.size() + 1);
          break;
        case 3:
          s[rng() % s.size()] = static_cast<char>(0xff);
          break;
      }
    }
    write_file(f / "b" + ends[which], now[which]);
    for (int i = 0; i < 3; ++i)
      if (i != which) write_file(f / "b" + ends[i], now[i]);
    try {
      IndexedDataset d(f / "b");
      const std::vector<int32_t> all = read_all(d);
      for (int64_t i = 0; i < d.info().documents; ++i) d.document(i);
      d.document_lengths();
      d.scan();
    } catch (const Error& e) {
      ++refused;
      if (e.code() != ExitCode::data) FAIL(e.what());
    }
  }
  CHECK(refused > 400);
}
