// Initial weights: their spread, and what model.output_layer_init_method changes of it.
#include <catch2/catch.hpp>

#include <cmath>

#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Initial weights by name, in fp64.
NamedTensors initial(const TinyOptions& options, bool scaled) {
  ProgramOptions o = tiny_program(options);
  o.model.scaled_init = scaled;
  auto compute = make_inline_stream("compute");
  CpuArena arena(64 << 20);
  const GroupSet alone;
  TrainProgram program(o, {*compute, arena, alone.groups()});
  program.initialize();
  ParameterStore& store = program.parameters();
  NamedTensors out;
  for (int id = 0; id < store.count(); ++id) {
    const Tensor v = store.value(id);
    auto& to = out[store.spec(id).name];
    to.insert(to.end(), v.ptr<double>(), v.ptr<double>() + v.elements());
  }
  return out;
}

double deviation(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

bool into_the_residual_stream(const std::string& name) {
  return name.ends_with("c_proj.weight") || name.ends_with("o_proj.weight") || name.ends_with("down_proj") ||
         name.ends_with("down_proj.weight");
}

}  // namespace

TEST_CASE("projections into the residual stream begin smaller by sqrt(2 layers), unless told otherwise") {
  TinyOptions o;
  o.layers = 8;
  o.architecture = GENERATE(as<std::string>(), "gpt2", "llama", "mixtral", "qwen3_moe", "olmoe");
  if (o.architecture != "gpt2" && o.architecture != "llama") {
    o.moe.num_experts = 4;
    o.moe.intermediate_size = 24;
    o.moe.shared_experts = o.architecture == "mixtral" ? 1 : 0;
  }
  const NamedTensors scaled = initial(o, true), normal = initial(o, false);
  CHECK(ModelConfig().scaled_init);  // the default
  const double std = tiny_model(o).initializer_range, root = std::sqrt(16.0);
  int into = 0, others = 0;
  for (const auto& [name, values] : scaled) {
    INFO(o.architecture << " " << name);
    const auto& plain = normal.at(name);
    REQUIRE(plain.size() == values.size());
    if (!into_the_residual_stream(name)) {
      CHECK(values == plain);
      ++others;
      continue;
    }
    ++into;
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] * root - plain[i]));
    CHECK(worst < 1e-15);
    CHECK(deviation(values) == Approx(std / root).epsilon(0.1));
    CHECK(deviation(plain) == Approx(std).epsilon(0.1));
  }
  CHECK(into >= 16);
  CHECK(others >= 16);
}
