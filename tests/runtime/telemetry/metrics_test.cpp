// metrics.jsonl and the progress line.
#include "runtime/telemetry/metrics.h"
#include "base/json/json.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

namespace {

StepMetrics metrics(int64_t step) {
  StepMetrics m;
  m.step = step, m.train_steps = m.end_step = 100;
  m.consumed_samples = step * 8, m.consumed_tokens = step * 8 * 64;
  m.lm_loss = 5.4321, m.grad_norm = 1.5, m.lr = 3e-4;
  m.step_time_ms = 12.5, m.tokens_per_sec = 40960, m.tokens_per_sec_per_gpu = 20480;
  m.tflops_per_gpu = 0.125, m.mfu = 0.415;
  m.mem_peak_gib = 1.0, m.mem_plan_gib = 1.5;
  m.seconds_left = 3723;
  m.exposed_comm_ms = {{"dp", 0.5}, {"tp", 0.25}};
  return m;
}

std::vector<json> lines(const std::string& folder) {
  std::vector<json> out;
  std::ifstream in(folder + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
  return out;
}

std::vector<int64_t> steps(const std::string& folder) {
  std::vector<int64_t> out;
  for (const json& j : lines(folder)) out.push_back(j["step"].get<int64_t>());
  return out;
}

/// Environment variables for the length of a scope; null removes one.
class Variables {
 public:
  explicit Variables(const std::vector<std::pair<std::string, const char*>>& set) {
    for (const auto& [name, value] : set) {
      const char* old = std::getenv(name.c_str());
      old_.push_back({name, old ? std::optional<std::string>(old) : std::nullopt});
      put(name, value);
    }
  }
  ~Variables() {
    for (const auto& [name, value] : old_) put(name, value ? value->c_str() : nullptr);
  }

 private:
  static void put(const std::string& name, const char* value) {
    value ? ::setenv(name.c_str(), value, 1) : ::unsetenv(name.c_str());
  }
  std::vector<std::pair<std::string, std::optional<std::string>>> old_;
};

/// Output of `write` on stderr, which is a pipe, or a terminal of `columns`.
std::string stderr_of(bool terminal, const std::function<void()>& write, int columns = 120) {
  int read_end = -1, write_end = -1;
  if (terminal) {
    winsize size{24, static_cast<unsigned short>(columns), 0, 0};
    REQUIRE(::openpty(&read_end, &write_end, nullptr, nullptr, &size) == 0);
  } else {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    read_end = ends[0], write_end = ends[1];
  }
  const int saved = ::dup(2);
  ::dup2(write_end, 2);
  ::close(write_end);
  write();
  std::fflush(stderr);
  std::string text;
  char buffer[4096];
  ::fcntl(read_end, F_SETFL, O_NONBLOCK);
  const auto drain = [&] {
    ssize_t n;
    while ((n = ::read(read_end, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(n));
  };
  drain();  // before stderr is given back: a terminal forgets what was not read when its last writer closes
  ::dup2(saved, 2);
  ::close(saved);
  drain();
  ::close(read_end);
  return text;
}

const std::vector<std::pair<std::string, const char*>> kPlainTerminal{
    {"LTRAIN_TTY", nullptr}, {"NO_COLOR", nullptr}, {"TERM", "xterm"}, {"COLUMNS", nullptr}};

}  // namespace

TEST_CASE("metrics.jsonl: one flat object a step, NaN is null, names are documented", "[telemetry]") {
  const TemporaryFolder folder;
  {
    MetricsWriter w(folder.path(), false, 0);
    StepMetrics m = metrics(1);
    m.grad_norm = NAN;
    w.step(m);
    w.eval(1, "", 2.0, 0);
    CHECK(lines(folder.path()).size() == 2);  // on its way to the file at once
  }
  const auto all = lines(folder.path());
  REQUIRE(all.size() == 2);
  CHECK(all[0]["step"] == 1);
  CHECK(all[0]["lm_loss"].get<double>() == 5.4321);
  CHECK(all[0]["grad_norm"].is_null());
  CHECK(all[0]["consumed_tokens"] == 512);
  CHECK(all[1]["eval_loss"] == 2.0);
  CHECK(all[1]["eval_perplexity"].get<double>() == Approx(std::exp(2.0)));
  std::ifstream in(std::string(LTRAIN_SOURCE_DIR) + "/docs/metrics.md");
  std::stringstream docs;
  docs << in.rdbuf();
  for (const json& j : all)
    for (const auto& [name, value] : j.items()) {
      CHECK((value.is_number() || value.is_null()));
      CHECK_THAT(docs.str(), Contains("`" + name + "`"));
    }
}

TEST_CASE("metrics.jsonl of a resumed run: steps after the checkpoint are dropped, torn lines too",
          "[telemetry]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  {
    MetricsWriter w(folder.path(), false, 0);
    for (int64_t s = 1; s <= 5; ++s) w.step(metrics(s));
    w.eval(3, "", 1.0, 0);
    w.eval(5, "", 1.0, 0);
  }
  SECTION("at the step of a checkpoint") {
    MetricsWriter(folder.path(), false, 3).step(metrics(4));
    CHECK(steps(folder.path()) == std::vector<int64_t>{1, 2, 3, 3, 4});
  }
  SECTION("nothing to drop: the file stays as it is, byte by byte") {
    std::ifstream before_file(path);
    const std::string before((std::istreambuf_iterator<char>(before_file)), {});
    { MetricsWriter w(folder.path(), false, 5); }
    std::ifstream after_file(path);
    CHECK(std::string((std::istreambuf_iterator<char>(after_file)), {}) == before);
  }
  SECTION("a fresh start drops all") {
    MetricsWriter(folder.path(), false, 0).step(metrics(1));
    CHECK(steps(folder.path()) == std::vector<int64_t>{1});
  }
  SECTION("lines that are no metrics are dropped, whatever they are") {
    std::ofstream(path, std::ios::app)
        << "{\"step\":2,\"lm_lo\n[1,2]\n7\nnull\n{\"step\":\"two\"}\n{\"step\":1.5}\n\n";
    MetricsWriter(folder.path(), false, 5).step(metrics(6));
    CHECK(steps(folder.path()) == std::vector<int64_t>{1, 2, 3, 4, 5, 3, 5, 6});
  }
  SECTION("a last line without its end does not swallow the next one") {
    std::ofstream(path, std::ios::app) << "{\"step\":5}";
    MetricsWriter(folder.path(), false, 5).step(metrics(6));
    CHECK(steps(folder.path()) == std::vector<int64_t>{1, 2, 3, 4, 5, 3, 5, 5, 6});
  }
}

TEST_CASE("metrics.jsonl that cannot be written is an error with its path", "[telemetry]") {
  CHECK_THROWS_WITH(MetricsWriter("no-such-folder", false, 0), Contains("no-such-folder/metrics.jsonl"));
}

TEST_CASE("TensorBoard gets the numbers of metrics.jsonl when it is asked for", "[telemetry]") {
  const TemporaryFolder folder;
  { MetricsWriter(folder.path(), true, 0).step(metrics(1)); }
  int events = 0;
  for (const auto& e : std::filesystem::directory_iterator(folder.path()))
    if (e.path().filename().string().rfind("events.out.tfevents.", 0) == 0) {
      ++events;
      std::ifstream in(e.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(in)), {});
      for (const char* tag :
           {"lm_loss", "grad_norm", "lr", "mfu", "exposed_comm_ms/dp", "exposed_comm_ms/tp"})
        CHECK_THAT(bytes, Contains(tag));
    }
  CHECK(events == 1);
  const TemporaryFolder without;
  { MetricsWriter(without.path(), false, 0).step(metrics(1)); }
  CHECK(std::distance(std::filesystem::directory_iterator(without.path()), {}) == 1);
}

TEST_CASE("progress into a pipe: plain lines at the interval and at the end", "[telemetry]") {
  const Variables v(kPlainTerminal);
  const std::string text = stderr_of(false, [] {
    Progress p(LogFormat::text, 10);
    p.line("hello");
    for (int64_t s : {1, 9, 10, 11, 20, 99, 100}) p.step(metrics(s));
  });
  CHECK(text.find('\033') == std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 4);
  CHECK(text.substr(0, 6) == "hello\n");
  CHECK_THAT(text,
             Contains("step 10/100  1:02:03 left  loss 5.4321  lr 3.00e-04  norm 1.50  41.0k tok/s  MFU "
                      "41.5%  mem 1024/1536 MiB  slowest step 10 12 ms\n"));
  CHECK_THAT(text, Contains("step 20/100") && Contains("step 100/100"));
  CHECK_THAT(text, !Contains("step 11/100"));
}

TEST_CASE("progress on a terminal: one line in place, colour unless NO_COLOR, lines above it",
          "[telemetry]") {
  const auto draw = [] {
    return stderr_of(true, [] {
      Progress p(LogFormat::text, 1000);
      p.step(metrics(1));
      p.line("saved");
      p.step(metrics(100));  // the last step is drawn whenever it comes
    });
  };
  {
    const Variables v(kPlainTerminal);
    const std::string text = draw();
    CHECK_THAT(text, Contains("\033[1mstep 1/100\033[0m  1:02:03 left  loss 5.4321"));
    CHECK_THAT(text, Contains("\r\033[Ksaved"));  // the line is taken away before another is written
    CHECK_THAT(text, Contains("step 100/100"));
    CHECK(text.find('\n') > text.find("saved"));  // the line in place has no end of its own
  }
  {
    auto set = kPlainTerminal;
    set[1].second = "1";
    const Variables v(set);
    const std::string text = draw();
    CHECK_THAT(text, Contains("step 1/100  1:02:03 left  loss") && !Contains("\033[1m"));
    CHECK_THAT(text, Contains("\r\033[K"));
  }
  {
    auto set = kPlainTerminal;
    set[1].second = "";  // no-color.org: empty means not set
    const Variables v(set);
    CHECK_THAT(draw(), Contains("\033[1m"));
  }
  {
    auto set = kPlainTerminal;
    set[2].second = "dumb";
    const Variables v(set);
    CHECK_THAT(draw(), !Contains("\033"));
  }
}

TEST_CASE("progress under a launcher: LTRAIN_TTY says what stderr is", "[telemetry]") {
  auto set = kPlainTerminal;
  set[0].second = "1";
  const auto step = [] { Progress(LogFormat::text, 1).step(metrics(3)); };
  {
    const Variables v(set);
    CHECK_THAT(stderr_of(false, step), Contains("\033[1m"));
  }
  set[0].second = "0";
  const Variables v(set);
  CHECK_THAT(stderr_of(true, step), !Contains("\033"));
}

TEST_CASE("the progress line in place never wraps, and shows the remaining time at 80 columns",
          "[telemetry]") {
  const Variables v(kPlainTerminal);
  for (int columns : {40, 60, 80, 200}) {
    const std::string text = stderr_of(
        true, [] { Progress(LogFormat::text, 1000).step(metrics(3)); }, columns);
    const std::string plain = std::regex_replace(text, std::regex("\033\\[[0-9]*[a-zA-Z]|[\r\n]"), "");
    CHECK(static_cast<int>(plain.size()) < columns);
    CHECK(plain.substr(0, 24) == "step 3/100  1:02:03 left");
    if (columns == 80) CHECK_THAT(plain, Contains("loss 5.4321") && Contains("41.0k tok/s"));
  }
}

TEST_CASE("a terminal keeps a whole line of each interval, and shows the steps between in place",
          "[telemetry]") {
  auto set = kPlainTerminal;
  set[1].second = "1";
  const Variables v(set);
  const std::string text = stderr_of(
      true,
      [] {
        Progress p(LogFormat::text, 2);
        for (int64_t s : {1, 2, 3, 4, 100}) p.step(metrics(s));
      },
      80);
  // Text that a terminal still shows: a carriage return and an erasure remove the rest of the line.
  std::vector<std::string> kept;
  std::stringstream in(text);
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (const size_t at = line.rfind("\r\033[K"); at != line.npos) line = line.substr(at + 4);
    kept.push_back(line);
  }
  REQUIRE(kept.size() == 3);
  CHECK_THAT(kept[0], Catch::StartsWith("step 2/100  ") && Contains("1024/1536 MiB  slowest step 2 12 ms"));
  CHECK_THAT(kept[1], Catch::StartsWith("step 4/100  "));
  CHECK_THAT(kept[2], Catch::StartsWith("step 100/100  ") && Catch::EndsWith("MiB"));
}

TEST_CASE("a line has the means over its interval, and names the slowest step", "[telemetry]") {
  const Variables v(kPlainTerminal);
  const auto write = [] {
    Progress p(LogFormat::text, 3);
    for (int64_t s : {1, 2, 3, 4}) {
      StepMetrics m = metrics(s);
      m.train_steps = m.end_step = 4;
      m.lm_loss = static_cast<double>(s);
      m.step_time_ms = s == 2 ? 300 : 100;
      m.tokens_per_sec = 1000 / (m.step_time_ms / 1e3);  // 1000 tokens each
      m.mfu = 0.1 / (m.step_time_ms / 100);
      p.step(m);
    }
  };
  const std::string text = stderr_of(false, write);
  INFO(text);
  // Steps 1 to 3: losses 1, 2, 3; 3000 tokens in 500 ms; 10 % for 200 ms and 3.33 % for 300 ms.
  CHECK_THAT(text, Contains("step 3/4  1:02:03 left  loss 2.0000 ") && Contains(" 6000 tok/s  MFU 6.0% ") &&
                       Contains("slowest step 2 300 ms"));
  // The last step is an interval of its own: nothing of the one before is in it, and it has no slowest step.
  CHECK_THAT(text, Contains("step 4/4  1:02:03 left  loss 4.0000 ") && Contains(" 10.0k tok/s  MFU 10.0% "));
  CHECK(text.find("slowest") == text.rfind("slowest"));
}

TEST_CASE("without a known peak there is no MFU", "[telemetry]") {
  const Variables v(kPlainTerminal);
  StepMetrics m = metrics(1);
  m.mfu = NAN;
  const std::string text = stderr_of(false, [&] { Progress(LogFormat::text, 1).step(m); });
  CHECK_THAT(text, Contains("tok/s") && !Contains("MFU") && !Contains("nan"));
  const TemporaryFolder folder;
  { MetricsWriter(folder.path(), false, 0).step(m); }
  CHECK(lines(folder.path()).at(0)["mfu"].is_null());
}

TEST_CASE("log.format megatron counts what was skipped and what was not finite in its interval",
          "[telemetry]") {
  const Variables v(kPlainTerminal);
  const auto write = [] {
    Progress p(LogFormat::megatron, 3);
    for (int64_t s = 1; s <= 6; ++s) {
      StepMetrics m = metrics(s);
      m.skipped = s == 2 || s == 3;
      if (s == 3) m.grad_norm = INFINITY;
      p.step(m);
    }
  };
  const std::string text = stderr_of(false, write);
  INFO(text);
  CHECK_THAT(text, Contains("number of skipped iterations:   2 | number of nan iterations:   1 |"));
  CHECK_THAT(text, Contains("number of skipped iterations:   0 | number of nan iterations:   0 |"));
}

TEST_CASE("log.format megatron: the line that existing parsers know", "[telemetry]") {
  const Variables v(kPlainTerminal);
  const auto write = [] {
    Progress p(LogFormat::megatron, 2);
    for (int64_t s : {1, 2}) p.step(metrics(s));
  };
  for (bool terminal : {false, true}) {
    const std::string text = stderr_of(terminal, write);
    CHECK(text.find('\033') == std::string::npos);
    CHECK(std::count(text.begin(), text.end(), '\n') == 1);
    // Megatron-LM's own fields, in its order, as its log parsers match them.
    const std::regex line(
        R"( iteration +(\d+)/ *(\d+) \| consumed samples: +(\d+) \| elapsed time per iteration \(ms\): ([\d.]+) \| )"
        R"(throughput per GPU \(TFLOP/s/GPU\): ([\d.]+) \| learning rate: ([\d.E+-]+) \| lm loss: ([\d.E+-]+) \| )"
        R"(grad norm: ([\d.]+) \| number of skipped iterations: +0 \| number of nan iterations: +0 \|)");
    std::smatch m;
    REQUIRE(std::regex_search(text, m, line));
    CHECK(m[1] == "2");
    CHECK(m[3] == "16");
    CHECK(m[4] == "12.5");
    CHECK(m[6] == "3.000000E-04");
    CHECK(m[7] == "5.432100E+00");
  }
}

TEST_CASE("durations and counts for people", "[telemetry]") {
  CHECK(format_duration(0) == "0 s");
  CHECK(format_duration(59.4) == "59 s");
  CHECK(format_duration(59.6) == "1:00");
  CHECK(format_duration(3599.6) == "1:00:00");
  CHECK(format_duration(3723) == "1:02:03");
  CHECK(format_duration(90061) == "1d 01:01");
  for (double bad : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY), 1e12})
    CHECK(format_duration(bad) == "?");
  CHECK(format_count(999) == "999");
  CHECK(format_count(12345) == "12.3k");
  CHECK(format_count(1.24e6) == "1.24M");
  CHECK(format_count(1.5e9) == "1.50B");
}
