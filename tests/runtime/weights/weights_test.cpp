// Folders of Hugging Face, in and out: names, types and shapes are those that transformers' save_pretrained
// writes (tests/golden/hf_folders.json, made by scripts/golden/make-hf-folders.py).
#include <catch2/catch.hpp>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "base/json/json.h"
#include "parallel/mesh/groups.h"
#include "runtime/checkpoint/convert_elements.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/store.h"
#include "runtime/files/write_file.h"
#include "runtime/program/train_program.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/import.h"
#include "runtime/weights/load.h"
#include "runtime/weights/new_folder.h"
#include "runtime/weights/stream_tensor.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/runtime/weights/support.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

TEST_CASE("folders as transformers writes them come in and go out bit for bit", "[weights]") {
  const TemporaryFolder t;
  int n = 0;
  for (const auto& [version, models] : golden().items())
    for (const auto& [name, model] : models.items()) {
      INFO(version << " " << name);
      const std::string at = t.path() + "/" + std::to_string(n++);
      const Tensors tensors = random_tensors(model);
      REQUIRE(tensors.size() > 10);
      write_folder(at + "-in", model["config"], tensors);
      const ImportReport in = import_folder(at + "-in", at + "-checkpoint");
      CHECK(in.family == model["config"]["model_type"]);
      CHECK(read_checkpoint(at + "-checkpoint").error == "");
      const ExportReport out = export_to(at + "-checkpoint", at + "-out");
      CHECK(out.dtype == DType::bf16);
      CHECK((read_tensors(at + "-out") == tensors));
      // transformers reads the same from the new config.json as from its own.
      const json config = read_json(at + "-out/config.json");
      CHECK(config["architectures"] == model["config"]["architectures"]);
      CHECK(config["torch_dtype"] == "bfloat16");
      CHECK(config.value("eos_token_id", json()) == model["config"].value("eos_token_id", json()));
      CHECK(model_settings(recipe_of(at + "-out").model) == model_settings(recipe_of(at + "-in").model));
      CHECK(path_exists(at + "-out/generation_config.json"));
    }
  CHECK(n >= 12);
}

TEST_CASE("an export of several files has an index, and comes in again", "[weights]") {
  const TemporaryFolder t;
  const json& model = golden().begin().value()["mixtral"];
  const Tensors tensors = random_tensors(model);
  write_folder(t.path() + "/in", model["config"], tensors);
  import_folder(t.path() + "/in", t.path() + "/checkpoint");
  const ExportReport out =
      export_to(t.path() + "/checkpoint", t.path() + "/out", [](ExportOptions& o) { o.shard_bytes = 20000; });
  const json index = read_json(t.path() + "/out/model.safetensors.index.json");
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    REQUIRE(index["weight_map"].contains(name));
    bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  CHECK(index["metadata"]["total_size"] == bytes);
  int files = 0;
  for (const std::string& name : list_folder(t.path() + "/out")) files += name.ends_with(".safetensors");
  CHECK(files >= 3);
  CHECK(path_exists(fmt::format("{}/out/model-00001-of-{:05d}.safetensors", t.path(), files)));
  CHECK((read_tensors(t.path() + "/out") == tensors));
  import_folder(t.path() + "/out", t.path() + "/again");
  CHECK(read_json(t.path() + "/again/manifest.json")["tensors"] ==
        read_json(t.path() + "/checkpoint/manifest.json")["tensors"]);
  export_to(t.path() + "/again", t.path() + "/out2");
  CHECK((read_tensors(t.path() + "/out2") == tensors));

  // Conversion to another type rounds to nearest.
  const ExportReport wide =
      export_to(t.path() + "/again", t.path() + "/fp32", [](ExportOptions& o) { o.dtype = DType::f32; });
  CHECK(wide.dtype == DType::f32);
  for (const auto& [name, tensor] : read_tensors(t.path() + "/fp32")) {
    const Made& from = tensors.at(name);
    std::vector<char> want(from.bytes.size() * 2);
    convert_elements(DType::bf16, from.bytes.data(), DType::f32, want.data(),
                     static_cast<int64_t>(from.bytes.size() / 2));
    CHECK((tensor.bytes == want));
  }
  CHECK(read_json(t.path() + "/fp32/config.json")["torch_dtype"] == "float32");
}

TEST_CASE("every slice of a layout is read as the whole tensor has it, stored as it is or transposed",
          "[weights]") {
  const TemporaryFolder t;
  std::mt19937 random(5);
  for (const auto& [name, strided] : {std::pair{"gpt2", 8}, {"qwen3_moe", 0}, {"gpt_oss", 9}}) {
    const json& model = golden().begin().value()[name];
    const std::string folder = t.path() + "/" + name;
    write_folder(folder, model["config"], random_tensors(model));
    const Recipe recipe = recipe_of(folder);
    std::vector<std::string> notes;
    const auto reader = hf_weights(open_hf_folder(folder, "test"), recipe.model, notes);
    reader->take_any_float();
    int transposed = 0;
    for (const auto& [parameter, parts] : reader->tensors()) {
      INFO(parameter);
      transposed += parts.pieces[0].order.kind == FileOrder::strided;
      const int64_t n = parts.shape.elements();
      std::vector<float> whole(static_cast<size_t>(n));
      reader->read(parameter, DType::f32, Slice::whole(parts.shape), whole.data());
      for (int i = 0; i < 20; ++i) {
        Shape offset = parts.shape, extent = parts.shape;
        for (int d = 0; d < parts.shape.rank; ++d) {
          extent.dims[d] = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(parts.shape[d]));
          offset.dims[d] =
              static_cast<int64_t>(random() % static_cast<uint64_t>(parts.shape[d] - extent[d] + 1));
        }
        Slice slice = Slice::box(parts.shape, offset, extent);
        const int64_t begin = static_cast<int64_t>(random() % static_cast<uint64_t>(slice.elements()));
        const int64_t end =
            begin + 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(slice.elements() - begin));
        slice = slice.range(begin, end);
        std::vector<float> got(static_cast<size_t>(slice.elements()), -1.0f);
        reader->read(parameter, DType::f32, slice, got.data());
        bool same = true;
        Runs runs(slice);
        for (Run r = runs.next(); r.count > 0; r = runs.next())
          same =
              same && std::memcmp(&got[static_cast<size_t>(r.local)], &whole[static_cast<size_t>(r.global)],
                                  static_cast<size_t>(r.count) * sizeof(float)) == 0;
        CHECK(same);
      }
    }
    CHECK(transposed == strided);
  }
  // The transposed weight is what transformers' Conv1D has at [in][out].
  const json& model = golden().begin().value()["gpt2"];
  const Tensors tensors = random_tensors(model);
  std::vector<std::string> notes;
  const auto reader =
      hf_weights(open_hf_folder(t.path() + "/gpt2", "test"), recipe_of(t.path() + "/gpt2").model, notes);
  const std::string name = "transformer.h.0.mlp.c_fc.weight";
  const Made& there = tensors.at(name);
  const TensorParts& here = reader->tensors().at(name);
  REQUIRE(here.shape[0] == there.shape[1]);
  std::vector<uint16_t> file(there.bytes.size() / 2), ours(file.size());
  std::memcpy(file.data(), there.bytes.data(), there.bytes.size());
  reader->read(name, DType::bf16, Slice::whole(here.shape), ours.data());
  for (int64_t out = 0; out < here.shape[0]; ++out)
    for (int64_t in = 0; in < here.shape[1]; ++in)
      REQUIRE(ours[static_cast<size_t>(out * here.shape[1] + in)] ==
              file[static_cast<size_t>(in * here.shape[0] + out)]);
}

TEST_CASE("what files have beside parameters is passed over by name, and nothing else is", "[weights]") {
  const TemporaryFolder t;
  const json& models = golden().begin().value();
  std::mt19937 random(2);
  // GPT-2 as it was published: no "transformer." in front, masks beside the weights.
  Tensors published;
  for (const auto& [name, tensor] : random_tensors(models["gpt2"]))
    published[name.starts_with("transformer.") ? name.substr(12) : name] = tensor;
  const Tensors weights = published;
  published["h.0.attn.bias"] = random_tensor("F32", {1, 1, 64, 64}, random);
  published["h.1.attn.masked_bias"] = random_tensor("F32", {}, random);
  write_folder(t.path() + "/gpt2", models["gpt2"]["config"], published);
  const ImportReport in = import_folder(t.path() + "/gpt2", t.path() + "/gpt2-checkpoint");
  REQUIRE(in.notes.size() >= 1);
  CHECK_THAT(in.notes.back(), Contains("2 tensors that are computed and not trained"));
  export_to(t.path() + "/gpt2-checkpoint", t.path() + "/gpt2-out");
  for (const auto& [name, tensor] : read_tensors(t.path() + "/gpt2-out"))
    CHECK((tensor == weights.at(name.substr(12))));
  // An output layer that is the embedding, stored twice.
  Tensors tied = random_tensors(models["llama-3.2"]);
  tied["lm_head.weight"] = tied.at("model.embed_tokens.weight");
  write_folder(t.path() + "/tied", models["llama-3.2"]["config"], tied);
  const ImportReport twice = import_folder(t.path() + "/tied", t.path() + "/tied-checkpoint");
  CHECK_THAT(twice.notes.back(), Contains("lm_head.weight is passed over"));
  // Experts in one tensor of each kind, as transformers has them in memory.
  const Tensors apart = random_tensors(models["qwen3_moe"]);
  Tensors stacked = apart;
  const auto stack = [&](const std::string& to, const std::vector<std::string>& parts, int64_t rows,
                         int64_t columns) {
    Made all{DType::bf16, {4, rows, columns}, {}};
    for (int e = 0; e < 4; ++e)
      for (const std::string& part : parts) {
        const std::string name = fmt::format("model.layers.1.mlp.experts.{}.{}.weight", e, part);
        const std::vector<char>& bytes = apart.at(name).bytes;
        all.bytes.insert(all.bytes.end(), bytes.begin(), bytes.end());
        stacked.erase(name);
      }
    stacked["model.layers.1.mlp.experts." + to] = all;
  };
  stack("gate_up_proj", {"gate_proj", "up_proj"}, 48, 32);
  stack("down_proj", {"down_proj"}, 32, 24);
  write_folder(t.path() + "/stacked", models["qwen3_moe"]["config"], stacked);
  import_folder(t.path() + "/stacked", t.path() + "/stacked-checkpoint");
  export_to(t.path() + "/stacked-checkpoint", t.path() + "/stacked-out");
  CHECK((read_tensors(t.path() + "/stacked-out") == apart));
}

namespace {

/// A folder of DeepSeek-V3 with one module that predicts a token more, as its authors have it.
json with_module(Tensors& tensors) {
  const json& model = golden().begin().value()["deepseek_v3"];
  std::mt19937 random(9);
  tensors = random_tensors(model);
  const Tensors plain = tensors;
  for (const auto& [name, t] : plain)  // the module's own layer is like the last one
    if (name.starts_with("model.layers.2."))
      tensors["model.layers.3." + name.substr(15)] = random_tensor("BF16", t.shape, random);
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"})
    tensors[fmt::format("model.layers.3.{}.weight", norm)] = random_tensor("BF16", {32}, random);
  tensors["model.layers.3.eh_proj.weight"] = random_tensor("BF16", {32, 64}, random);
  tensors["model.layers.3.embed_tokens.weight"] = plain.at("model.embed_tokens.weight");
  tensors["model.layers.3.shared_head.head.weight"] = plain.at("lm_head.weight");
  json config = model["config"];
  config["num_nextn_predict_layers"] = 1;
  return config;
}

}  // namespace

TEST_CASE("modules that predict more tokens come in and go out bit for bit", "[weights]") {
  const TemporaryFolder t;
  Tensors tensors;
  const json config = with_module(tensors);
  write_folder(t.path() + "/in", config, tensors);
  const ImportReport in = import_folder(t.path() + "/in", t.path() + "/checkpoint");
  CHECK_THAT(fmt::format("{}", fmt::join(in.notes, "\n")),
             Contains("2 tensors are passed over: they are the embedding and the output layer once more"));
  export_to(t.path() + "/checkpoint", t.path() + "/out");
  CHECK((read_tensors(t.path() + "/out") == tensors));
  CHECK(read_json(t.path() + "/out/config.json")["num_nextn_predict_layers"] == 1);
  // A recipe that does not ask for them begins without, from either, and says so.
  const auto stream = make_inline_stream("test");
  const GroupSet one;
  const auto open = [&](const std::string& from, int modules) {
    std::vector<std::string> notes;
    const Recipe recipe = parse_recipe(
        "{}", "test",
        {"model.from=" + t.path() + "/in", "data.seq_length=16", "checkpoint.load.path=" + t.path() + from,
         fmt::format("model.num_nextn_predict_layers={}", modules)});
    const auto reader = open_weights(recipe, true, one.groups().world.communicator(), *stream, notes);
    CHECK(reader->has("model.layers.3.eh_proj.weight") == (modules > 0 || from == "/checkpoint"));
    ProgramOptions o;
    o.model = recipe.model;
    o.precision = precision_policy("fp32");
    o.seq_length = 16;
    CpuArena arena(1 << 25);
    const auto compute = make_inline_stream("compute");
    TrainProgram program(o, {*compute, arena, one.groups()});
    load_weights(recipe, program.parameters(), one.groups().world.communicator(), *stream);
    return fmt::format("{}", fmt::join(notes, "\n"));
  };
  CHECK_THAT(open("/in", 0), Contains("tensors of modules that predict more than the next token are passed "
                                      "over, and an export of this run will have none; "
                                      "model.num_nextn_predict_layers: 1 takes them"));
  CHECK_THAT(open("/in", 1), !Contains("takes them"));
  CHECK_THAT(open("/checkpoint", 0), Contains("model.num_nextn_predict_layers is 1 there and 0 here"));
  CHECK_THAT(open("/checkpoint", 1), !Contains("there and"));
  CHECK_THAT(error_of([&] { open("/in", 2); }), Contains("model.layers.4.enorm.weight"));
  // A tensor that differs from its copy is refused, because it would be lost.
  for (const char* copy : {"embed_tokens", "shared_head.head"}) {
    Tensors other = tensors;
    other.at(fmt::format("model.layers.3.{}.weight", copy)).bytes[5000] ^= 1;
    write_folder(t.path() + "/" + copy, config, other);
    CHECK_THAT(error_of([&] { import_folder(t.path() + "/" + copy, t.path() + "/none"); }),
               Contains(fmt::format("model.layers.3.{}.weight is another than", copy)));
    CHECK_FALSE(path_exists(t.path() + "/none"));
  }
}

TEST_CASE("a folder that is not whole, or of another model, is refused by name, and nothing is made",
          "[weights]") {
  const TemporaryFolder t;
  const json& model = golden().begin().value()["llama"];
  const Tensors whole = random_tensors(model);
  std::mt19937 random(3);
  int n = 0;
  const auto refused = [&](const std::function<void(const std::string& folder)>& make,
                           const std::string& text) {
    const std::string folder = fmt::format("{}/{}", t.path(), n++), checkpoint = folder + "-checkpoint";
    make_folders(folder);
    write_file(folder + "/config.json", model["config"].dump());
    make(folder);
    const std::string error = error_of([&] { import_folder(folder, checkpoint); });
    INFO(error);
    CHECK_THAT(error, Contains(text));
    CHECK_FALSE(path_exists(checkpoint));
    for (const std::string& name : list_folder(t.path()))
      CHECK_FALSE(name.find(".tmp-") != std::string::npos);
  };
  const auto with = [&](const std::function<void(Tensors&)>& change) {
    return [&, change](const std::string& folder) {
      Tensors tensors = whole;
      change(tensors);
      write_tensors(folder + "/model.safetensors", tensors);
    };
  };
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  refused([](const std::string&) {}, "has neither model.safetensors nor model.safetensors.index.json");
  refused([](const std::string& f) { write_file(f + "/pytorch_model.bin", "x"); }, "holds Python objects");
  refused(with([&](Tensors& x) { x.erase(down); }), "1 tensor of the model is not there: " + down);
  refused(with([&](Tensors& x) { x["model.layers.0.extra"] = random_tensor("BF16", {2}, random); }),
          "no place in the recipe's model: model.layers.0.extra");
  refused(with([&](Tensors& x) { std::swap(x[down].shape[0], x[down].shape[1]); }),
          down + " of model.safetensors is [48, 32], and the recipe's model has [32, 48]");
  refused(with([&](Tensors& x) {
            x[down] = random_tensor("I32", {32, 48}, random);
          }),
          down + " of model.safetensors is I32");
  refused(
      [&](const std::string& f) {
        with([](Tensors&) {})(f);
        const std::string bytes = read_text_file(f + "/model.safetensors", 1 << 24);
        write_file(f + "/model.safetensors", bytes.substr(0, bytes.size() - 1));
      },
      "not a safetensors file");
  const auto indexed = [&](const json& index) {
    return [&, index](const std::string& f) {
      write_tensors(f + "/a.safetensors", whole);
      write_file(f + "/model.safetensors.index.json", index.dump());
    };
  };
  json map = json::object();
  for (const auto& [name, tensor] : whole) map[name] = "a.safetensors";
  json changed = map;
  for (const char* bad : {"../a.safetensors", "/etc/passwd", "a.bin", ".safetensors", "sub/a.safetensors"}) {
    changed[down] = bad;
    refused(indexed({{"weight_map", changed}}), "needs the name of a .safetensors file of this folder");
  }
  changed[down] = 7;
  refused(indexed({{"weight_map", changed}}), "weight_map[\"" + down + "\"] is 7");
  refused(indexed({{"weight", map}}), "has no object weight_map");
  refused(indexed(json::array()), "has no object weight_map");
  changed = map;
  changed.erase(down);
  refused(indexed({{"weight_map", changed}}),
          "has tensor \"" + down + "\", which model.safetensors.index.json does not name");
  changed = map;
  changed["model.more"] = "a.safetensors";
  refused(indexed({{"weight_map", changed}}), "has no tensor \"model.more\"");
  changed = map;
  changed[down] = "b.safetensors";
  refused(indexed({{"weight_map", changed}}), "a.safetensors: has tensor \"" + down);
  refused(
      [&](const std::string& f) {
        write_file(f + "/config.json", "{\"model_type\": \"llama\", \"odd\": 1}");
      },
      "odd");
  // Existing files are not replaced.
  write_folder(t.path() + "/good", model["config"], whole);
  make_folders(t.path() + "/mine");
  write_file(t.path() + "/mine/file", "x");
  CHECK_THAT(error_of([&] { import_folder(t.path() + "/good", t.path() + "/mine"); }),
             Contains("not an empty folder"));
  import_folder(t.path() + "/good", t.path() + "/checkpoint");
  CHECK_THAT(error_of([&] { import_folder(t.path() + "/good", t.path() + "/checkpoint"); }),
             Contains("not an empty folder"));
  CHECK_THAT(error_of([&] { export_to(t.path() + "/checkpoint", t.path() + "/mine"); }),
             Contains("not an empty folder"));
  CHECK_THAT(error_of([&] {
               export_to(t.path() + "/checkpoint", t.path() + "/out",
                         [](ExportOptions& o) { o.average = true; });
             }),
             Contains("averages of weights are kept by runs with train.ema_decay"));
  CHECK(read_text_file(t.path() + "/mine/file", 10) == "x");
}

TEST_CASE("weights begin a run whose model differs in what no weight depends on, and in nothing else",
          "[weights]") {
  const TemporaryFolder t;
  const json& model = golden().begin().value()["llama"];
  write_folder(t.path() + "/in", model["config"], random_tensors(model));
  import_folder(t.path() + "/in", t.path() + "/checkpoint");
  const auto stream = make_inline_stream("test");
  const GroupSet one;
  const auto open = [&](const std::vector<std::string>& changes) {
    std::vector<std::string> given{"model.from=" + t.path() + "/in", "data.seq_length=16",
                                   "checkpoint.load.path=" + t.path() + "/checkpoint"};
    given.insert(given.end(), changes.begin(), changes.end());
    const Recipe recipe = parse_recipe("{}", "test", given);
    std::vector<std::string> notes;
    open_weights(recipe, true, one.groups().world.communicator(), *stream, notes);
    return fmt::format("{}", fmt::join(notes, "\n"));
  };
  CHECK_THAT(open({}), Contains("the run begins with the weights of") && !Contains("there and"));
  CHECK_THAT(
      open({"model.rope_theta=5e5", "model.max_position_embeddings=128"}),
      Contains("model.rope_theta is") && Contains("model.max_position_embeddings is 64 there and 128 here"));
  // Heads of another size have the same shapes of weights: it is the settings that tell.
  CHECK_THAT(error_of([&] {
               open({"model.num_attention_heads=8", "model.num_key_value_heads=4", "model.head_dim=4"});
             }),
             Contains("model.num_attention_heads is 4 there and 8 here"));
  CHECK_THAT(error_of([&] { open({"model.num_hidden_layers=1"}); }),
             Contains("model.num_hidden_layers is 2 there and 1 here"));
}

TEST_CASE("a tensor of several blocks goes out in order, and what reading says ends it", "[weights]") {
  const TemporaryFolder t;
  std::mt19937 random(4);
  const Made made = random_tensor("BF16", {1500, 4001}, random);  // three blocks, the last one short
  write_tensors(t.path() + "/a.safetensors", {{"a", made}});
  const Shape shape{1500, 4001};
  const auto stream = [&](const std::string& file) {
    std::map<std::string, TensorParts> parts;
    parts["a"].dtype = DType::bf16;
    parts["a"].shape = shape;
    parts["a"].pieces = {{0, "a", Slice::whole(shape), {}}};
    PieceReader reader(t.path(), {file}, parts);
    std::vector<char> got;
    stream_tensor(reads_of(reader), "a", DType::bf16, Slice::whole(shape), false,
                  [&](const void* data, int64_t bytes) {
                    const char* from = static_cast<const char*>(data);
                    got.insert(got.end(), from, from + bytes);
                  });
    return got;
  };
  CHECK((stream("a.safetensors") == made.bytes));
  write_tensors(t.path() + "/b.safetensors", {{"b", made}});
  CHECK_THAT(error_of([&] { stream("b.safetensors"); }), Contains("b.safetensors"));
}

TEST_CASE("what is put into the folder while it is written is not removed") {
  const TemporaryFolder t;
  const std::string path = t.path() + "/out";
  make_folders(path);
  {
    NewFolder folder(path);
    write_text_file(folder.work() + "/config.json", "{}");
    write_text_file(path + "/mine", "text");
    CHECK_THAT(error_of([&] { folder.commit(); }), Contains("nothing of it is replaced"));
  }
  CHECK(list_folder(t.path()) == std::vector<std::string>{"out"});  // written files are gone
  CHECK(list_folder(path) == std::vector<std::string>{"mine"});
  std::filesystem::remove(path + "/mine");
  NewFolder folder(path);
  write_text_file(folder.work() + "/config.json", "{}");
  folder.commit();
  CHECK(list_folder(path) == std::vector<std::string>{"config.json"});
}
