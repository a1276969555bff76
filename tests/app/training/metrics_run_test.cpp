// A monitoring tool sees the same of a run that was killed, stopped or crashed and went on as of an unbroken
// run.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T v{};
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

/// One field of a protobuf message; `at` moves behind it.
struct Field {
  int number = 0;
  uint64_t varint = 0;
  std::string bytes;
};
Field next_field(const std::string& m, size_t& at) {
  const auto varint = [&] {
    uint64_t v = 0;
    for (int shift = 0; at < m.size(); shift += 7) {
      const auto b = static_cast<unsigned char>(m[at++]);
      v |= static_cast<uint64_t>(b & 0x7f) << shift;
      if (b < 0x80) break;
    }
    return v;
  };
  const uint64_t key = varint();
  Field f{static_cast<int>(key >> 3), 0, ""};
  const int wire = static_cast<int>(key & 7);
  if (wire == 0) {
    f.varint = varint();
    return f;
  }
  const size_t length = wire == 1 ? 8 : wire == 5 ? 4 : varint();
  f.bytes = m.substr(at, length);
  at += length;
  return f;
}

/// TensorBoard's values of the tag `lm_loss`, by its rules: files are read in the order of their names; an
/// event session_log START (field 7, status 1) removes everything of its step and later ones.
std::map<int64_t, float> tensorboard_losses(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& e : fs::directory_iterator(folder))
    if (e.path().filename().string().starts_with("events.out.tfevents.")) files.push_back(e.path());
  std::sort(files.begin(), files.end());
  std::map<int64_t, float> losses;
  for (const std::string& path : files) {
    const std::string file = read_file(path);
    for (size_t at = 0; at + 12 <= file.size();) {
      const auto length = number_at<uint64_t>(file, at);
      if (at + 16 + length > file.size()) break;  // cut off by a kill
      const std::string event = file.substr(at + 12, length);
      at += 16 + length;
      int64_t step = 0;
      for (size_t e = 0; e < event.size();) {
        const Field f = next_field(event, e);
        if (f.number == 2) step = static_cast<int64_t>(f.varint);
        if (f.number == 7) losses.erase(losses.lower_bound(step), losses.end());
        if (f.number != 5) continue;
        size_t s = 0;
        const Field value = next_field(f.bytes, s);
        std::string tag;
        for (size_t v = 0; v < value.bytes.size();) {
          const Field g = next_field(value.bytes, v);
          if (g.number == 1) tag = g.bytes;
          if (g.number == 2 && tag == "lm_loss") losses[step] = number_at<float>(g.bytes, 0);
        }
      }
    }
  }
  return losses;
}

struct Seen {
  std::vector<std::string> loss, eval, tokens;
  std::map<int64_t, float> tensorboard;
  nlohmann::json report;
  bool operator==(const Seen&) const = default;
};

Seen seen(const TempRun& t, const std::string& run) {
  Seen s{t.metric("lm_loss", run),
         t.metric("eval_loss", run),
         t.metric("consumed_tokens", run),
         tensorboard_losses(t.folder() + "/" + run),
         {}};
  const Outcome o = t.sh("report " + run + " --json");
  INFO(o.text);
  REQUIRE(o.code == 0);
  s.report = nlohmann::json::parse(o.text);
  s.report.erase("metrics"), s.report.erase("goodput");
  for (auto& stretch : s.report["stretches"]) stretch.erase("tokens_per_sec"), stretch.erase("mfu");
  return s;
}

}  // namespace

TEST_CASE("metrics, TensorBoard and the report of a run that went on are those of an unbroken one") {
  TempRun t;
  const std::string run = "run tiny.yaml log.tensorboard=true train.train_steps=12 ";
  REQUIRE(t.sh(run + "output_dir=whole").code == 0);
  const Seen whole = seen(t, "whole");
  CHECK(whole.loss.size() == 12);
  CHECK(whole.tensorboard.size() == 12);
  CHECK(whole.report["last_step"] == 12);
  struct Case {
    const char *name, *variables, *options;
    int code;
  };
  for (const Case& c : {Case{"stopped", "", "train.stop_step=6", 0},
                        Case{"killed", "LTRAIN_FAULT=train.step:0:8:kill", "", 71},
                        Case{"killed-in-the-save", "LTRAIN_FAULT=checkpoint.mid_write:0:3:kill", "", 71},
                        Case{"crashed", "LTRAIN_FAULT=train.step:1:6:abort", "", 71},
                        Case{"failed", "LTRAIN_FAULT=train.step:1:6:error", "", 0}}) {
    const std::string dir = std::string("output_dir=") + c.name;
    const Outcome first = t.sh(run + dir + " " + c.options, c.variables);
    INFO(c.name << "\n" << first.text);
    if (*c.variables) CHECK(first.code != 0);
    // A kill may come in the middle of a line and of an event.
    t.shell(
        fmt::format("printf '{{\"step\":99,\"lm_l' >> {0}/metrics.jsonl; for f in {0}/events.*; do printf "
                    "abc >> $f; done",
                    c.name));
    const Outcome second = t.sh(run + dir);
    INFO(second.text);
    REQUIRE(second.code == 0);
    CHECK_THAT(second.text, Contains("resuming from"));
    const Seen broken = seen(t, c.name);
    CHECK(broken.loss == whole.loss);
    CHECK(broken.eval == whole.eval);
    CHECK(broken.tokens == whole.tokens);
    CHECK(broken.tensorboard == whole.tensorboard);
    CHECK(broken.report == whole.report);
  }
}

TEST_CASE("a disk that is full at the end does not undo a run that is saved") {
  TempRun t;
  // A folder in the place of the record of memory: it cannot be written, as on a full disk.
  REQUIRE(t.shell("mkdir -p run/logs/usage-00000.json.tmp").code == 0);
  const Outcome o = t.sh("run tiny.yaml");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("warning: run/logs/usage-00000.json.tmp: cannot be written") &&
                         Contains("done: 6 steps"));
  CHECK(fs::exists(t.folder() + "/run/checkpoints/step-00000006/COMMIT"));
}
