// Folders of Hugging Face datasets: configurations, splits, and what is left out.
#include "runtime/data/input/dataset_folder.h"

#include <catch2/catch.hpp>

#include "runtime/data/input/input_list.h"
#include "tests/runtime/data/support.h"

using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Contains;

namespace {

std::vector<std::string> chosen(const TempFolder& f, const DatasetPart& part) {
  std::vector<std::filesystem::path> files;
  for (const auto& e : std::filesystem::recursive_directory_iterator(f.path()))
    if (e.is_regular_file()) files.push_back(e.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> names;
  for (const auto& p : select_dataset(files, f.path(), part).files)
    names.push_back(p.lexically_relative(f.path()).string());
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("dataset folders: a split is a word of the path between separators", "[data]") {
  CHECK(split_of("data/train-00000-of-00002.parquet") == "train");
  CHECK(split_of("my.training/a.csv") == "train");
  CHECK(split_of("valid/0.jsonl") == "validation");
  CHECK(split_of("dev2.txt") == "validation");
  CHECK(split_of("a_eval.json") == "test");
  CHECK(split_of("trainer/a.txt").empty());
  CHECK(split_of("latest.txt").empty());
}

TEST_CASE("dataset folders: configs: of the README choose the files", "[data]") {
  TempFolder f;
  write_file(
      f / "README.md",
      "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: [en/*.csv, more.csv]\n"
      "  - split: test\n    path: en_test.csv\n- config_name: de\n  default: true\n  data_files: "
      "\"de/**/*.csv\"\n---\n# text\n");
  for (const char* name : {"en/a.csv", "en/b.csv", "more.csv", "en_test.csv", "de/c.csv", "de/x/d.csv"})
    write_file(f / name, "text\nx\n");
  CHECK(chosen(f, {}) == Names{"de/c.csv", "de/x/d.csv"});
  CHECK(chosen(f, {"en", ""}) == Names{"en/a.csv", "en/b.csv", "more.csv"});
  CHECK(chosen(f, {"en", "test"}) == Names{"en_test.csv"});
  CHECK_THAT(
      error_of([&] {
        chosen(f, {"fr", ""});
      }),
      Contains("65: ") && Contains("no configuration fr; its README.md has the configurations: en, de"));
  CHECK_THAT(error_of([&] { chosen(f, {"en", "dev"}); }), Contains("the configuration en has: test, train"));
  write_file(f / "README.md", "---\nconfigs: [\n---\n");
  CHECK_THAT(error_of([&] { chosen(f, {}); }), Contains("65: ") && Contains("are not readable"));
}

TEST_CASE("dataset folders: Parquet files by the names of their splits, other folders whole", "[data]") {
  TempFolder f;
  for (const char* name : {"train/a.txt", "test/b.txt", "notes.txt"}) write_file(f / name, "text\n");
  CHECK(chosen(f, {}).size() == 3);
  CHECK(chosen(f, {"", "test"}) == Names{"test/b.txt"});
  CHECK_THAT(error_of([&] {
               chosen(f, {"", "dev"});
             }),
             Contains("no file is of the split dev; names of its files say: test, train"));
  write_file(f / "data/train-0.parquet", "x");
  write_file(f / "data/validation-0.parquet", "x");
  CHECK(chosen(f, {}) == Names{"data/train-0.parquet", "train/a.txt"});
}

TEST_CASE("dataset folders: files without names of splits are of train, as the datasets library has it",
          "[data]") {
  TempFolder f;
  for (const char* name : {"a.parquet", "b.parquet"}) write_file(f / name, "x");
  CHECK(chosen(f, {"", "train"}) == Names{"a.parquet", "b.parquet"});
  CHECK(chosen(f, {}) == Names{"a.parquet", "b.parquet"});
  CHECK_THAT(error_of([&] { chosen(f, {"", "test"}); }), Contains("names of its files say: no split"));
}

TEST_CASE("dataset folders: data_dir of a configuration holds its files", "[data]") {
  TempFolder f;
  for (const char* name : {"p/train.csv", "p/test.csv", "q/test.csv", "q/x/a.csv"})
    write_file(f / name, "text\nx\n");
  write_file(f / "README.md",
             "---\nconfigs:\n- config_name: default\n  data_dir: p\n- config_name: other\n  data_dir: q/\n"
             "  data_files: x/*.csv\n- config_name: none\n  data_dir: /etc\n---\n");
  CHECK(chosen(f, {}) == Names{"p/train.csv"});
  CHECK(chosen(f, {"", "test"}) == Names{"p/test.csv"});
  CHECK(chosen(f, {"other", ""}) == Names{"q/x/a.csv"});
  CHECK_THAT(error_of([&] { chosen(f, {"none", ""}); }), Contains("README.md names it as data_dir"));
}

TEST_CASE("dataset folders: text beside record files is left out and named", "[data]") {
  TempFolder f;
  write_file(f / "in/README.md", "# A dataset\n");
  write_file(f / "in/index.json", "{\"shards\": []}\n");
  write_file(f / "in/a.csv", "text\none\n");
  write_file(f / "in/b.jsonl", "{\"text\": \"two\"}\n");
  const InputList list = list_inputs({f / "in"}, {}, {});
  REQUIRE(list.files.size() == 2);
  CHECK(list.descriptions.text("x") == "2 x (" + (f / "in/README.md") + ", " + (f / "in/index.json") + ")");
}
