// Supervised fine-tuning: `task: sft` on conversations, through the real program.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

void write_chats(const TempRun& t) {
  // The byte tokenizer has one special token, which ends a turn here.
  std::ofstream(t.folder() + "/chat.jinja")
      << "{% for m in messages %}{% if m.role == 'assistant' %}A: {% generation %}{{ m.content + "
         "'<|endoftext|>' }}"
         "{% endgeneration %}{% else %}{{ m.role + ': ' + m.content }}{% endif %}\n{% endfor %}";
  std::ofstream chats(t.folder() + "/chats.jsonl");
  for (int i = 0; i < 160; ++i) {
    nlohmann::json messages = nlohmann::json::array();
    for (int turn = 0; turn <= i % 3; ++turn) {
      const int n = (i * 7 + turn * 3) % 20;
      messages.push_back({{"role", "user"}, {"content", "What follows " + std::to_string(n) + "?"}});
      messages.push_back({{"role", "assistant"}, {"content", std::to_string(n + 1)}});
    }
    chats << nlohmann::json{{"messages", messages}}.dump() << "\n";
  }
}

const std::string kSft =
    "run tiny.yaml task=sft 'data.train=[{path: chats.jsonl}]' data.eval=[] train.eval_interval=0 "
    "data.cache=cache "
    "data.chat_template=chat.jinja data.seq_length=256 model.max_position_embeddings=256 "
    "checkpoint.save_interval=0 "
    "precision=fp64 train.train_steps=4 ";

}  // namespace

TEST_CASE("sft: the loss does not depend on micro-batch, accumulation or layout") {
  TempRun t;
  write_chats(t);
  const Outcome one =
      t.sh(kSft + "output_dir=one parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=8");
  INFO(one.text);
  REQUIRE(one.code == 0);
  const std::vector<double> expected = t.values("lm_loss", "one");
  REQUIRE(expected.size() == 4);
  int run = 0;
  for (const char* layout : {"parallel.data=1 parallel.zero_stage=0 train.micro_batch_size=1",
                             "parallel.data=2 train.micro_batch_size=1",
                             "parallel.data=2 parallel.zero_stage=3 train.micro_batch_size=4",
                             "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.context=2"}) {
    const std::string name = "layout" + std::to_string(run++);
    const Outcome o = t.sh(kSft + "output_dir=" + name + " " + layout);
    INFO(layout << "\n" << o.text);
    REQUIRE(o.code == 0);
    const std::vector<double> got = t.values("lm_loss", name);
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) <= 1e-12 * expected[i]);
  }
}

TEST_CASE("sft: the assistant's tokens count, and a build ahead of time gives the losses of the run's own") {
  TempRun t;
  write_chats(t);
  const Outcome built = t.sh(
      "data build --chat --chat-template chat.jinja --pack 256 --input chats.jsonl --output chats "
      "--tokenizer byte");
  INFO(built.text);
  REQUIRE(built.code == 0);
  CHECK_THAT(built.text, Contains("160 conversations") && Contains("tokens count in the loss, packed into"));
  const Outcome shown = t.sh("data inspect chats --document 0");
  INFO(shown.text);
  CHECK_THAT(shown.text, Contains("loss mask: ") && Contains("user: What follows 10?") &&
                             Contains("A: ⟦11<|endoftext|>⟧"));
  // The same folder of token files gives the losses of the run that makes them.
  REQUIRE(t.sh(kSft + "output_dir=own").code == 0);
  REQUIRE(t.sh(kSft + "'data.train=[chats]' output_dir=built").code == 0);
  CHECK(t.metric("lm_loss", "built") == t.metric("lm_loss", "own"));
  // All messages: another loss. The last turn: fewer tokens.
  REQUIRE(t.sh(kSft + "data.train_on=all output_dir=all").code == 0);
  CHECK(t.metric("lm_loss", "all") != t.metric("lm_loss", "own"));
  const Outcome wrong = t.sh(kSft + "'data.train=[chats]' data.seq_length=128 output_dir=w");
  CHECK(wrong.code == 65);
  CHECK_THAT(wrong.text, Contains("packed into samples of 256 tokens"));
  const Outcome plain = t.sh(kSft + "'data.train=[text-train]' output_dir=w");
  CHECK(plain.code == 64);
  CHECK_THAT(plain.text, Contains("text-train has no loss mask"));
}

TEST_CASE("sft: fields with other names in the file give the losses of the standard ones") {
  TempRun t;
  write_chats(t);
  REQUIRE(
      t.shell(
           "sed 's/\"messages\"/\"dialog\"/; s/\"role\"/\"speaker\"/g; s/\"content\"/\"says\"/g' chats.jsonl "
           "> other.jsonl")
          .code == 0);
  REQUIRE(t.sh(kSft + "output_dir=standard").code == 0);
  const std::string fields = "{messages: dialog, role: speaker, content: says}";
  const Outcome o =
      t.sh(kSft + "'data.train=[{path: other.jsonl, fields: " + fields + "}]' output_dir=other");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(t.metric("lm_loss", "other") == t.metric("lm_loss", "standard"));
  const std::string build =
      "data build --chat --chat-template chat.jinja --pack 256 --tokenizer byte --output tokens --input ";
  REQUIRE(t.sh(build + "other.jsonl --fields '" + fields + "'").code == 0);
  REQUIRE(t.sh(kSft + "'data.train=[tokens]' output_dir=built").code == 0);
  CHECK(t.metric("lm_loss", "built") == t.metric("lm_loss", "standard"));
  const auto refused = [&](const std::string& arguments, const std::string& why) {
    const Outcome bad = t.sh(arguments);
    INFO(bad.text);
    CHECK(bad.code == 64);
    CHECK_THAT(bad.text, Contains(why));
  };
  refused(kSft + "'data.train=[{path: other.jsonl, fields: {mesages: dialog}}]' output_dir=w",
          "source 1 fields has an unknown name `mesages`; did you mean `messages`?");
  refused(kSft + "'data.train=[{path: tokens, fields: {messages: dialog}}]' output_dir=w",
          "fields: expected files of records, got token files");
  refused("run tiny.yaml 'data.train=[{path: text.txt, fields: {messages: dialog}}]' output_dir=w",
          "text.txt has fields, names of the fields of conversations, which task: pretrain does not read");
  refused("data build --tokenizer byte --input text.txt --output w --fields '{messages: dialog}'",
          "are for conversations: add --chat");
  refused("data build --chat --tokenizer byte --input other.jsonl --output w --fields dialog",
          "--fields dialog: needs names in the file by their standard names");
}

TEST_CASE("sft: the held-out loss does not depend on how conversations are packed") {
  TempRun t;
  write_chats(t);
  std::vector<double> evals;
  for (const char* length : {"160", "256", "512"}) {
    const std::string run = std::string("packed") + length;
    const Outcome o =
        t.sh(kSft + "data.seq_length=" + length + " model.max_position_embeddings=512 output_dir=" + run +
             " 'data.eval=[{path: chats.jsonl}]' train.eval_interval=1 train.eval_steps=100 "
             "train.train_steps=1 optimizer.lr=1e-30");
    INFO(o.text);
    REQUIRE(o.code == 0);
    const std::vector<std::string> rows = t.metric("eval_loss", run);
    REQUIRE(rows.size() == 1);
    evals.push_back(std::stod(rows[0].substr(rows[0].find(':') + 1)));
  }
  for (const double loss : evals) CHECK(std::abs(loss - evals[0]) <= 1e-12 * evals[0]);
}

TEST_CASE("sft: rows that cannot be trained on stop the run with file, line and rule, or are left out") {
  TempRun t;
  write_chats(t);
  for (const char* row : {R"({"messages": [{"role": "user", "content": "alone"}]})",
                          R"({"messages": [{"role": "robot", "content": "x"}]})", R"({"messages": 5})"}) {
    REQUIRE(t.shell("head -n 20 chats.jsonl > bad.jsonl").code == 0);
    std::ofstream(t.folder() + "/bad.jsonl", std::ios::app) << row << "\n";
    const std::string run = kSft + "'data.train=[{path: bad.jsonl}]' output_dir=bad ";
    const Outcome stopped = t.sh(run);
    INFO(stopped.text);
    CHECK(stopped.code == 65);
    CHECK_THAT(stopped.text, Contains("bad.jsonl:21: "));
    const Outcome skipped = t.sh(run + "data.on_bad_record=skip data.cache=skip train.train_steps=1");
    INFO(skipped.text);
    CHECK(skipped.code == 0);
    CHECK_THAT(skipped.text, Contains("1 bad records left out"));
  }
  const Outcome field =
      t.sh(kSft + "'data.train=[{path: chats.jsonl, text: messages}]' output_dir=bad --dry-run");
  CHECK(field.code == 64);
  CHECK_THAT(field.text, Contains("leave text out"));
  const Outcome none = t.sh(kSft + "data.chat_template=chatlm output_dir=bad");
  INFO(none.text);
  CHECK(none.code == 64);
  CHECK_THAT(none.text, Contains("chatml"));
}

TEST_CASE(
    "sft: invalid characters of a row stop the build, leave the row out, or become U+FFFD, and are counted") {
  TempRun t;
  write_chats(t);
  const auto write = [&](const std::string& file, const std::string& word) {
    std::ofstream(t.folder() + "/" + file) << R"({"messages": [{"role": "user", "content": "a )" << word
                                           << R"( b"}, {"role": "assistant", "content": "4"}]})"
                                           << "\n";
  };
  write("clean.jsonl", "\xEF\xBF\xBD");
  const std::string build =
      "data build --tokenizer byte --chat --chat-template chat.jinja --pack 256 --force ";
  REQUIRE(t.sh(build + "--input clean.jsonl --output clean").code == 0);
  for (const char* word : {"\xFF", "\\ud800"}) {
    write("bad.jsonl", word);
    const Outcome stopped = t.sh(build + "--input bad.jsonl --output stopped");
    CHECK(stopped.code == 65);
    CHECK_THAT(stopped.text, Contains("bad.jsonl:1: expected JSON"));
    const Outcome replaced = t.sh(build + "--input bad.jsonl --output replaced --on-bad-record replace");
    INFO(replaced.text);
    REQUIRE(replaced.code == 0);
    CHECK_THAT(replaced.text, Contains("bad records: 0 skipped, 1 read with U+FFFD"));
    for (const char* end : {".bin", ".idx"})
      CHECK(read_file(t.folder() + "/replaced" + end) == read_file(t.folder() + "/clean" + end));
    REQUIRE(t.shell("cat chats.jsonl >> bad.jsonl").code == 0);
    CHECK_THAT(t.sh(build + "--input bad.jsonl --output skipped --on-bad-record skip").text,
               Contains("bad records: 1 skipped, 0 read with U+FFFD"));
  }
  // A row with another defect too is left out.
  REQUIRE(t.shell("sed '1s/assistant/robot/' bad.jsonl > worse.jsonl").code == 0);
  CHECK_THAT(t.sh(build + "--input worse.jsonl --output worse --on-bad-record replace").text,
             Contains("bad records: 1 skipped, 0 read with U+FFFD"));
}
