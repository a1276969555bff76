// Quantization-aware training through the real program: against PyTorch and compressed-tensors, layouts,
// resume, evaluation, export, and what is refused.
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/optimizer/fake_quantize.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"
#include "tests/app/training/losses.h"
#include "tests/app/trl_recipe.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// In fp64, on one process.
const std::string kQuantized =
    "run tiny.yaml precision=fp64 train.eval_interval=0 checkpoint.save_interval=2 optimizer.lr=0.01 "
    "train.train_steps=4 model.hidden_size=64 model.intermediate_size=128 ";
const std::string kInt4 = "quantization.weights=int4 quantization.group_size=32 ";

template <class T>
std::vector<T> read(const ltrain::SafetensorsFile& file, const std::string& name, const char* dtype) {
  const auto* e = file.find(name);
  INFO(name);
  REQUIRE(e);
  REQUIRE(e->dtype == dtype);
  std::vector<T> out(static_cast<size_t>(e->end - e->begin) / sizeof(T));
  file.read(*e, 0, e->end - e->begin, out.data());
  return out;
}

}  // namespace

TEST_CASE("quantization: losses and norms are those of PyTorch with compressed-tensors' weights") {
  TempRun t;
  const auto want = nlohmann::json::parse(
      read_file(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/quantization/losses.json"));
  write_trl_recipe(t, "sft", "../distillation/completions.jsonl");
  REQUIRE(t.shell("sed -i '/^preference/d' sft.yaml").code == 0);
  for (const auto& [name, run] : want["runs"].items()) {
    const auto& options = run["options"];
    std::string command = "run sft.yaml 'output_dir=" + name + "'";
    for (const auto& [key, value] : options.items())
      command += " 'quantization." + key + "=" + value.dump() + "'";
    const Outcome o = t.sh(command);
    INFO(name << "\n" << o.text);
    REQUIRE(o.code == 0);
    check_trl_steps(t, name, run["steps"], "lm_loss", "loss", 1e-5);
    check_trl_steps(t, name, run["steps"], "grad_norm", "grad_norm", 1e-5);
    // A run without quantization begins elsewhere.
    CHECK(std::abs(t.values("lm_loss", name)[0] - run["plain"].get<double>()) > 1e-4);
  }
}

TEST_CASE("quantization: losses in fp64 do not depend on the layout, nor on a resume") {
  TempRun t;
  for (const std::string codes : {"int4", "fp8"}) {
    const std::string run = kQuantized + "quantization.weights=" + codes + " ";
    succeeds(t, run + "quantization.group_size=32 " + kOneRank + "output_dir=one-" + codes);
    const std::vector<double> want = t.values("lm_loss", "one-" + codes);
    int n = 0;
    for (const char* layout : {"parallel.zero_stage=1", "parallel.zero_stage=2", "parallel.zero_stage=3",
                               "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
                               "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2"}) {
      INFO(codes << " " << layout);
      const std::string name = codes + std::to_string(n++);
      succeeds(t, run + "quantization.group_size=32 " + layout + " output_dir=" + name);
      check_same_losses(t.values("lm_loss", name), want);
    }
    // A row of 32 and of 64 columns has its own buckets.
    succeeds(t, run + "quantization.group_size=0 " + kOneRank + "output_dir=rows-" + codes);
    succeeds(t, run + "quantization.group_size=0 parallel.zero_stage=3 output_dir=rows3-" + codes);
    check_same_losses(t.values("lm_loss", "rows3-" + codes), t.values("lm_loss", "rows-" + codes));
    CHECK(t.values("lm_loss", "rows-" + codes) != want);
  }
  succeeds(t, kQuantized + kInt4 + kOneRank + "output_dir=half train.stop_step=2");
  succeeds(t, kQuantized + kInt4 + "parallel.zero_stage=3 output_dir=half");
  check_same_losses(t.values("lm_loss", "half"), t.values("lm_loss", "one-int4"));
}

TEST_CASE("quantization: a resume in the middle is bit for bit, with every optimizer that has other states") {
  TempRun t;
  for (const std::string settings :
       {"precision=bf16", "precision=bf16 train.ema_decay=0.9", "precision=fp32 optimizer.kind=adamw8bit",
        "precision=bf16 optimizer.kind=muon",
        "precision=bf16 'sparsity.match=[\"*.mlp.*\"]' sparsity.at_step=2"}) {
    INFO(settings);
    const std::string run = "run tiny.yaml " + kInt4 + settings + " ";
    const std::string name = std::to_string(std::hash<std::string>()(settings));
    succeeds(t, run + "output_dir=a" + name);
    succeeds(t, run + "output_dir=b" + name + " train.stop_step=4");
    succeeds(t, run + "output_dir=b" + name);
    for (const char* key : {"lm_loss", "grad_norm"})
      CHECK(t.metric(key, "a" + name) == t.metric(key, "b" + name));
    CHECK(t.metric("eval_loss", "a" + name).back() == t.metric("eval_loss", "b" + name).back());
  }
}

TEST_CASE("quantization: eval, generate and export have the weights of the steps") {
  TempRun t;
  for (const std::string precision : {"fp32", "bf16"})
    for (const std::string codes : {"int4", "int8", "fp8"}) {
      INFO(precision << " " << codes);
      const std::string name = precision + codes;
      succeeds(t,
               "run tiny.yaml train.train_steps=3 train.eval_steps=51 parallel.data=1 parallel.zero_stage=0 "
               "train.micro_batch_size=5 train.global_batch_size=5 precision=" +
                   precision + " quantization.weights=" + codes +
                   " quantization.group_size=32 'quantization.ignore=[\"*.o_proj.*\"]' output_dir=" + name);
      succeeds(t, "export " + name + " hf-" + name);
      succeeds(t, "export " + name + " masters-" + name + " --masters --dtype fp32");
      const auto config = nlohmann::json::parse(read_file(t.folder() + "/hf-" + name + "/config.json"));
      const auto& q = config["quantization_config"];
      CHECK(q["format"] == (codes == "fp8" ? "float-quantized" : "pack-quantized"));
      CHECK(q["config_groups"]["group_0"]["weights"]["group_size"] == 32);
      const auto ignore = q["ignore"].get<std::set<std::string>>();
      CHECK(ignore.count("lm_head") == 1);
      CHECK(ignore.count("model.layers.1.self_attn.o_proj") == 1);
      CHECK(ignore.count("model.layers.1.self_attn.q_proj") == 0);
      // Codes of the folder times its scales are the weights that the steps multiply with.
      const ltrain::SafetensorsFile hf(t.folder() + "/hf-" + name + "/model.safetensors");
      const ltrain::SafetensorsFile masters(t.folder() + "/masters-" + name + "/model.safetensors");
      const std::string matrix = "model.layers.1.mlp.down_proj.weight";
      std::vector<float> w = read<float>(masters, matrix, "F32"), scales;
      REQUIRE(w.size() == 32 * 64);
      if (precision == "fp32")
        scales = read<float>(hf, matrix + "_scale", "F32");
      else
        for (ltrain::bf16 s : read<ltrain::bf16>(hf, matrix + "_scale", "BF16")) scales.push_back(s);
      REQUIRE(scales.size() == 64);
      std::vector<uint8_t> bytes = codes == "fp8" ? read<uint8_t>(hf, matrix, "F8_E4M3")
                                                  : read<uint8_t>(hf, matrix + "_packed", "I32");
      std::vector<float> decoded(w.size());
      for (size_t i = 0; i < w.size(); ++i) {
        const float code = codes == "fp8"    ? ltrain::fp8::from_e4m3(bytes.at(i))
                           : codes == "int8" ? static_cast<float>(bytes.at(i)) - 128
                                             : static_cast<float>(bytes.at(i / 2) >> i % 2 * 4 & 15) - 8;
        decoded[i] = code * scales[i / 32];
        if (precision == "bf16") decoded[i] = ltrain::bf16(decoded[i]);
      }
      ltrain::Tensor x;
      x.data = w.data();
      x.shape = {32 * 64};
      const auto s = ltrain::make_inline_stream("test");
      ltrain::fake_quantize(*s, x, x, *ltrain::enum_value<ltrain::WeightCodes>(codes), 32,
                            precision == "fp32" ? ltrain::DType::f32 : ltrain::DType::bf16);
      CHECK(w == decoded);
      if (precision == "bf16") continue;
      // eval computes in fp32 as the run does.
      const Outcome eval = t.sh("eval " + name + " --json");
      INFO(eval.text);
      CHECK(eval.code == 0);
      const double loss = nlohmann::json::parse(eval.text)["sets"][0]["loss"];
      CHECK(std::abs(loss - t.values("eval_loss", name).back()) < 1e-5);
      CHECK(t.sh("generate " + name + " --prompt line --tokens 2").code == 0);
    }
  CHECK_THAT(t.sh("export fp32int4 again --dtype bf16").text,
             Contains("leave --dtype out, or give --masters"));
  CHECK_THAT(t.sh("eval fp32int4 --precision bf16").text, Contains("leave --precision out"));
}

TEST_CASE("quantization: planned bytes have the master weights, and what cannot be is refused by name") {
  TempRun t;
  const auto optimizer_bytes = [&](const std::string& arguments) {
    const Outcome o = t.sh("plan tiny.yaml --json parallel.zero_stage=0 precision=fp32 " + arguments);
    INFO(o.text);
    REQUIRE(o.code == 0);
    return nlohmann::json::parse(o.text);
  };
  const auto plan = optimizer_bytes(kInt4);
  CHECK(plan["quantized_parameters"] == 2 * (4 * 32 * 32 + 3 * 32 * 64));
  CHECK(!optimizer_bytes("").contains("quantized_parameters"));
  CHECK_THAT(t.sh("plan tiny.yaml " + kInt4).text,
             Contains("quantized: 20.5k parameters are int4 in each step, with one scale for 32"));
  const auto refused = [&](const std::string& arguments, const char* what) {
    const Outcome o = t.sh("plan tiny.yaml " + kInt4 + arguments);
    INFO(arguments << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains(what));
  };
  refused("quantization.group_size=64", "32 columns, which are not full groups");
  refused("quantization.group_size=0 parallel.tensor=2", "has one scale for a row of");
  refused("quantization.group_size=64 parallel.tensor=2 model.hidden_size=64",
          "down_proj.weight has 64 columns, 32 on a rank");
  refused("'quantization.match=[\"*.mpl.*\"]'", "*.mpl.* matches nothing that can be quantized");
  refused("'quantization.match=[\"*.q_proj.*\"]'", "they are parts of one matrix; match both or ignore both");
  refused("'optimizer.frozen=[\"*.o_proj.*\"]'", "o_proj.weight is frozen");
}
