// data.stages and max_epochs: mixes that change at a step, and how often a run reads a source.
#include <catch2/catch.hpp>
#include <cmath>

#include "base/json/json.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kNoEval = "run tiny.yaml data.eval=[] train.eval_interval=0 ";
const std::string kStages =
    kNoEval + "'data.stages=[{from_step: 4, train: [{path: text-val}, {path: text-train}]}]' ";

/// PREFIX.bin and .idx of Megatron's form with `sequences` documents of as many 16-bit tokens, all 0, in a
/// file that takes no room.
void write_sparse(const std::string& prefix, int64_t sequences, int32_t tokens) {
  std::ofstream idx(prefix + ".idx", std::ios::binary);
  const auto put = [&](auto value) { idx.write(reinterpret_cast<const char*>(&value), sizeof value); };
  idx.write("MMIDIDX\0\0", 9);
  put(uint64_t{1}), put(uint8_t{8}), put(static_cast<uint64_t>(sequences)),
      put(static_cast<uint64_t>(sequences + 1));
  for (int64_t i = 0; i < sequences; ++i) put(tokens);
  for (int64_t i = 0; i < sequences; ++i) put(i * tokens * int64_t{2});
  for (int64_t i = 0; i <= sequences; ++i) put(i);
  std::ofstream(prefix + ".bin").close();
  std::filesystem::resize_file(prefix + ".bin", static_cast<uintmax_t>(sequences * tokens * 2));
}

/// Loss of an entry "STEP:LOSS".
double loss_of(const std::string& entry) { return std::stod(entry.substr(entry.find(':') + 1)); }

}  // namespace

TEST_CASE("run: a stage changes the mix at its step and not before") {
  TempRun t;
  REQUIRE(t.sh(kNoEval + "output_dir=plain").code == 0);
  const Outcome staged = t.sh(kStages + "output_dir=staged");
  INFO(staged.text);
  REQUIRE(staged.code == 0);
  const auto plain = t.metric("lm_loss", "plain"), losses = t.metric("lm_loss", "staged");
  REQUIRE(losses.size() == 6);
  for (size_t i = 0; i < 3; ++i) CHECK(losses[i] == plain[i]);
  CHECK(losses[3] != plain[3]);
}

TEST_CASE("run: a stage begins with the first step before which so many tokens were read") {
  TempRun t;
  // A step reads 8 samples of 32 tokens; the recipe of a checkpoint that has launch.hosts: local loads.
  const auto from_tokens = [&](int tokens) {
    const std::string run =
        "run tiny.yaml data.eval=[] train.eval_interval=0 'launch={hosts: local, threads_per_rank: 1}' "
        "'data.stages=[{from_tokens: " +
        std::to_string(tokens) + ", train: [{path: text-val}, {path: text-train}]}]' output_dir=t" +
        std::to_string(tokens);
    const Outcome o = t.sh(run);
    INFO(o.text);
    REQUIRE(o.code == 0);
    return t.metric("lm_loss", "t" + std::to_string(tokens));
  };
  REQUIRE(t.sh(kStages + "output_dir=steps").code == 0);
  const auto by_steps = t.metric("lm_loss", "steps");
  CHECK(from_tokens(768) == by_steps);
  CHECK(from_tokens(767) == by_steps);
  const auto later = from_tokens(769);
  CHECK(later[2] == by_steps[2]);
  CHECK(later[3] != by_steps[3]);
}

TEST_CASE("run: a resume within a stage, before it, and on other ranks reads the same samples") {
  TempRun t;
  REQUIRE(t.sh(kStages + "output_dir=whole").code == 0);
  for (const char* steps : {"2", "4"}) {
    const std::string run = kStages + "output_dir=part" + steps + " ";
    REQUIRE(t.sh(run + "--steps " + steps).code == 0);
    const Outcome resumed = t.sh(run);
    INFO(resumed.text);
    REQUIRE(resumed.code == 0);
    CHECK(t.metric("lm_loss", std::string("part") + steps) == t.metric("lm_loss", "whole"));
  }
  REQUIRE(t.sh(kStages + "parallel.data=1 output_dir=one").code == 0);
  // The ranks sum the loss in another order.
  const auto one = t.metric("lm_loss", "one"), whole = t.metric("lm_loss", "whole");
  REQUIRE(one.size() == whole.size());
  for (size_t i = 0; i < one.size(); ++i) CHECK(loss_of(one[i]) == Approx(loss_of(whole[i])).epsilon(1e-7));
}

TEST_CASE("resume: a stage that has begun may not change, and one that has not may") {
  TempRun t;
  REQUIRE(t.sh(kStages + "--steps 4").code == 0);
  const Outcome changed = t.sh(kNoEval + "'data.stages=[{from_step: 4, train: [{path: text-val}]}]'");
  INFO(changed.text);
  CHECK(changed.code != 0);
  CHECK_THAT(changed.text, Contains("data.stages.0.train"));
  const Outcome moved = t.sh(kNoEval);
  CHECK(moved.code != 0);
  CHECK_THAT(moved.text, Contains("data.stages.0 from sample 24 -> none"));
  const Outcome batch = t.sh(kStages + "train.global_batch_size=16");
  CHECK(batch.code != 0);
  CHECK_THAT(batch.text, Contains("data.stages begin at steps of one batch size"));
  const Outcome more = t.sh(kNoEval +
                            "'data.stages=[{from_step: 4, train: [{path: text-val}, {path: text-train}]}, "
                            "{from_step: 6, train: [{path: text-val}]}]'");
  INFO(more.text);
  CHECK(more.code == 0);
}

TEST_CASE("run: a source that would be read more often than max_epochs is refused before step 1") {
  TempRun t;
  const std::string source =
      "'data.train=[{path: text-train, weight: 1}, {path: text-val, weight: 1, max_epochs: ";
  const Outcome refused = t.sh(kNoEval + source + "0.01}]' output_dir=refused");
  INFO(refused.text);
  CHECK(refused.code == 64);
  CHECK_THAT(refused.text,
             Contains("data.train: source 2, text-val: max_epochs = 0.01: a run of train.train_steps = "
                      "6 reads 24 samples"));
  CHECK(t.sh(kNoEval + source + "1}]' output_dir=allowed").code == 0);
  // The draws of all stages count.
  const Outcome staged = t.sh(kNoEval +
                              "'data.train=[{path: text-val, max_epochs: 0.05}]' "
                              "'data.stages=[{from_step: 2, train: [{path: text-val}]}]' output_dir=staged");
  CHECK_THAT(staged.text, Contains("max_epochs = 0.05") && Contains("reads 48 samples"));
}

TEST_CASE("run: samples of whole documents, on other ranks and after a resume, and their padding") {
  TempRun t;
  std::ofstream lines(t.folder() + "/lines.jsonl");
  for (int i = 0; i < 300; ++i)
    lines << nlohmann::json{{"text", std::string(static_cast<size_t>(i * 7 % 45), 'a' + i % 26)}}.dump()
          << "\n";
  lines.close();
  const std::string run =
      kNoEval + "'data.train=[{path: lines.jsonl}]' data.cache=cache data.reset_attention_mask=true ";
  const Outcome plain = t.sh(run + "output_dir=plain");
  INFO(plain.text);
  REQUIRE(plain.code == 0);
  for (const std::string packing : {"best_fit", "document"}) {
    const std::string packed = run + "data.packing=" + packing + " ";
    const Outcome whole = t.sh(packed + "output_dir=whole-" + packing);
    INFO(whole.text);
    REQUIRE(whole.code == 0);
    CHECK_THAT(whole.text,
               Contains("note: data.packing = " + packing + ": ") && Contains("% of them padding"));
    const auto losses = t.metric("lm_loss", "whole-" + packing);
    CHECK(losses != t.metric("lm_loss", "plain"));
    REQUIRE(t.sh(packed + "output_dir=part-" + packing + " --steps 3").code == 0);
    const Outcome concatenated = t.sh(run + "output_dir=part-" + packing);
    CHECK(concatenated.code != 0);
    CHECK_THAT(concatenated.text, Contains("data.packing " + packing + " -> concatenate"));
    REQUIRE(t.sh(packed + "output_dir=part-" + packing).code == 0);
    CHECK(t.metric("lm_loss", "part-" + packing) == losses);
    REQUIRE(t.sh(packed + "parallel.data=1 output_dir=one-" + packing).code == 0);
    const auto one = t.metric("lm_loss", "one-" + packing);
    REQUIRE(one.size() == losses.size());
    for (size_t i = 0; i < one.size(); ++i)
      CHECK(loss_of(one[i]) == Approx(loss_of(losses[i])).epsilon(1e-6));
    const auto stats =
        nlohmann::json::parse(t.sh("data stats tiny.yaml " + packed.substr(14) + "--json").text);
    const auto& source = stats["sources"][0];
    const double positions = source["samples"].get<double>() * 32;
    CHECK(source["padding"].get<double>() == Approx(1 - source["tokens"].get<double>() / positions));
    CHECK((source["padding"].get<double>() > 0.2) == (packing == "document"));
  }
}

TEST_CASE("data stats: samples that a run reads of each source, over all stages") {
  TempRun t;
  const std::string recipe =
      "data stats tiny.yaml data.eval=[] train.eval_interval=0 "
      "'data.stages=[{from_step: 4, train: [{path: text-val}, {path: text-train}]}]'";
  const Outcome o = t.sh(recipe + " --json");
  REQUIRE(o.code == 0);
  const auto stats = nlohmann::json::parse(o.text);
  CHECK(stats["samples"] == 48);  // six steps of eight
  const auto& sources = stats["sources"];
  REQUIRE(sources.size() == 3);
  // Three steps of text-train, then three steps of both in turn.
  for (const auto& [at, read] : {std::pair(0, 36), {1, 12}, {2, 36}}) {
    CHECK(sources[at]["samples_read"] == read);
    const int64_t samples = (sources[at]["tokens"].get<int64_t>() - 1) / stats["seq_length"].get<int64_t>();
    CHECK(sources[at]["samples"] == samples);
    CHECK(sources[at]["epochs"].get<double>() == Approx(static_cast<double>(read) / samples));
  }
  const auto rate = nlohmann::json::parse(t.sh(recipe + " --read 4 --json").text)["read"];
  CHECK(rate["ranks"] == 2);
  CHECK(rate["tokens"] == 4 * 4 * 32);  // half of the samples of a step
  CHECK(rate["seconds"].get<double>() > 0);
  CHECK_THAT(t.sh(recipe + " --read 4").text, Contains("one of 2 data-parallel ranks reads"));
  CHECK_THAT(t.sh(recipe).text, Contains("text-val") && Contains("6 steps read 48 samples of 32 tokens"));
}

TEST_CASE("run: shorter sequences of the first mix are those of a run with shorter samples") {
  TempRun t;
  // 257 tokens, all of which each step reads: 8 samples of 32, or 16 of 16.
  std::ofstream(t.folder() + "/short.txt") << std::string(read_file(t.folder() + "/text.txt"), 0, 256);
  REQUIRE(t.sh("data build --input short.txt --output short --tokenizer byte").code == 0);
  const std::string run =
      "run tiny.yaml 'data.train=[{path: short}]' data.eval=[] train.eval_interval=0 "
      "data.reset_attention_mask=true data.reset_position_ids=true ";
  const std::string mixed =
      run + "data.train_seq_length=16 'data.stages=[{from_step: 4, train: [{path: short}]}]' ";
  for (const char* model : {"llama", "gpt2"}) {
    const std::string name = std::string(" model.architecture=") + model + " output_dir=" + model;
    REQUIRE(t.sh(run + "data.seq_length=16 train.global_batch_size=16" + name + "-short").code == 0);
    REQUIRE(t.sh(run + name + "-long").code == 0);
    const Outcome o = t.sh(mixed + name + "-mixed");
    INFO(o.text);
    REQUIRE(o.code == 0);
    const auto wanted = t.values("lm_loss", model + std::string("-short"));
    const auto other = t.values("lm_loss", model + std::string("-long"));
    const auto got = t.values("lm_loss", model + std::string("-mixed"));
    REQUIRE(got.size() == 6);
    for (size_t i = 0; i < 3; ++i) CHECK(std::abs(got[i] - wanted[i]) < 1e-5);
    CHECK(std::abs(got[0] - other[0]) > 1e-4);
    CHECK(std::abs(got[3] - wanted[3]) > 1e-4);
  }
  // A resume keeps the length of a mix that has begun.
  const std::string more = " model.architecture=llama output_dir=llama-mixed train.train_steps=8";
  const Outcome changed = t.sh(run + "'data.stages=[{from_step: 4, train: [{path: short}]}]' " + more);
  CHECK(changed.code == 64);
  CHECK_THAT(changed.text, Contains("data.train_seq_length 16 -> data.seq_length"));
  const Outcome stage =
      t.sh(mixed + "'data.stages=[{from_step: 4, seq_length: 8, train: [{path: short}]}]'" + more);
  CHECK(stage.code == 64);
  CHECK_THAT(stage.text, Contains("data.stages.0.seq_length data.seq_length -> 8"));
  const Outcome later =
      t.sh(mixed +
           "'data.stages=[{from_step: 4, train: [{path: short}]}, {from_step: 7, seq_length: "
           "8, train: [{path: short}]}]'" +
           more);
  INFO(later.text);
  CHECK(later.code == 0);
}

TEST_CASE("run: ranks take no more memory than planned with a data set of 100 GB") {
  TempRun t;
  write_sparse(t.folder() + "/sparse", 100000, 500000);
  for (const char* more : {"", " data.packing=best_fit"}) {
    const std::string name = std::string("output_dir=b") + (*more ? "1" : "0");
    const Outcome o = t.sh(kNoEval + "'data.train=[{path: sparse}]' " + name + more);
    INFO(o.text);
    REQUIRE(o.code == 0);
    const size_t at = o.text.find("rank 0 used ");
    REQUIRE(at != std::string::npos);
    double used = 0, planned = 0;
    REQUIRE(std::sscanf(o.text.c_str() + at,
                        "rank 0 used %lf MiB of the host's memory at its peak (%lf planned)", &used,
                        &planned) == 2);
    CHECK(used < planned);
    CHECK(planned < 100);
  }
}
