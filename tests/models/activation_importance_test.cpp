// Importance of layers, neurons and experts by activations, against forward hooks on transformers' models in
// fp64 (scripts/golden/make-importance-golden.py).
#include "runtime/eval/activation_importance.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <numeric>

#include "tests/models/hf_golden.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kSamples = 3, kAtOnce = 2;

/// Has sums of a model made on the first samples of a file; the second batch ends with padding of other
/// tokens.
template <class Sums>
Sums measured(const HfGolden& g) {
  ProgramOptions o;
  o.model = g.model;
  o.precision = precision_policy("fp64");
  o.micro_batch = kAtOnce;
  o.seq_length = g.file.find("tokens")->shape.back();
  o.for_training = false;
  auto compute = make_inline_stream("compute");
  CpuArena arena(64 << 20);
  const GroupSet alone;
  TrainProgram program(o, {*compute, arena, alone.groups()});
  program.initialize();
  ParameterStore& store = program.parameters();
  for (int id = 0; id < store.count(); ++id) {
    const auto w = part_of(store.spec(id), g.read<bf16>("weight." + store.spec(id).name));
    for (size_t i = 0; i < w.size(); ++i)
      store.value(id).ptr<double>()[i] = static_cast<double>(static_cast<float>(w[i]));
  }
  const auto tokens = g.read<int32_t>("tokens");
  Sums sums(o.model);
  program.observe(&sums);
  HostBatch batch;
  int64_t first = 0;
  program.evaluate([&]() -> const HostBatch* {
    if (first >= kSamples) return nullptr;
    const auto begin = tokens.begin() + first * o.seq_length;
    batch.tokens.assign(begin, begin + kAtOnce * o.seq_length);
    batch.targets = batch.tokens;
    batch.sample_index.clear();
    for (int64_t i = 0; i < kAtOnce; ++i, ++first)
      batch.sample_index.push_back(first < kSamples ? first : -1);
    sums.begin_batch(batch);
    return &batch;
  });
  return sums;
}

std::vector<double> numbers(const nlohmann::json& hex) {
  std::vector<double> out;
  for (const auto& x : hex) out.push_back(std::strtod(x.get<std::string>().c_str(), nullptr));
  return out;
}

/// Numbers in the order of falling values.
std::vector<int> order(const std::vector<double>& values) {
  std::vector<int> numbers(values.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  std::ranges::stable_sort(numbers, std::greater<>(), [&](int i) { return values[static_cast<size_t>(i)]; });
  return numbers;
}

void check_close(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(want[i]).epsilon(1e-10).margin(0));
  CHECK(order(got) == order(want));
}

}  // namespace

TEST_CASE("importance by activations is that of hooks on transformers' models") {
  std::ifstream in(LTRAIN_SOURCE_DIR "/tests/golden/importance.json");
  const auto all = nlohmann::json::parse(in);
  REQUIRE(all.size() == 7);
  for (const auto& [name, want] : all.items()) {
    INFO(name);
    const HfGolden golden("family_" + name);
    if (want.contains("experts")) {
      const ExpertUse got = measured<ExpertSums>(golden).saliency();
      REQUIRE(got.size() == want["experts"].size());
      for (const auto& [layer, saliency] : got)
        check_close(saliency, numbers(want["experts"].at(std::to_string(layer))));
      continue;
    }
    const Importance got = measured<ActivationSums>(golden).importance();
    check_close(got.layers, numbers(want["layers"]));
    REQUIRE(got.neurons.size() == want["neurons"].size());
    for (size_t i = 0; i < got.neurons.size(); ++i) check_close(got.neurons[i], numbers(want["neurons"][i]));
  }
}
