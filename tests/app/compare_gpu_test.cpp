// scripts/compare-torch-gpu.sh without a GPU: what it would run, its recipes and its arithmetic.
#include <catch2/catch.hpp>

#include <set>

#include "tests/app/run_program.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

Outcome shell(const std::string& command) {
  Outcome o;
  FILE* pipe = ::popen(("cd " + std::string(LTRAIN_SOURCE_DIR) + " && " + command).c_str(), "r");
  REQUIRE(pipe);
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) o.text.append(buffer, n);
  o.code = WEXITSTATUS(::pclose(pipe));
  return o;
}

/// Runs Python in the scripts' folder.
Outcome python(const std::string& code) {
  return shell("PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=scripts/peers python3 -c '" + code + "' 2>&1");
}

}  // namespace

TEST_CASE("the comparison on a GPU: its matrix, recipes that ltrain takes, and their operations") {
  const Outcome o = shell("PYTHONDONTWRITEBYTECODE=1 scripts/compare-torch-gpu.sh --dry-run");
  REQUIRE(o.code == 0);
  const auto cases = nlohmann::json::parse(o.text);
  REQUIRE(cases.size() == 3);
  for (const auto& c : cases) {
    const std::string name = c["case"];
    INFO(name);
    std::set<std::string> commands;
    for (const auto& v : c["variants"]) commands.insert(v["command"].dump() + v.value("matmul", ""));
    CHECK(commands.size() == 28);  // all different: 4 of ltrain, 3 * 2 * 2 * 2 of PyTorch
    std::string settings;
    for (const std::string s : c["recipe"]) settings += " " + s;
    const Outcome planned =
        shell(LTRAIN_BINARY " plan recipes/gpt2-124m.yaml" + settings + " --profile h200 --json 2>&1");
    INFO(planned.text);
    REQUIRE(planned.code == 0);
    const auto plan = nlohmann::json::parse(planned.text);
    CHECK(plan["tokens_per_step"] == c["tokens_per_step"]);
    // The plan counts the scores that attention's backward computes again; the comparison does not.
    const double flops = plan["mfu"].get<double>() * plan["step_seconds"].get<double>() *
                         plan["peak_flops"].get<double>() / plan["tokens_per_step"].get<double>();
    const double ratio = flops / c["flops_per_token"].get<double>();
    CHECK(ratio > 1.0);
    CHECK(ratio < 1.025);
  }
  CHECK(shell("scripts/compare-torch-gpu.sh --dry-run --case llama-9b 2>&1").code == 2);
}

TEST_CASE("attention alone on a GPU: shapes that ltrain takes, their operations, and times out of traces") {
  const Outcome o = shell("PYTHONDONTWRITEBYTECODE=1 scripts/compare-attention-gpu.sh --dry-run");
  REQUIRE(o.code == 0);
  const auto shapes = nlohmann::json::parse(o.text);
  REQUIRE(shapes.size() == 10);
  for (const auto& s : shapes) {
    std::string settings;
    for (size_t i = 4; i < s["ltrain"].size(); ++i) settings += " " + s["ltrain"][i].get<std::string>();
    INFO(settings);
    CHECK(s["torch"].size() == 2);
    const Outcome traced = shell(LTRAIN_BINARY " plan recipes/gpt2-124m.yaml" + settings +
                                 " --profile h200 --trace attention-trace.tmp > /dev/null 2>&1; "
                                 "python3 -c 'import json; print(sum(e[\"args\"][\"flops\"] for e in "
                                 "json.load(open(\"attention-trace.tmp\"))[\"traceEvents\"] if "
                                 "e[\"name\"].startswith(\"attention\")))'; rm -f attention-trace.tmp");
    // The plan counts the diagonal whole.
    CHECK(std::stod(traced.text) == Approx(s["flops"].get<double>()).epsilon(0.002));
  }
  const Outcome times = python(R"(
import json, tempfile
from gpu_cases import *
from compare_attention_gpu import row_of, SHAPES
thread = lambda tid, name: dict(name="thread_name", ph="M", tid=tid, args=dict(name=name))
event = lambda tid, name, ts, dur: dict(name=name, ph="X", tid=tid, ts=ts, dur=dur)
with tempfile.NamedTemporaryFile("w") as f:
    json.dump(dict(traceEvents=[thread(0, "compute"), thread(1, "host"), event(0, "attention_forward", 10, 4),
                                event(0, "attention_forward", 20, 5), event(1, "step", 0, 40)]), f)
    f.flush()
    assert trace_intervals(f.name) == [(10, 14), (20, 25)]
    assert abs(op_seconds(f.name)["attention_forward"] - 9e-6) < 1e-12
row = row_of(SHAPES[0], {"ltrain, native kernels": [4e-3], "ltrain, cuDNN": [2e-3], "PyTorch, cudnn": [3e-3],
                         "PyTorch, flash": "out of memory"})
assert row[-1] == "**1.500**" and "out of memory" in row[-2], row
row = row_of(SHAPES[0], {"ltrain, native kernels": [4e-3], "ltrain, cuDNN": "no cuDNN", "PyTorch, cudnn": [3e-3]})
assert row[-1] == "**0.750**" and "no cuDNN" in row[-3], row
)");
  INFO(times.text);
  CHECK(times.code == 0);
}

TEST_CASE("the comparison on a GPU: the idle share, tables of nsys, tables of results") {
  const Outcome o = python(R"(
from gpu_cases import *
assert abs(idle_share([(0, 10), (5, 12), (15, 20)]) - 0.15) < 1e-12
assert idle_share([(5, 12), (0, 20)]) == 0 and idle_share([]) is None
text = "Processing...\nStart (ns),Duration (ns),Name\n100,50,a\n160,40,\"b, c\"\n"
assert nsys_intervals(text) == [(100, 150), (160, 200)]
try:
    nsys_intervals("ERROR: no data")
    raise SystemExit("a table of nothing")
except ValueError:
    pass
assert peak_of("NVIDIA H200") == 989e12 and peak_of("NVIDIA GH200 480GB") == 989e12 and peak_of("Tesla T4") is None
import compare_torch_gpu, measure
row = lambda ltrain, rate: dict(variant="v", ltrain=ltrain, tokens_per_sec=measure.spread([rate]), mfu=0.5,
                                first_step_seconds=None, idle="not measured")
rows = compare_torch_gpu.table(dict(rows=[row(True, 120), row(False, 100), row(False, 80)]))
assert rows[1][-1] == "**1.200**" and rows[1][2] == "50.0 %" and rows[2][-1] == "", rows
)");
  INFO(o.text);
  CHECK(o.code == 0);
  // The peer needs PyTorch to run; that it is Python needs nothing.
  const Outcome peer = python("import ast; ast.parse(open(\"scripts/peers/torch_gpu.py\").read())");
  INFO(peer.text);
  CHECK(peer.code == 0);
  const Outcome none =
      shell("PATH=/usr/bin/nowhere:/bin:/usr/bin scripts/compare-torch-gpu.sh --out /nowhere 2>&1");
  if (::access("/dev/nvidiactl", R_OK) != 0) CHECK(none.code != 0);
}
