// Changes of a recipe between a checkpoint and the run that goes on from it: data, tokenizer, schedule.
#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/checkpoint/store.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

struct ResumeRun : TempRun {
  /// Six steps, checkpoints at 2, 4, 6.
  ResumeRun() { REQUIRE(run().code == 0); }
  Outcome run(const std::string& overrides = "") const { return sh("run tiny.yaml " + overrides); }
  /// Another text, tokenized.
  void build(const std::string& name, int lines, const std::string& options = "--tokenizer byte") const {
    std::ofstream out(folder() + "/" + name + ".txt");
    for (int i = 0; i < lines; ++i) out << "another " << i * 7 << " text, " << name << "\n";
    out.close();
    const Outcome o = sh("data build --input " + name + ".txt --output " + name + " --force " + options);
    INFO(o.text);
    REQUIRE(o.code == 0);
  }
  nlohmann::json show(const std::string& checkpoint = "run") const {
    return nlohmann::json::parse(sh("checkpoint show " + checkpoint + " --json").text);
  }
  void rank_file() const {
    fs::copy(LTRAIN_SOURCE_DIR "/tests/golden/small.tiktoken", folder() + "/small.tiktoken");
  }
};

const std::string kMore = " train.train_steps=8 schedule.lr_decay_steps=6 ";

}  // namespace

TEST_CASE("a resume with other data is refused by name, old and new, with the setting that allows it") {
  ResumeRun t;
  t.build("other", 1500);
  struct Case {
    const char *change, *text;
  };
  for (const Case& c : {Case{"data.train=[other]", "data.train.0 text-train (73252 tokens, content "},
                        Case{"data.train=[text-train,other]", "data.train.1 none -> other ("},
                        Case{"data.seq_length=64 data.eval=[text-train]", "data.seq_length 32 -> 64"},
                        Case{"seed=7", "seed 1234 -> 7"},
                        Case{"data.eod_mask_loss=true", "data.eod_mask_loss false -> true"}}) {
    const Outcome o = t.run(c.change + kMore);
    INFO(o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains("run/checkpoints/step-00000006: was trained on other data") &&
                           Contains(c.text) && Contains("checkpoint.resume_data: continue") &&
                           Contains("checkpoint.resume_data: restart") && Contains("number 48"));
    CHECK(o.text.find("ready in") == std::string::npos);  // no process was started
  }
  // Negative controls: what lies elsewhere is the same, and so are weights that mean the same.
  fs::create_directory(t.folder() + "/moved");
  for (const char* end : {".bin", ".idx"})
    fs::rename(t.folder() + "/text-train" + end, t.folder() + "/moved/words" + end);
  const Outcome o = t.run("'data.train=[{path: moved/words, weight: 3}]'" + kMore);
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("changed since the checkpoint: data.train "));
}

TEST_CASE(
    "other data by wish: continue keeps the sample number, restart begins the new data, tokens are counted") {
  ResumeRun t;
  t.build("other", 3000);
  CHECK(t.show().at("consumed_tokens") == 6 * 8 * 32);
  fs::copy(t.folder() + "/run", t.folder() + "/run2", fs::copy_options::recursive);
  Outcome o = t.run("data.train=[other] data.seq_length=16 checkpoint.resume_data=continue" + kMore);
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains("as checkpoint.resume_data: continue allows") &&
                         Contains("data.seq_length 32 -> 16") && Contains("the next sample is number 48"));
  auto s = t.show();
  CHECK(s.at("data_cursor") == 8 * 8);
  CHECK(s.at("consumed_tokens") == 6 * 8 * 32 + 2 * 8 * 16);  // not 64 * 16
  CHECK(s.at("consumed_samples") == 8 * 8);
  CHECK(t.metric("consumed_tokens").back() == "8:" + std::to_string(6 * 8 * 32 + 2 * 8 * 16));
  // From here on the new data is the checkpoint's, and needs no word.
  CHECK(t.run("data.train=[other] data.seq_length=16 train.train_steps=9 schedule.lr_decay_steps=6").code ==
        0);

  o = t.run("output_dir=run2 data.train=[other] checkpoint.resume_data=restart" + kMore);
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains("the next sample is number 0"));
  s = t.show("run2");
  CHECK(s.at("data_cursor") == 2 * 8);
  CHECK(s.at("consumed_samples") == 8 * 8);
  CHECK(s.at("data").at("sources").at(0).at("path") == "other");
}

TEST_CASE("a checkpoint of format version 1 goes on, and says what was not checked") {
  ResumeRun t;
  for (const char* name : {"step-00000004", "step-00000006"}) {
    const std::string folder = t.folder() + "/run/checkpoints/" + name;
    auto manifest = nlohmann::json::parse(read_file(folder + "/manifest.json"));
    manifest["version"] = 1;
    manifest.erase("data");
    manifest.erase("consumed_samples");
    const std::string text = manifest.dump(1) + "\n";
    std::ofstream(folder + "/manifest.json") << text;
    std::ofstream(folder + "/COMMIT") << ltrain::commit_record(text);
  }
  t.build("other", 1500);
  const Outcome o = t.run("data.train=[other]" + kMore);
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("is of format version 1, which has no identity of its data"));
  CHECK(t.show().at("consumed_samples") == 64);
  CHECK(t.run("data.train=[text-train] train.train_steps=9").code == 64);  // now it has one
}

TEST_CASE("data of another tokenizer than the recipe's is refused with the line to write") {
  TempRun t;
  fs::copy(LTRAIN_SOURCE_DIR "/tests/golden/small.tiktoken", t.folder() + "/small.tiktoken");
  REQUIRE(t.sh("data build --input text.txt --output words --tokenizer gpt2 --ranks small.tiktoken").code ==
          0);
  const std::string common =
      "run tiny.yaml data.train=[words] data.eval=[] train.eval_interval=0 model.vocab_size=50304 ";
  Outcome o = t.sh(common);
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text,
             Contains("data.tokenizer.kind = byte (default): the tokens of words are of tokenizer gpt2") &&
                 Contains("data: {tokenizer: {kind: gpt2, path: RANKS.tiktoken}}"));
  const std::string gpt2 = "data.tokenizer.kind=gpt2 data.tokenizer.path=small.tiktoken ";
  o = t.sh(common + gpt2);
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK(t.sh("eval run --data words --threads 1 --samples 4").code == 0);
  o = t.sh("eval run --data text-val --threads 1 --samples 4");
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("text-val is of tokenizer byte") && Contains("gpt2"));
  // Another file of ranks is another tokenizer.
  std::string ranks = read_file(t.folder() + "/small.tiktoken");
  ranks.resize(ranks.rfind('\n', ranks.size() - 2) + 1);
  std::ofstream(t.folder() + "/fewer.tiktoken") << ranks;
  o = t.sh(common + "data.tokenizer.kind=gpt2 data.tokenizer.path=fewer.tiktoken output_dir=run2");
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("data.tokenizer.path = fewer.tiktoken: is a gpt2 tokenizer of"));
  // And so is byte under a recipe of gpt2.
  o = t.sh("run tiny.yaml model.vocab_size=50304 " + gpt2 + "output_dir=run2");
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("are of tokenizer byte") && Contains("data: {tokenizer: {kind: byte}}"));
}

TEST_CASE("the end of a document of data without a sidecar comes from the recipe, or is asked for") {
  TempRun t;
  fs::remove(t.folder() + "/text-train.json");
  const std::string packed = "run tiny.yaml data.reset_attention_mask=true train.train_steps=1 ";
  Outcome o = t.sh(packed);
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("data.reset_attention_mask = true: needs the token that ends documents") &&
                         Contains("text-train has no sidecar") && Contains("data: {tokenizer: {eod: ID}}"));
  CHECK(t.sh("run tiny.yaml train.train_steps=1 output_dir=plain").code == 0);  // nothing asks: no matter
  const auto losses = [&](const std::string& more, const std::string& run) {
    const Outcome out =
        t.sh("run tiny.yaml data.eod_mask_loss=true train.train_steps=3 data.eval=[] train.eval_interval=0 " +
             more + " output_dir=" + run);
    INFO(out.text);
    REQUIRE(out.code == 0);
    return t.metric("lm_loss", run);
  };
  // Byte 10 ends lines, which is often; 256 once in this text; by the index there is one document.
  const auto lines = losses("data.tokenizer.eod=10", "a"), known = losses("data.tokenizer.kind=byte", "b"),
             given = losses("data.tokenizer.eod=256", "c"), none = losses("data.tokenizer.eod=none", "d");
  CHECK(known == given);
  CHECK(lines != known);
  CHECK(none == known);  // the one document's end is the text's
  CHECK(t.sh(packed + "data.tokenizer.eod=257").code == 64);
}

TEST_CASE(
    "what changed since the checkpoint is a line at the start, and a jump of the learning rate is another") {
  ResumeRun t;
  Outcome o = t.run("train.train_steps=12 optimizer.weight_decay=0.2 train.micro_batch_size=4 name=new");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text,
             Contains("changed since the checkpoint: train.train_steps 6 -> 12; optimizer.weight_decay 0.1 "
                      "-> 0.2; schedule.lr_decay_steps 6 -> 12 (by default: train_steps)\n"));
  CHECK_THAT(o.text, Contains("note: the learning rate of step 7 is ") &&
                         Contains("by the recipe in the checkpoint it was ") &&
                         Contains("schedule.lr_decay_steps: 6 keeps the schedule"));
  // Nothing that matters differs: no line.
  o = t.run(
      "train.train_steps=12 optimizer.weight_decay=0.2 train.micro_batch_size=2 checkpoint.save_interval=3");
  CHECK(o.code == 0);
  CHECK(o.text.find("changed since") == std::string::npos);
  CHECK(o.text.find("learning rate of") == std::string::npos);
  o = t.run("train.train_steps=14 schedule.lr_decay_steps=12 optimizer.weight_decay=0.2");
  INFO(o.text);
  CHECK_THAT(o.text, Contains("changed since the checkpoint: train.train_steps 12 -> 14\n"));
  CHECK(o.text.find("learning rate of") == std::string::npos);
}

TEST_CASE("a warm-up of 1-bit Adam that a longer run would begin again is refused") {
  TempRun t;
  const std::string onebit = "run tiny.yaml optimizer.kind=onebit_adam parallel.zero_stage=0 ";
  REQUIRE(t.sh(onebit + "train.train_steps=10").code == 0);  // freeze_step 2
  const Outcome o = t.sh(onebit + "train.train_steps=100");  // freeze_step 20
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text,
             Contains("is past its optimizer.freeze_step of 2") && Contains("give optimizer.freeze_step: 2"));
  CHECK(t.sh(onebit + "train.train_steps=12 optimizer.freeze_step=2").code == 0);
}
