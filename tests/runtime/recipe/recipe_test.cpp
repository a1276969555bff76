#include "runtime/recipe/recipe.h"
#include "base/json/json.h"

#include <catch2/catch.hpp>

#include <fstream>
#include <sstream>

#include "base/error.h"
#include "runtime/recipe/schema/schema.h"
#include "tests/runtime/recipe/parse_text.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("every key says what another value of it changes", "[recipe]") {
  using recipe::Effect;
  const auto effect = [](const char* path) { return recipe::find_key(path)->effect; };
  for (const recipe::Key& key : recipe::schema()) CHECK(key.effect != Effect::unset);
  CHECK(effect("seed") == Effect::data);
  CHECK(effect("data.seq_length") == Effect::data);
  CHECK(effect("data.eval") == Effect::nothing);
  CHECK(effect("optimizer.lr") == Effect::schedule);
  CHECK(effect("optimizer.weight_decay") == Effect::function);
  CHECK(effect("schedule.lr_decay_steps") == Effect::schedule);
  CHECK(effect("train.train_steps") == Effect::schedule);
  CHECK(effect("train.micro_batch_size") == Effect::speed);
  CHECK(effect("parallel.tensor") == Effect::speed);
  CHECK(effect("parallel.grad_reduce_dtype") == Effect::function);
  CHECK(effect("model.attn_pdrop") == Effect::function);
  CHECK(effect("checkpoint.save_interval") == Effect::nothing);
  const auto keys = nlohmann::json::parse(recipe_reference_json()).at("keys");
  for (const auto& key : keys)
    if (key.at("path") == "optimizer.lr") CHECK(key.at("changes") == "schedule");
}

TEST_CASE("an empty recipe has the defaults", "[recipe]") {
  const Recipe r = parse("");
  CHECK(r.name == "run");
  CHECK(r.output_dir == "runs/run");
  CHECK(r.model.vocab_size == 257);
  CHECK(r.model.head_dim * r.model.num_attention_heads == r.model.hidden_size);
  CHECK(r.schedule.lr_decay_steps == r.train.train_steps);
  CHECK(r.parallel.data == -1);
  CHECK(r.train.eval_interval == 0);
  CHECK(r.notes.empty());
}

TEST_CASE("values of every type are read as YAML 1.2 says", "[recipe]") {
  const Recipe r = parse(
      "name: no\nseed: 0x10\nprecision: bf16\noptimizer: {lr: 1e-4, adam_eps: 1.0e-9, weight_decay: 1}\n"
      "checkpoint: {async_save: False, resume: 123}\nlaunch: {ranks_per_node: 2, threads_per_rank: auto}\n"
      "data: {train: [data/a, {path: \"data/b c\", weight: 0.5}], tokenizer: {kind: byte}}\n"
      "train: {exit_duration_in_mins: null, train_steps: 0o17}\n");
  CHECK(r.name == "no");  // a word, not a truth value
  CHECK(r.seed == 16);
  CHECK(r.precision == Precision::bf16);
  CHECK(r.optimizer.lr == 1e-4);
  CHECK(r.optimizer.weight_decay == 1.0);
  CHECK_FALSE(r.checkpoint.async_save);
  CHECK(r.checkpoint.resume == "123");
  CHECK(r.launch.ranks_per_node == 2);
  CHECK(r.launch.threads_per_rank == 0);
  CHECK(r.data.train == std::vector<DataSource>{{"data/a", 1.0, ""}, {"data/b c", 0.5, ""}});
  CHECK_FALSE(r.train.exit_duration_in_mins);
  CHECK(r.train.train_steps == 15);
}

TEST_CASE("anchors and aliases of YAML work, within bounds", "[recipe]") {
  const Recipe r = parse("data:\n  train: &d [{path: a}]\n  eval: *d\n");
  CHECK(r.data.eval == r.data.train);
  std::string bomb = "x0: &x0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = fmt::format("*x{}", i - 1);
    bomb += fmt::format("x{}: &x{} [", i, i);
    for (int j = 0; j < 10; ++j) bomb += fmt::format("{}{}", j ? "," : "", last);
    bomb += "]\n";
  }
  CHECK_THROWS_WITH(parse(bomb), Contains("once aliases are expanded"));
  CHECK_THROWS_WITH(parse(std::string(200, '[')), Contains("r.yaml:1:"));
  CHECK_THROWS_WITH(parse(std::string(2 << 20, ' ')), Contains("a recipe has at most"));
  CHECK_THROWS_WITH(parse(std::string("seed: 1\0", 8)), Contains("NUL"));
}

TEST_CASE("derived defaults follow the keys that are given", "[recipe]") {
  const Recipe gpt2 = parse("model: {architecture: gpt2, hidden_size: 96, num_attention_heads: 6}\n");
  CHECK(gpt2.model.intermediate_size == 384);
  CHECK(gpt2.model.num_key_value_heads == 6);
  CHECK(gpt2.model.head_dim == 16);
  CHECK(gpt2.model.tie_word_embeddings);
  const Recipe llama = parse("model: {hidden_size: 768, num_attention_heads: 12}\n");
  CHECK(llama.model.intermediate_size == 2048);
  CHECK_FALSE(llama.model.tie_word_embeddings);
  const Recipe tokens = parse("train: {train_tokens: 2049}\n");  // 8 * 256 = 2048 a step
  CHECK(tokens.train.train_steps == 2);
  CHECK(tokens.schedule.lr_decay_steps == 2);
  CHECK(parse("data: {eval: [a]}\n").train.eval_interval == 500);
}

TEST_CASE("train_tokens counts the steps of a growing batch", "[recipe]") {
  for (const char* ramp :
       {"{start: 2, increment: 2, samples: 100}", "{start: 4, increment: 2, samples: 7}",
        "{start: 1, increment: 1, samples: 1000}", "{start: 2, increment: 10, samples: 50}"})
    for (const int64_t tokens : {1, 512, 513, 5000, 25600, 25601, 200000, 1000000}) {
      INFO(ramp << ", " << tokens << " tokens");
      const Recipe r = parse(
          fmt::format("train: {{global_batch_size: 12, train_tokens: {}, batch_ramp: {}}}\n", tokens, ramp));
      int64_t steps = 0, samples = 0;  // one by one, of sequences of 256
      for (; samples * 256 < tokens; ++steps) samples += global_batch_after(r, samples);
      CHECK(r.train.train_steps == steps);
      CHECK(r.schedule.lr_decay_steps == steps);
      if (tokens > 5000) CHECK(steps > (tokens + 12 * 256 - 1) / (12 * 256));  // more than without a ramp
    }
}

TEST_CASE("other spellings are accepted and reported", "[recipe]") {
  const Recipe r = parse("train: {train_iters: 7}\ntp: 1\nmodel: {n_layer: 3}\n", {"lr_warmup_iters=2"});
  CHECK(r.train.train_steps == 7);
  CHECK(r.model.num_hidden_layers == 3);
  CHECK(r.schedule.lr_warmup_steps == 2);
  REQUIRE(r.notes.size() == 4);
  CHECK(r.notes[0] == "r.yaml:1:9: `train.train_iters` is read as train.train_steps");
  CHECK(r.notes[3] == "command line: `lr_warmup_iters` is read as schedule.lr_warmup_steps");
}

TEST_CASE("settings without effect are noted", "[recipe]") {
  const Recipe r = parse("optimizer: {min_lr: 1e-5}\nschedule: {lr_decay_style: constant}\n");
  REQUIRE(r.notes.size() == 1);
  CHECK(r.notes[0] ==
        "r.yaml:1:13: optimizer.min_lr has no effect without a schedule.lr_decay_style other than constant");
  const auto budget = [](const char* shares) {
    return parse(
        fmt::format("model: {{moe: {{num_experts: 4, row_budget: {}}}}}\n"
                    "parallel: {{data: 4, expert: 4}}\ntrain: {{global_batch_size: 16}}\n",
                    shares));
  };
  CHECK(budget("3.5").notes.empty());
  REQUIRE(budget("4").notes.size() == 1);
  CHECK(budget("4").notes[0] ==
        "model.moe.row_budget: 4: bounds nothing: of parallel.expert: 4 ranks none can get more than 4 even "
        "shares");
}

TEST_CASE("overrides", "[recipe]") {
  const std::string base =
      "train: {train_steps: 5, log_interval: 2}\ndata: {train: [{path: a}, {path: b, weight: 2}]}\n";
  CHECK(parse(base, {"train.train_steps=9"}).train.train_steps == 9);
  CHECK(parse(base, {"--train.train_steps=9"}).train.train_steps == 9);
  CHECK(parse(base, {"train.train_steps=9", "train.train_steps=11"}).train.train_steps == 11);
  CHECK(parse(base, {"train_iters=9"}).train.train_steps == 9);
  CHECK(parse(base, {"~train.train_steps"}).train.train_steps == 1000);
  CHECK(parse(base, {"~train"}).train.log_interval == 1);
  CHECK(parse(base, {"train={train_steps: 3}"}).train.log_interval == 2);  // maps merge
  CHECK(parse(base, {"data.train=[c]"}).data.train ==
        std::vector<DataSource>{{"c", 1.0, ""}});  // lists replace
  CHECK(parse(base, {"data.train.1.weight=3"}).data.train[1].weight == 3);
  CHECK(parse(base, {"data.train.0=c"}).data.train[0].path == "c");
  CHECK(parse(base, {"output_dir=a=b: c"}).output_dir == "a=b: c");
  CHECK(parse(base, {"name=a-b"}).name == "a-b");
}

TEST_CASE("one value can stand in another", "[recipe]") {
  const Recipe r =
      parse("name: small\noutput_dir: runs/${name}-${seed}-${optimizer.lr}\nseed: 7\n", {"name=big"});
  CHECK(r.output_dir == "runs/big-7-0.0003");
  std::string growing = "name: aaaaaaaa\n";
  const std::vector<std::string> keys = {"output_dir", "launch.interface", "checkpoint.resume",
                                         "data.tokenizer.path"};
  std::vector<std::string> overrides = {
      "output_dir=", "launch.interface=", "checkpoint.resume=", "data.tokenizer.path="};
  for (int i = 0; i < 40; ++i) {
    overrides[0] += "${name}";
    for (int k = 1; k < 4; ++k) overrides[k] += fmt::format("${{{}}}", keys[k - 1]);
  }
  CHECK_THROWS_WITH(parse(growing, overrides), Contains("longer than 4096 bytes"));
}

TEST_CASE("the resolved dump reads back to itself", "[recipe]") {
  const std::vector<std::string> texts = {
      "",
      "model: {architecture: gpt2, attn_pdrop: 0.1}\nschedule: {lr_decay_style: WSD, lr_warmup_steps: 3}\n",
      "name: \"1e5\"\noutput_dir: \"a \\\"b\\\" #c\"\ndata: {train: [{path: \"x: y\"}, {path: \"-\", weight: "
      "0.3}], eval: [e]}\n",
      "train: {train_tokens: 1000000, exit_duration_in_mins: 2.5}\noptimizer: {lr: 1.2345678901234567e-4}\n",
      "model: {rope_scaling: {rope_type: llama3, factor: 32.0}, head_dim: 128}\nlaunch: {ranks_per_node: 4, "
      "interface: eth0}\n",
      "parallel: {zero_stage: 2, shard_group: 2}\n",
      "parallel: {zero_stage: 3, shard_group: node}\nlaunch: {ranks_per_node: 2}\n",
      "parallel: {hierarchical_reduction: 2}\n",
      "data: {tokenizer: {kind: gpt2, path: \"yes\"}}\nmodel: {vocab_size: 50304}\nseed: "
      "9223372036854775807\n"};
  for (const std::string& text : texts) {
    const Recipe first = resolve(parse(text), 4);
    const std::string dump = dump_yaml(first);
    INFO(dump);
    const Recipe second = parse(dump);
    CHECK(dump_yaml(second) == dump);
    CHECK(second.notes.empty());
    CHECK(resolve(second, 4).parallel.shard_ranks == first.parallel.shard_ranks);
    CHECK(second.data.train == first.data.train);
    CHECK(second.output_dir == first.output_dir);
    const auto json = nlohmann::json::parse(dump_json(first));
    CHECK(json["train"]["global_batch_size"] == first.train.global_batch_size);
    CHECK(json["output_dir"] == first.output_dir);
    CHECK(json["data"]["train"].size() == first.data.train.size());
  }
}

TEST_CASE("nothing of a recipe reaches a terminal as it is", "[recipe]") {
  // ESC, a C1 control, a mark of writing direction, invalid UTF-8, an overlong ESC.
  const std::vector<std::string> hostile = {"\x1b[31mred",
                                            "\xc2\x9b"
                                            "31m",
                                            "\xe2\x80\xaegnp",
                                            "\xff\xfe",
                                            "\xc0\x9b",
                                            "a\x07"
                                            "b"};
  int refused = 0;
  const auto look = [&](const std::string& text, const std::vector<std::string>& overrides = {}) {
    std::string shown;
    try {
      const Recipe r = parse(text, overrides);
      for (const std::string& note : r.notes) shown += note;
      shown += dump_yaml(r) + dump_json(r);
    } catch (const Error& e) {
      shown = e.what();
      ++refused;
    }
    INFO(shown);
    for (const std::string& h : hostile) CHECK(shown.find(h) == std::string::npos);
    CHECK(shown.find('\x1b') == std::string::npos);
    CHECK(shown.find("\xc2\x9b") == std::string::npos);
    CHECK(shown.find('\x07') == std::string::npos);
  };
  for (const std::string& h : hostile) {
    for (const std::string& value : {h, "x" + h, "\"" + h + "\"", "[" + h + "]", "{" + h + ": 1}",
                                     "!" + h + " a", "*" + h, "&" + h + " 1", "${" + h + "}"})
      for (const char* key :
           {"name", "seed", "device", "precision", "output_dir", "train.train_steps", "data.train",
            "optimizer.groups", "recompute.tensors", "fp8.keep", "parallel.order", "data.stages",
            "model.from", "parallel.shard_group", "checkpoint.async_save"}) {
        look(std::string(key) + ": " + value + "\n");
        look("", {std::string(key) + "=" + value});
      }
    look(h + ": 1\n");
    look("train: {" + h + ": 1}\n");
    look("data: {train: [{path: a, " + h + ": 1}]}\n");
    look("", {h});
    look("", {h + "=1"});
    look("", {"~" + h});
    look("", {"data.train.0." + h + "=1"});
    try {
      parse_recipe("seed: x\n", h);
      FAIL("accepted");
    } catch (const Error& e) {
      CHECK(std::string(e.what()).find(h) == std::string::npos);
    }
    CHECK_THROWS_AS(load_recipe(h), Error);
  }
  // In quotes YAML has escapes of its own.
  for (const char* text :
       {"\"\\e[31m\": 1\n", "name: \"\\e[31m\"\n", "output_dir: \"\\x9b31m\"\n", "seed: \"\\u202e1\"\n"})
    look(text);
  CHECK(refused >= 1000);
  CHECK(parse("output_dir: \"Ausgabe-\u00e4\u4e16\"\n").output_dir ==
        "Ausgabe-\u00e4\u4e16");  // other languages are fine
}

TEST_CASE("the layout follows the number of ranks", "[recipe]") {
  const Recipe r = parse("train: {micro_batch_size: 2, global_batch_size: 24}\n");
  const Recipe four = resolve(r, 4);
  CHECK(four.parallel.data == 4);
  CHECK(ranks(four) == 4);
  CHECK(micro_batches_per_step(four) == 3);
  CHECK(tokens_per_step(four) == 24 * 256);
  CHECK_THROWS_WITH(resolve(r, 5), Contains("train.global_batch_size = 24: must be a multiple of"));
}

TEST_CASE("levels of gradients follow from the ranks of a node", "[recipe]") {
  const auto inside = [](const char* parallel, int world, int per_node) {
    const Recipe r = parse(std::string("train: {global_batch_size: 16}\nparallel: {") + parallel + "}\n");
    return resolve(r, world, per_node).parallel.shard_ranks;
  };
  CHECK(inside("zero_stage: 1", 8, 4) == 0);
  CHECK(inside("zero_stage: 1, shard_group: node", 8, 4) == 4);
  CHECK(inside("zero_stage: 1, shard_group: node", 8, 8) == 8);  // one node: one level
  CHECK(inside("zero_stage: 1, shard_group: node", 1, 1) == 1);
  CHECK(inside("zero_stage: 1, shard_group: 2", 8, 4) == 2);
  CHECK(inside("hierarchical_reduction: node", 8, 2) == 2);
  CHECK(inside("tensor: 2, zero_stage: 3, shard_group: node", 8, 4) == 2);
  CHECK(inside("pipeline: 2, zero_stage: 3, shard_group: node", 8, 2) == 2);
  CHECK(inside("context: 2, zero_stage: 3, shard_group: node", 8, 4) == 4);
  CHECK(inside("pipeline: 2, order: pp-tp-cp-dp, zero_stage: 3, shard_group: node", 8, 4) == 2);
  CHECK_THROWS_WITH(inside("tensor: 4, zero_stage: 3, shard_group: node", 8, 4),
                    Contains("a node of 4 ranks has one of the 2 that gradients are summed over"));
}

TEST_CASE("levels of the all-to-all between experts follow from the ranks of a node", "[recipe]") {
  const auto near = [](const char* parallel, int world, int per_node) {
    const Recipe r =
        parse(std::string("train: {global_batch_size: 16}\nmodel: {moe: {num_experts: 8}}\nparallel: {") +
              parallel + "}\n");
    return resolve(r, world, per_node).parallel.intra_node_experts;
  };
  CHECK(near("expert: 4", 8, 2) == 0);
  CHECK(near("expert: 4, hierarchical_all_to_all: node", 8, 2) == 2);
  CHECK(near("expert: 8, hierarchical_all_to_all: node", 8, 2) == 2);
  CHECK(near("expert: 4, hierarchical_all_to_all: node", 8, 4) == 0);  // on one node: one level
  CHECK(near("expert: 4, hierarchical_all_to_all: 2", 8, 8) == 2);
  CHECK(near("tensor: 2, expert: 4, hierarchical_all_to_all: node", 8, 4) == 2);
  CHECK_THROWS_WITH(near("tensor: 2, expert: 4, hierarchical_all_to_all: node", 8, 2),
                    Contains("nodes of 2 ranks have one of the 4 that experts are cut over"));
}

TEST_CASE("the vocabulary must hold every token of the data", "[recipe]") {
  const Recipe r = parse("model:\n  vocab_size: 300\n");
  CHECK_NOTHROW(check_vocabulary(r, "data/a", 300));
  CHECK_THROWS_WITH(
      check_vocabulary(r, "data/a", 301),
      "r.yaml:2:3: model.vocab_size = 300: data/a has token ids up to 300; nearest valid value: 301");
}

TEST_CASE("a run needs data", "[recipe]") {
  CHECK_THROWS_WITH(check_data_given(parse("")),
                    "r.yaml: data.train = [] (default): a run needs token files; give data.train: [{path: "
                    "PREFIX}], made by `ltrain data build`");
  CHECK_THROWS_WITH(check_data_given(parse("data:\n  train: []\n")),
                    Contains("r.yaml:2:3: data.train = []: "));
  CHECK_NOTHROW(check_data_given(parse("data: {train: [x]}\n")));
}

TEST_CASE("the table is complete and consistent", "[recipe]") {
  for (const recipe::Key& key : recipe::schema()) {
    INFO(key.path);
    CHECK_FALSE(key.help.empty());
    CHECK(key.set);
    CHECK(key.write);
    CHECK(recipe::find_key(key.path) == &key);
    CHECK_FALSE(recipe::section_help(key.section()).empty());
    for (const std::string& alias : key.aliases)
      CHECK(recipe::find_alias(key.section().empty() ? alias : key.section() + "." + alias) == &key);
  }
  CHECK_NOTHROW(nlohmann::json::parse(recipe_reference_json()));
  CHECK_THAT(recipe_reference_text(), Contains("train.micro_batch_size"));
}

TEST_CASE("docs/recipe.md is what the table says", "[recipe][docs]") {
  std::ifstream in(std::string(LTRAIN_SOURCE_DIR) + "/docs/recipe.md");
  std::stringstream text;
  text << in.rdbuf();
  INFO("run scripts/update-recipe-docs.sh");
  CHECK((text.str() == recipe_reference_markdown()));
}

TEST_CASE("what all ranks of a job have alike: every key of the recipe but those of one node's part") {
  const Recipe r = parse("model: {architecture: llama, vocab_size: 257}\nparallel: {data: 2}\n");
  const std::string settings = "\n" + job_settings(r);
  int dumped = 0;
  for (const recipe::Key& key : recipe::schema()) {
    if (!key.in_dump(r)) continue;
    ++dumped;
    const bool own = key.path == "launch.interface" || key.path == "launch.threads_per_rank";
    INFO(key.path);
    CHECK((settings.find("\n" + key.path + ": " + key.write(key, r, false) + "\n") == std::string::npos) ==
          own);
  }
  CHECK(std::count(settings.begin(), settings.end(), '\n') == dumped - 2 + 1);
  // On whatever machine, whichever device it has.
  CHECK(job_settings(parse("parallel: {data: 2}", {"launch.threads_per_rank=3", "launch.interface=lo"})) ==
        job_settings(parse("parallel: {data: 2}")));
  CHECK(job_settings(parse("seed: 2")) != job_settings(parse("seed: 3")));
}

TEST_CASE("heads wider than a GPU's attention takes are refused there", "[recipe]") {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      resolve(parse_recipe(text + "model: {architecture: llama, hidden_size: 1024, num_attention_heads: 2}\n",
                           "r.yaml"),
              1);
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::usage);
      return e.what();
    }
    return "";
  };
  CHECK_THAT(refusal("device: cuda\n"),
             Catch::Contains("model.head_dim = 512 (default): attention on a GPU takes head dims up to 256; "
                             "nearest valid value: 256"));
  CHECK(refusal("device: cpu\n").empty());
}

TEST_CASE("soft-caps are of families that have them, on every device", "[recipe]") {
  const auto resolved = [](const std::string& text) { return resolve(parse_recipe(text, "r.yaml"), 1); };
  for (const char* device : {"cpu", "cuda"})
    CHECK(resolved(fmt::format("device: {}\nmodel: {{architecture: gemma2, hidden_size: 256}}\n", device))
              .model.attn_logit_softcapping == 50.0);
  CHECK_THROWS_WITH(resolved("model: {architecture: llama, final_logit_softcapping: 30}\n"),
                    Catch::Contains("has a meaning only with model.architecture: gemma2"));
  CHECK_THROWS_WITH(resolved("device: cuda\nprecision: bf16\nattention_backend: cudnn\nmodel: {architecture: "
                             "gemma2, hidden_size: 256}\n"),
                    Catch::Contains("soft-capped"));
}

TEST_CASE("a recipe says what its optimizer leaves to another, and that a default warm-up is short") {
  const auto notes = [](const std::vector<std::string>& overrides) {
    return fmt::format("{}", fmt::join(parse_recipe("{}", "r.yaml", overrides).notes, "\n"));
  };
  const std::vector<std::string> moe{"model.architecture=mixtral", "model.moe.num_experts=4"};
  const auto with = [](std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  CHECK_THAT(
      notes(with(moe, {"optimizer.kind=adamw8bit"})),
      Contains("optimizer.kind: adamw8bit: experts are stacks of matrices, which adamw8bit does not take: "
               "they have adamw"));
  for (const char* kind : {"lion", "muon"})
    CHECK_THAT(notes(with(moe, {std::string("optimizer.kind=") + kind})), !Contains("experts are stacks"));
  CHECK_THAT(notes({"optimizer.kind=muon"}), !Contains("experts are stacks"));
  const std::vector<std::string> onebit{"optimizer.kind=onebit_adam", "train.train_steps=100"};
  CHECK_THAT(notes(onebit), Contains("optimizer.freeze_step: 20, a fifth of train.train_steps") &&
                                Contains("often diverge"));
  CHECK_THAT(notes(with(onebit, {"optimizer.freeze_step=20"})), !Contains("diverge"));
  CHECK_THAT(notes({"optimizer.kind=onebit_adam", "train.train_steps=100000"}), !Contains("diverge"));
}
