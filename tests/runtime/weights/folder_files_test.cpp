// Tensors of a Hugging Face folder that are read, and weights that an export refuses.
#include <catch2/catch.hpp>

#include <cstring>

#include "runtime/files/write_file.h"
#include "tests/runtime/weights/support.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

TEST_CASE("a tied model takes its one tensor under either name, and refuses two that differ", "[weights]") {
  const TemporaryFolder t;
  const std::string kHead = "lm_head.weight", kTokens = "model.embed_tokens.weight";
  for (const char* name : {"llama-3.2", "gpt2", "gemma2"}) {
    INFO(name);
    const json& model = golden().begin().value().at(name);
    const std::string tokens = std::string(name) == "gpt2" ? "transformer.wte.weight" : kTokens;
    const std::string at = t.path() + "/" + name;
    const Tensors plain = random_tensors(model);
    REQUIRE(plain.count(tokens) == 1);
    REQUIRE(plain.count(kHead) == 0);
    const auto import = [&](const std::string& folder, const Tensors& tensors, json config) {
      write_folder(at + folder, config, tensors);
      return import_folder(at + folder, at + folder + "-checkpoint");
    };
    // The name that safetensors' save_model keeps is the first in the alphabet.
    Tensors alone = plain;
    alone[kHead] = alone.at(tokens);
    alone.erase(tokens);
    CHECK_THAT(import("-alone", alone, model["config"]).notes.back(),
               Contains("lm_head.weight is read as the embedding, " + tokens));
    export_to(at + "-alone-checkpoint", at + "-alone-out");
    CHECK((read_tensors(at + "-alone-out") == plain));
    // The same numbers in a wider type are the same.
    Tensors wide = plain;
    Made& head = wide[kHead] = {DType::f32, plain.at(tokens).shape, {}};
    for (size_t i = 0; i < plain.at(tokens).bytes.size(); i += 2) {
      const std::vector<char>& b = plain.at(tokens).bytes;
      head.bytes.insert(head.bytes.end(), {0, 0, b[i], b[i + 1]});
    }
    CHECK_THAT(import("-wide", wide, model["config"]).notes.back(),
               Contains("lm_head.weight is passed over"));
    // One number of the output layer that is another: the last.
    wide[kHead].bytes.back() ^= 1;
    CHECK_THROWS_WITH(
        import("-differs", wide, model["config"]),
        Contains("lm_head.weight differs from " + tokens) && Contains("model.tie_word_embeddings: false"));
    CHECK_FALSE(path_exists(at + "-differs-checkpoint"));
    wide[kHead].shape[0] -= 1;
    wide[kHead].bytes.resize(wide[kHead].bytes.size() / plain.at(tokens).shape[0] * wide[kHead].shape[0]);
    CHECK_THROWS_WITH(import("-smaller", wide, model["config"]),
                      Contains("lm_head.weight of model.safetensors"));
    // Not tied, the embedding is another tensor and must be there.
    json untied = model["config"];
    untied["tie_word_embeddings"] = false;
    CHECK_THROWS_WITH(import("-untied", alone, untied),
                      Contains("1 tensor of the model is not there: " + tokens));
  }
}

TEST_CASE("model.safetensors is read where a stale index lies beside it, as transformers does", "[weights]") {
  const TemporaryFolder t;
  const json& model = golden().begin().value()["llama-3.2"];
  const std::string folder = t.path() + "/in";
  const Tensors now = random_tensors(model, 1), before = random_tensors(model, 2);
  write_folder(folder, model["config"], now);
  CHECK(import_folder(folder, t.path() + "/single").notes.empty());  // no index: nothing to say
  json map = json::object();
  for (const auto& [name, tensor] : before) map[name] = "model-00001-of-00001.safetensors";
  const int shard = GENERATE(0, 1);
  if (shard) write_tensors(folder + "/model-00001-of-00001.safetensors", before);
  write_file(folder + "/model.safetensors.index.json", json{{"weight_map", map}}.dump());
  const ImportReport in = import_folder(folder, t.path() + "/checkpoint");
  REQUIRE(in.notes.size() == 1);
  CHECK_THAT(in.notes[0], Contains(folder + ": model.safetensors is read and model.safetensors.index.json"));
  export_to(t.path() + "/checkpoint", t.path() + "/out");
  CHECK((read_tensors(t.path() + "/out") == now));
}

TEST_CASE("an export refuses weights that its type cannot hold, with tensor and count", "[weights]") {
  const TemporaryFolder t;
  const json& model = golden().begin().value()["llama-3.2"];
  Tensors tensors;
  std::mt19937 random(3);
  for (const auto& [name, made] : random_tensors(model))
    tensors[name] = random_tensor("F32", made.shape, random);
  const std::string kNorm = "model.norm.weight";
  const auto put = [&](size_t i, float value) {
    std::memcpy(tensors[kNorm].bytes.data() + 4 * i, &value, 4);
  };
  int n = 0;
  const auto made = [&](DType dtype) {
    const std::string at = t.path() + "/" + std::to_string(n++);
    write_folder(at, model["config"], tensors);
    import_folder(at, at + "-checkpoint");
    export_to(at + "-checkpoint", at + "-out", [&](ExportOptions& o) { o.dtype = dtype; });
    return read_tensors(at + "-out");
  };
  put(0, 65504);  // the largest number of fp16; 65519.99 is rounded to it
  put(1, -65519.0f);
  CHECK(made(DType::f16)[kNorm].dtype == DType::f16);
  put(1, -65520.0f);
  put(2, 1e5);
  const std::string of = std::to_string(tensors[kNorm].bytes.size() / 4);
  CHECK_THROWS_WITH(made(DType::f16), Contains(kNorm + ": 2 of " + of + " weights") && Contains("65504") &&
                                          Contains("--dtype bf16"));
  CHECK_FALSE(path_exists(t.path() + "/1-out"));
  CHECK_NOTHROW(made(DType::bf16));
  put(2, 3.4e38f);  // between the largest numbers of bf16 and of fp32
  CHECK_THROWS_WITH(made(DType::bf16), Contains(kNorm + ": 1 of " + of) && Contains("--dtype fp32"));
  CHECK((made(DType::f32) == tensors));
}
