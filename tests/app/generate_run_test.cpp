// ltrain generate through the real program: several prompts, strings that end a text, several ranks.
#include <catch2/catch.hpp>
#include <sstream>

#include "runtime/checkpoint/safetensors.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {

/// The objects that `generate --json` prints, one a prompt.
std::vector<nlohmann::json> generated(const TempRun& t, const std::string& options) {
  const Outcome o =
      t.shell(std::string(LTRAIN_BINARY) + " generate run --json --threads 1 " + options + " 2>/dev/null");
  INFO(o.text);
  REQUIRE(o.code == 0);
  std::vector<nlohmann::json> out;
  std::istringstream lines(o.text);
  for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

}  // namespace

TEST_CASE("several prompts at once give what each gives, whatever the batch") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=30 optimizer.lr=0.01").code == 0);
  const std::string three =
      "--prompt 'line ' --prompt 'of a text that' --prompt '' --tokens 50 --temperature 0";
  const auto together = generated(t, three);
  REQUIRE(together.size() == 3);
  CHECK(together[1]["prompt"] == "of a text that");
  for (const std::string batch : {"1", "2"}) CHECK(generated(t, three + " --batch " + batch) == together);
  for (size_t i = 0; i < 3; ++i) {
    const std::string prompt = together[i]["prompt"];
    const auto alone = generated(t, "--prompt '" + prompt + "' --tokens 50 --temperature 0");
    CHECK(alone.at(0)["tokens"] == together[i]["tokens"]);
  }
  // Draws are another for each prompt, though the prompts are alike, and the first one's are those of it
  // alone.
  const auto drawn = generated(t, "--prompt a --prompt a --tokens 30");
  CHECK(drawn[0]["tokens"] != drawn[1]["tokens"]);
  CHECK(generated(t, "--prompt a --tokens 30")[0]["tokens"] == drawn[0]["tokens"]);
  // For people: whole texts under their numbers.
  const Outcome text = t.sh("generate run --threads 1 --prompt 'line ' --prompt 'of' --tokens 5 2>/dev/null");
  CHECK(text.text.find("== 1\nline ") == 0);
  CHECK(text.text.find("\n== 2\nof") != std::string::npos);
}

TEST_CASE("a stop string ends a text before it") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=30 optimizer.lr=0.01").code == 0);
  const std::string options = "--prompt 'line ' --tokens 60 --temperature 0 --ignore-end";
  const std::string whole = generated(t, options)[0]["text"];
  REQUIRE(whole.size() > 20);
  const std::string stop = whole.substr(10, 2);
  const auto cut = generated(t, options + " --stop never-there --stop '" + stop + "'")[0];
  CHECK(cut["stopped"] == true);
  CHECK(cut["text"] == whole.substr(0, whole.find(stop)));
  CHECK(cut["tokens"].size() < 20);
  CHECK(generated(t, options + " --stop never-there")[0]["text"] == whole);
  const Outcome people = t.sh("generate run --threads 1 " + options + " --stop '" + stop + "' 2>/dev/null");
  CHECK(people.text == "line " + whole.substr(0, whole.find(stop)) + "\n");
}

TEST_CASE("generation and evaluation over several processes print what one process prints") {
  TempRun t;
  const std::string experts =
      GENERATE("", " model.architecture=mixtral model.moe.num_experts=4 model.moe.top_k=2");
  REQUIRE(
      t.sh("run tiny.yaml train.train_steps=30 optimizer.lr=0.01 model.num_hidden_layers=3" + experts).code ==
      0);
  std::ofstream(t.folder() + "/q.jsonl")
      << R"({"question": "line of a", "choices": ["text", "times"], "answer": 0})"
      << "\n"
      << R"({"question": "line", "choices": ["of", "is", "s"], "answer": 1})";
  std::vector<std::string> layouts{"tensor=2", "pipeline=2", "tensor=2 --parallel pipeline=3"};
  if (!experts.empty()) layouts = {"data=2,expert=2", "data=2,expert=2,pipeline=2"};
  const auto say = [&](const std::string& command, const std::string& layout) {
    const Outcome o = t.sh(command + (layout.empty() ? "" : " --parallel " + layout) + " 2>err.txt");
    INFO(o.text << read_file(t.folder() + "/err.txt"));
    REQUIRE(o.code == 0);
    return o.text;
  };
  for (const std::string command :
       {"generate run --prompt 'line ' --tokens 40 --temperature 0",
        "generate run --prompt 'line ' --prompt 'of a' --prompt '' --tokens 30 --seed 3 --json",
        "generate run --prompt 'line ' --tokens 40 --temperature 0 --stop e", "eval run --json",
        "eval run --choices q.jsonl --scores s.jsonl"}) {
    const std::string one = say(command, "");
    REQUIRE_FALSE(one.empty());
    std::string scores;
    if (command.ends_with("s.jsonl")) scores = read_file(t.folder() + "/s.jsonl");
    for (const std::string& layout : layouts) {
      INFO(command << " " << layout);
      const std::string several = say(command, layout);
      if (!command.starts_with("eval run --json")) {
        CHECK(several == one);
      } else {  // sums in another order
        const auto a = nlohmann::json::parse(one)["sets"][0], b = nlohmann::json::parse(several)["sets"][0];
        CHECK(a["tokens"] == b["tokens"]);
        CHECK(a["bytes"] == b["bytes"]);
        CHECK(std::abs(a["loss"].get<double>() - b["loss"].get<double>()) < 1e-4);
      }
      if (scores.empty()) continue;
      const auto a = nlohmann::json::parse(scores.substr(0, scores.find('\n')))["log_likelihoods"];
      const std::string now = read_file(t.folder() + "/s.jsonl");
      const auto b = nlohmann::json::parse(now.substr(0, now.find('\n')))["log_likelihoods"];
      for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i].get<double>() - b[i].get<double>()) < 1e-3);
    }
  }
}

TEST_CASE("a layout that a model cannot have is refused before any rank is started") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=1").code == 0);
  const auto refused = [&](const std::string& layout) {
    const Outcome o = t.sh("generate run --parallel " + layout);
    CHECK(o.code == 64);
    CHECK(o.text.find("run failed") == std::string::npos);
    return o.text;
  };
  CHECK_THAT(refused("tensor=3"),
             Catch::Contains("parallel.tensor = 3: must divide model.num_attention_heads"));
  CHECK_THAT(refused("pipeline=99"), Catch::Contains("parallel.pipeline = 99"));
  CHECK_THAT(refused("data=2,expert=2"), Catch::Contains("a dense model has no experts to cut"));
  CHECK_THAT(refused("expert=2"), Catch::Contains("experts are cut over data ranks"));
  CHECK_THAT(refused("tensor=x"), Catch::Contains("needs a number of ranks from 1 to"));
  CHECK_THAT(refused("tensors=2"), Catch::Contains("needs data, tensor, pipeline or expert"));
  CHECK_THAT(refused("tensor"), Catch::Contains("such as tensor=2"));
}

namespace {

/// Writes a llama folder of one layer, whose head finds a mark (# or $) at any distance by its slowest
/// rotation: after # comes P, after $ comes Q, without a mark a dot. All other weights are 0.
void write_mark_finder(const std::string& folder, int64_t positions, const nlohmann::json& more = {}) {
  constexpr int64_t kHidden = 16, kVocab = 257;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  nlohmann::json config{{"model_type", "llama"},    {"vocab_size", kVocab},
                        {"hidden_size", kHidden},   {"intermediate_size", 24},
                        {"num_hidden_layers", 1},   {"num_attention_heads", 2},
                        {"num_key_value_heads", 1}, {"head_dim", 8},
                        {"rope_theta", 1e6},        {"tie_word_embeddings", false},
                        {"torch_dtype", "float32"}, {"max_position_embeddings", positions}};
  if (!more.is_null()) config.update(more);
  std::ofstream(folder + "/config.json") << config;
  std::map<std::string, std::vector<float>> values;
  std::vector<ltrain::SafetensorsItem> items;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float value) {
    const int64_t n = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    values[name].assign(static_cast<size_t>(n), value);
    items.push_back({name, ltrain::DType::f32, shape, values[name].data()});
  };
  const std::string layer = "model.layers.0.", attention = layer + "self_attn.";
  add("model.embed_tokens.weight", {kVocab, kHidden}, 0);
  add("lm_head.weight", {kVocab, kHidden}, 0);
  for (const std::string& norm :
       {std::string("model.norm"), layer + "input_layernorm", layer + "post_attention_layernorm"})
    add(norm + ".weight", {kHidden}, 1);
  add(attention + "q_proj.weight", {kHidden, kHidden}, 0);
  add(attention + "k_proj.weight", {8, kHidden}, 0);
  add(attention + "v_proj.weight", {8, kHidden}, 0);
  add(attention + "o_proj.weight", {kHidden, kHidden}, 0);
  add(layer + "mlp.gate_proj.weight", {24, kHidden}, 0);
  add(layer + "mlp.up_proj.weight", {24, kHidden}, 0);
  add(layer + "mlp.down_proj.weight", {kHidden, 24}, 0);
  const auto put = [&](const std::string& name, int64_t row, int64_t column, float value) {
    values.at(name + ".weight")[static_cast<size_t>(row * kHidden + column)] = value;
  };
  for (int64_t token = 0; token < kVocab; ++token) put("model.embed_tokens", token, 0, 1);
  put(attention + "q_proj", 3, 0, 5);
  for (const auto& [mark, answer, channel] : {std::tuple{'#', 'P', 1}, {'$', 'Q', 2}}) {
    put("model.embed_tokens", mark, channel, 4);
    put(attention + "k_proj", 3, channel, 5);
    put(attention + "v_proj", channel - 1, channel, 1);
    put(attention + "o_proj", 3 + channel, channel - 1, 4);
    put("lm_head", answer, 3 + channel, 1);
  }
  put("lm_head", '.', 0, 0.1f);
  ltrain::NewFile file(folder + "/model.safetensors");
  ltrain::write_safetensors(file, items);
}

}  // namespace

TEST_CASE("a prompt is read whole up to the model's positions, and refused beyond them") {
  TempRun t;
  write_mark_finder(t.folder() + "/run", 5000);
  const auto answer = [&](const std::string& mark, size_t length, const std::string& more = "") {
    const std::string prompt = mark + std::string(length - 1, 'a');
    return generated(t,
                     "--tokens 1 --temperature 0 --ignore-end --prompt '" + prompt + "' " + more)[0]["text"];
  };
  for (const size_t length : {10u, 511u, 513u, 2048u, 2049u, 3000u, 5000u}) {
    INFO(length);
    CHECK(answer("#", length) == "P");
    CHECK(answer("$", length) == "Q");
  }
  CHECK(answer("a", 3000) == ".");  // negative control: no mark
  const auto refused = [&](size_t length, const std::string& options) {
    const Outcome o = t.sh("generate run --threads 1 --prompt '" + std::string(length, 'a') + "' " + options);
    INFO(o.text);
    CHECK(o.code == 64);
    return o.text;
  };
  CHECK_THAT(refused(5001, "--tokens 1"), Catch::Contains("prompt 1 has 5001 tokens, and the model 5000 "
                                                          "positions"));
  CHECK_THAT(refused(5001, ""), Catch::Contains("--context-shift"));
  CHECK_THAT(refused(4990, "--tokens 12"), Catch::Contains("expected at most --tokens 11;"));
  CHECK_THAT(refused(10, "--prompt '" + std::string(4999, 'a') + "' --tokens 3"),
             Catch::Contains("prompt 2 has 4999 tokens") && Catch::Contains("expected at most --tokens 2;"));
  // Without --tokens as many as there is room for; the option takes both.
  const std::string most = "--temperature 0 --ignore-end --prompt '" + std::string(4990, 'a') + "'";
  CHECK(generated(t, most)[0]["tokens"].size() == 11);
  CHECK(generated(t, most + " --tokens 12 --context-shift")[0]["tokens"].size() == 12);
  CHECK(answer("#", 5001, "--context-shift") == ".");  // the older half is gone
}

TEST_CASE("each of several end tokens ends a text, from every file that names one") {
  TempRun t;
  const auto made = [&](const std::string& options = "") {
    return generated(t, "--tokens 3 --temperature 0 --prompt '#a' " + options)[0]["tokens"];
  };
  const nlohmann::json none = nlohmann::json::array(), all{'P', 'P', 'P'};
  write_mark_finder(t.folder() + "/run", 64);
  CHECK(made() == all);  // negative control: no file names P
  const std::string generation = t.folder() + "/run/generation_config.json";
  for (const char* ids : {"80", "[256, 80]", "[80, 256]"}) {
    INFO(ids);
    std::ofstream(generation) << "{\"eos_token_id\": " << ids << "}";
    CHECK(made() == none);
    CHECK(made("--ignore-end") == all);
    std::filesystem::remove(generation);
    write_mark_finder(t.folder() + "/run", 64, {{"eos_token_id", nlohmann::json::parse(ids)}});
    CHECK(made() == none);
    write_mark_finder(t.folder() + "/run", 64);
  }
  std::ofstream(generation) << R"({"eos_token_id": [256, 80]})";
  CHECK_THAT(t.sh("generate run --threads 1 --prompt '#a'").text,
             Catch::Contains("ends at token 80: eos_token_id of run/generation_config.json"));
  // A checkpoint that came from the folder ends with them too.
  REQUIRE(t.sh("import run imported -q").code == 0);
  const Outcome imported =
      t.sh("generate imported --threads 1 --prompt '#a' --tokens 3 --temperature 0 2>/dev/null");
  CHECK(imported.text == "#a\n");
  std::ofstream(generation) << R"({"eos_token_id": "P"})";
  const Outcome wrong = t.sh("generate run --threads 1 --prompt '#a'");
  CHECK(wrong.code == 65);
  CHECK_THAT(wrong.text,
             Catch::Contains("run/generation_config.json: eos_token_id: expected an id, a list of ids"
                             " or null, got \"P\""));
}

TEST_CASE(
    "the option --from-ignore passes over one key of a folder's config.json in eval, generate and import") {
  TempRun t;
  write_mark_finder(t.folder() + "/hf", 64,
                    {{"rope_scaling",
                      {{"rope_type", "yarn"},
                       {"factor", 4.0},
                       {"original_max_position_embeddings", 16},
                       {"attn_factor", 0.878}}}});
  for (const std::string command : {"eval hf --data text-val --seq-length 16 --samples 2 --threads 1",
                                    "generate hf --prompt a --tokens 1 --threads 1", "import hf imported"}) {
    const Outcome refused = t.sh(command);
    INFO(command << ": " << refused.text);
    CHECK(refused.code == 64);
    CHECK_THAT(refused.text, Catch::Contains("--from-ignore rope_scaling.attn_factor of a command"));
    const Outcome passed = t.sh(command + " --from-ignore rope_scaling.attn_factor");
    INFO(passed.text);
    CHECK(passed.code == 0);
    CHECK_THAT(passed.text, Catch::Contains("rope_scaling.attn_factor = 0.878 is passed over"));
    CHECK_THAT(t.sh(command + " --from-ignore rope_scaling.factor").text,
               Catch::Contains("cannot be passed over"));
  }
  CHECK_THAT(t.sh("generate imported --prompt a --from-ignore rope_scaling.attn_factor").text,
             Catch::Contains("imported is no Hugging Face folder, and has no config.json"));
}
