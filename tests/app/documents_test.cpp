// Commands of documents run and print what the page shows. Every recipe is planned and run.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "tests/app/documents_support.h"
#include "tests/app/run_program.h"
#include "tests/support/model_recipes.h"

using namespace ltrain::test;

namespace {

/// A small version of any recipe: two steps, short sequences, this folder's data.
const char* kTinyRun =
    " train.train_steps=2 train.eval_interval=0 train.micro_batch_size=2 train.global_batch_size=4 "
    "schedule.lr_warmup_steps=1 data.seq_length=16 checkpoint.save_interval=2 ";

/// Writes new output behind commands of a page, the last ones first.
void write_outputs(const std::string& path,
                   const std::vector<std::pair<ShownCommand, std::vector<std::string>>>& outputs) {
  std::vector<std::string> lines = lines_of(read_file(path));
  for (auto at = outputs.rbegin(); at != outputs.rend(); ++at) {
    const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(at->first.line);
    const auto left = lines.erase(begin, begin + static_cast<std::ptrdiff_t>(at->first.output.size()));
    lines.insert(left, at->second.begin(), at->second.end());
  }
  std::ofstream page(path);
  for (const std::string& line : lines) page << line << '\n';
}

}  // namespace

TEST_CASE("shown output takes new figures, and nothing else") {
  using Lines = std::vector<std::string>;
  const Lines printed{"plan of x, on 8 ranks", "  arena        12.5 GiB", "  step time    384.1 ms (dp 0.5)",
                      "fits: 13.0 GiB"};
  CHECK(renewed({"  step time  1 ms", "fits"}, printed) == printed);
  CHECK(renewed({"plan of x...ranks", "...", "  step time    385.0 ms (dp 0.4)", "..."}, printed) ==
        Lines{"plan of x...ranks", "...", printed[2], "..."});
  CHECK(renewed({"...", "  another line 5"}, printed).empty());
  CHECK(renewed({"...", "fits: 1 GiB", "...", "plan of x, on 8 ranks"}, printed).empty());
}

// LTRAIN_WRITE_GOLDEN=1 renews the figures of the pages in place, where the lines are the same but for them.
TEST_CASE("what documents show on a console is what the program does") {
  TempRun t;
  const std::string source = LTRAIN_SOURCE_DIR;
  // A checkout in small: the binary, the recipes, and the quickstart's data.
  REQUIRE(t.shell("mkdir -p build runs/quickstart/data && ln -s " + std::string(LTRAIN_BINARY) +
                  " build/ltrain && ln -s build/ltrain ltrain && cp -r " + source +
                  "/recipes . && build/ltrain data build --input text.txt --output runs/quickstart/data/text "
                  "--split 90,10 --tokenizer byte && mkdir -p tokenizers/small && cp " +
                  source +
                  "/tests/golden/tokenizers/llama3.tokenizer.json tokenizers/small/tokenizer.json && printf "
                  "'{\"eos_token\": \"<|end|>\"}' > tokenizers/small/tokenizer_config.json && cp -r " +
                  source + "/tests/golden/records shards")
              .code == 0);
  std::vector<std::string> documents{"README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(source + "/docs"))
    if (entry.path().extension() == ".md") documents.push_back("docs/" + entry.path().filename().string());
  int commands = 0, compared = 0;
  for (const std::string& document : documents) {
    std::vector<std::pair<ShownCommand, std::vector<std::string>>> outputs;
    for (ShownCommand c : shown_commands(source, document)) {
      ++commands, compared += c.compared;
      if (c.command.rfind("build/ltrain run ", 0) == 0) c.command += kTinyRun;
      const Outcome o = t.shell("export PATH=\"$PWD:$PATH\" LTRAIN_PROFILE=none; " + c.command);
      INFO(c.place << ": " << c.command << "\n" << o.text);
      CHECK(o.code == c.code);
      if (!c.compared) continue;
      const bool same = lines_match(c.output, lines_of(o.text));
      CHECK(same);
      if (const auto lines = renewed(c.output, lines_of(o.text)); !same && !lines.empty())
        outputs.emplace_back(c, lines);
    }
    if (std::getenv("LTRAIN_WRITE_GOLDEN") && !outputs.empty())
      write_outputs(source + "/" + document, outputs);
  }
  CHECK(commands >= 25);
  CHECK(compared >= 12);
}

TEST_CASE("figures of tensor parallelism in docs/parallelism.md are the plan's") {
  const TempRun t;
  const std::string root = LTRAIN_SOURCE_DIR;
  static const std::regex row(R"(\| `(tensor: [^`]*)` \| ([0-9]+) \| ([0-9]+) \|)");
  int rows = 0;
  for (const std::string& line : lines_of(read_file(root + "/docs/parallelism.md"))) {
    std::smatch found;
    if (!std::regex_match(line, found, row)) continue;
    ++rows;
    const std::string settings = found[1];
    const Outcome o =
        t.sh("plan " + root +
             "/recipes/gpt2-124m.yaml precision=fp32 train.micro_batch_size=32 train.global_batch_size=32 "
             "data.seq_length=512 parallel.data=1 device=cpu 'parallel={" +
             settings + "}' --json 2>/dev/null");
    INFO(line << "\n" << o.text);
    REQUIRE(o.code == 0);
    const auto rank = nlohmann::json::parse(o.text)["ranks"][0];
    const auto mib = [](const nlohmann::json& bytes) {
      return std::to_string(std::llround(bytes.get<double>() / (1 << 20)));
    };
    CHECK(mib(rank["wire_bytes_per_step"]) == found[2]);
    CHECK(mib(rank["memory_bytes"]["arena"]["total"]) == found[3]);
  }
  CHECK(rows == 5);
}

TEST_CASE("keys, files, links and tests that documents name are there") {
  namespace fs = std::filesystem;
  const TempRun t;
  const std::string root = std::string(LTRAIN_SOURCE_DIR) + "/";
  const auto reference = nlohmann::json::parse(t.sh("recipe keys --json").text).at("keys");
  std::set<std::string> keys, sections, words;  // words: first parts of sections
  for (const auto& key : reference) {
    const std::string path = key.at("path");
    keys.insert(path);
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
      sections.insert(path.substr(0, dot));
    if (path.find('.') != std::string::npos) words.insert(path.substr(0, path.find('.')));
  }
  const auto heading_links = [](const std::string& text) {
    std::set<std::string> links;
    for (const std::string& line : lines_of(text)) {
      if (line.rfind("#", 0) != 0) continue;
      std::string link;
      for (const unsigned char c : line.substr(std::min(line.find(' ') + 1, line.size())))
        if (std::isalnum(c) || c == '-' || c == '_')
          link += static_cast<char>(std::tolower(c));
        else if (c == ' ')
          link += '-';
      links.insert(link);
    }
    return links;
  };
  static const std::regex key_name(R"(`([a-z_0-9]+(?:\.[a-z_0-9]+)+)[`:= ])"),
      file(
          R"(`((?:tests|planner|runtime|kernels|models|parallel|base|app|scripts|docs|recipes|parity)/[\w./-]*\w))"),
      link(R"(\]\(([^)]+)\))"), test_name(R"re(`([\w/]+_test\.cpp)`: "([^"]*?)(?: \.\.\.)?")re");
  int found_keys = 0, found_files = 0, found_links = 0, found_tests = 0;
  std::vector<std::string> documents{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"};
  for (const auto& entry : fs::directory_iterator(root + "docs"))
    if (entry.path().extension() == ".md") documents.push_back("docs/" + entry.path().filename().string());
  for (const std::string& document : documents) {
    std::string text = read_file(root + document);
    // Quoted C++ has brackets like those of links.
    for (size_t at = 0; (at = text.find("```cpp\n", at)) != std::string::npos;)
      text.erase(at, text.find("```\n", at + 7) + 4 - at);
    const auto each = [&](const std::regex& what, const auto& check) {
      for (std::sregex_iterator i(text.begin(), text.end(), what), end; i != end; ++i) {
        INFO(document << ": " << i->str());
        check((*i)[1].str(), i->size() > 2 ? (*i)[2].str() : "");
      }
    };
    each(key_name, [&](const std::string& key, const std::string&) {
      if (!words.count(key.substr(0, key.find('.'))) || key.ends_with(".cpp") || key.ends_with(".h")) return;
      if (key.rfind("data.train.0", 0) == 0) return;  // an entry of a list
      ++found_keys;
      CHECK((keys.count(key) || sections.count(key)));
    });
    each(file, [&](const std::string& name, const std::string&) {
      if (name.find("kernels/scale") != std::string::npos)
        return;  // the op that extending.md adds as an example
      if (name.find("docs/measurements/compare-") == 0) return;  // a pattern of names
      ++found_files;
      CHECK((fs::exists(root + name) || fs::exists(root + "tests/" + name)));
    });
    each(link, [&](const std::string& to, const std::string&) {
      if (to.rfind("http", 0) == 0) return;
      ++found_links;
      const size_t hash = to.find('#');
      const std::string name = to.substr(0, hash);
      const std::string target =
          name.empty() ? document : (fs::path(document).parent_path() / name).lexically_normal().string();
      CHECK(fs::exists(root + target));
      if (hash != std::string::npos)
        CHECK(heading_links(read_file(root + target)).count(to.substr(hash + 1)) == 1);
    });
    each(test_name, [&](const std::string& name, const std::string& title) {
      ++found_tests;
      CHECK(read_file(root + "tests/" + name).find("\"" + title) != std::string::npos);
    });
  }
  CHECK(found_keys >= 80);
  CHECK(found_files >= 40);
  CHECK(found_links >= 40);
  CHECK(found_tests >= 10);
  // Counts that the README gives.
  for (const auto& key : reference) {
    if (key.at("path") == "optimizer.kind") CHECK(key.at("choices").size() == 11);  // "eleven optimizers"
    if (key.at("path") != "model.architecture") continue;
    CHECK(key.at("choices").size() == 16);  // "16 families"
    for (const std::string name : key.at("choices"))
      CHECK(read_file(root + "docs/models.md").find("`" + name + "`") != std::string::npos);
  }
}

TEST_CASE("every number of metrics.jsonl is defined in docs/metrics.md") {
  const TempRun t;
  const std::string page = read_file(std::string(LTRAIN_SOURCE_DIR) + "/docs/metrics.md");
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  REQUIRE(t.sh("run tiny.yaml output_dir=experts parallel.expert=2 'model.moe={num_experts: 4, "
               "capacity_factor: 1.0, balance: {kind: hf}, z_loss_coeff: 0.001}'")
              .code == 0);
  std::set<std::string> names;
  for (const char* run : {"run", "experts"})
    for (const std::string& line : lines_of(read_file(t.folder() + "/" + run + "/metrics.jsonl"))) {
      const auto numbers = nlohmann::json::parse(line);
      for (const auto& [name, value] : numbers.items()) names.insert(name);
    }
  CHECK(names.size() >= 18);
  for (const std::string& name : names) {
    INFO(name);
    CHECK(page.find("`" + name + "`") != std::string::npos);
  }
}

TEST_CASE("every environment variable that the program reads or sets is in docs/environment.md") {
  namespace fs = std::filesystem;
  const std::string root = std::string(LTRAIN_SOURCE_DIR) + "/";
  // Names in sources: the argument of getenv and setenv, and every string that is only such a name.
  static const std::regex call(R"re((?:getenv|setenv)\("(\w+)")re");
  static const std::regex name(
      R"re("((?:LTRAIN|SLURM|SLURMD|NCCL|CUDA|OMP|GOMP|PET|PMI|PMIX|OMPI|MPI|XDG|TORCHELASTIC|MASTER|LOCAL|GROUP|JOB)_\w+|RANK|WORLD_SIZE|HOME)")re");
  const auto names_in = [](const std::string& text) {
    std::set<std::string> names;
    for (const std::regex* r : {&call, &name})
      for (std::sregex_iterator i(text.begin(), text.end(), *r), end; i != end; ++i)
        names.insert((*i)[1].str());
    return names;
  };
  std::map<std::string, std::string> read;  // variable -> a file that names it
  std::set<std::string> words;  // words of all sources: rows may name variables that only a script has
  for (const char* folder : {"app", "planner", "runtime", "parallel", "models", "kernels", "base"})
    for (const auto& entry : fs::recursive_directory_iterator(root + folder)) {
      const std::string path = entry.path().string(), kind = entry.path().extension();
      if (kind != ".cpp" && kind != ".h" && kind != ".cu") continue;
      const std::string text = read_file(path);
      for (const std::string& variable : names_in(text)) read.emplace(variable, path.substr(root.size()));
      static const std::regex word(R"(\b[A-Z][A-Z0-9]*(?:_\w+)?\b)");
      for (std::sregex_iterator i(text.begin(), text.end(), word), end; i != end; ++i) words.insert(i->str());
    }
  CHECK(read.size() >= 80);
  std::set<std::string> rows;  // the variables in the first cells of the page's tables
  for (const std::string& line : lines_of(read_file(root + "docs/environment.md"))) {
    if (line.rfind("| `", 0) != 0) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    static const std::regex variable(R"(`([A-Z]\w+)`)");
    for (std::sregex_iterator i(cell.begin(), cell.end(), variable), end; i != end; ++i) {
      INFO(line);
      CHECK(rows.insert((*i)[1].str()).second);  // one row each
    }
  }
  for (const auto& [variable, file] : read) {
    INFO(file << " reads or sets " << variable << ", which has no row in docs/environment.md");
    CHECK(rows.count(variable) == 1);
  }
  for (const std::string& variable : rows) {
    INFO("docs/environment.md has a row for " << variable << ", which no source names");
    CHECK(words.count(variable) == 1);
  }
  // Negative control: a variable that is read and has no row is seen, in each way in which sources read them.
  CHECK(names_in("std::getenv(\"NEW_NAME\")") == std::set<std::string>{"NEW_NAME"});
  CHECK(names_in("::setenv(\"NEW_NAME\", \"1\", 1)") == std::set<std::string>{"NEW_NAME"});
  CHECK(names_in("r.text(\"SLURM_NEW\"), {\"LTRAIN_NEW\", \"1\"}") ==
        std::set<std::string>{"SLURM_NEW", "LTRAIN_NEW"});
  CHECK(names_in("fail(\"LTRAIN_NEW={}: is wrong\"); \"rank\"").empty());
  CHECK(rows.count("NEW_NAME") == 0);
}

TEST_CASE("a console block that says something else is seen") {
  const std::vector<std::string> printed{"a: 1.5 s", "b", "c"};
  CHECK(lines_match({"a: ... s", "b", "c"}, printed));
  CHECK(lines_match({"...", "c"}, printed));
  CHECK(lines_match({"a: 1.5 s", "..."}, printed));
  CHECK(lines_match({"..."}, {}));
  CHECK_FALSE(lines_match({"a: ... ms", "b", "c"}, printed));
  CHECK_FALSE(lines_match({"a: 1.5 s", "b"}, printed));
  CHECK_FALSE(lines_match({"a: 1.5 s", "c"}, printed));
  CHECK_FALSE(lines_match({"...", "d"}, printed));
  const TempRun t;
  std::ofstream(t.folder() + "/page.md")
      << "text\n```console\nfirst x\n$ second # exit 64\nout 1\n\nout 2\n$ third\n```\n"
         "$ none\n```sh\nnone\n```\n";
  const auto shown = shown_commands(t.folder(), "page.md");
  REQUIRE(shown.size() == 3);
  CHECK((shown[0].command == "first x" && !shown[0].compared && shown[0].code == 0));
  CHECK((shown[1].code == 64 && shown[1].output == std::vector<std::string>{"out 1", "", "out 2"}));
  CHECK((shown[2].command == "third" && shown[2].compared && shown[2].output.empty()));
  CHECK(shown[1].place == "page.md:4");
}

TEST_CASE("every recipe plans as it is, and runs in small on the CPU") {
  TempRun t;
  int count = 0;
  for (const std::string& recipe : recipes_in("recipes")) {
    ++count;
    const Outcome plan = t.sh("plan " + recipe);
    INFO(recipe << "\n" << plan.text);
    CHECK(plan.code == 0);
    CHECK(plan.text.find("none refused") != std::string::npos);
    const auto has = [&](const char* section) {
      return read_file(recipe).find(section) != std::string::npos;
    };
    // Each of two replicas gets one of the two micro-batches.
    const Outcome run = t.sh("run " + recipe + kTinyRun + (has("\ndiloco:") ? "diloco.inner_steps=2" : "") +
                             " output_dir=out model.num_hidden_layers=2 'data.train=[{path: text-train}]' "
                             "'data.eval=[]' data.tokenizer.kind=byte device=cpu parallel.data=" +
                             (has("\nreplicas:") ? "1" : "2"));
    INFO(run.text);
    CHECK(run.code == 0);
    std::filesystem::remove_all(t.folder() + "/out");
  }
  CHECK(count >= 9);
}

TEST_CASE("docs/compositions.md has the table of compositions that the program prints") {
  TempRun t;
  const std::string table = t.sh("plan --compositions").text;
  REQUIRE(table.size() > 1000);
  CHECK(
      read_file(std::string(LTRAIN_SOURCE_DIR) + "/docs/compositions.md").find("```text\n" + table + "```") !=
      std::string::npos);
  const auto j = nlohmann::json::parse(t.sh("plan --compositions --json").text);
  CHECK(j["cells"].size() == j["features"].size() * (j["features"].size() + 1) / 2);
}
