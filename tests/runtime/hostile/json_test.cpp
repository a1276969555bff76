// Every reader of JSON from outside, fed with hostile numbers, depth, sizes and bytes: it takes them or
// refuses them with an error of its own, and never as a defect of ltrain.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>

#include "base/json/json.h"
#include "base/time_scale.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/input/jsonl.h"
#include "runtime/files/write_file.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/run_report.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/weights/hf_folder.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/support/mutations.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using nlohmann::json;

namespace {

std::string safetensors_of(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return bytes + header + data;
}

std::vector<HostileReader> readers(const std::string& folder) {
  std::vector<HostileReader> all;
  Manifest m;
  m.info = make_info(3);
  m.files = {{shard_name(0, 1), 24, std::string(32, '0')}};
  m.tensors["w"] = {DType::f32, {2, 3}, {{0, "w", Slice::whole({2, 3})}}};
  all.push_back(
      {"manifest", {manifest_to_json(m)}, [](const std::string& t) { manifest_from_json(t, "m"); }});
  all.push_back(
      {"pieces", {pieces_to_json(m.tensors)}, [](const std::string& t) { pieces_from_json(t, "p", 1); }});
  all.push_back({"identity of data", {data_identity_to_json(*m.info.data)}, [](const std::string& t) {
                   data_identity_from_json(t, "d");
                 }});
  all.push_back({"safetensors",
                 {R"({"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"},
                 [folder](const std::string& t) {
                   write_file(folder + "/x.safetensors", safetensors_of(t, "1234"));
                   SafetensorsFile(folder + "/x.safetensors");
                 }});
  save_steps(folder + "/run", 1, Slicing::rows, {1});
  for (const char* below : {"/data", "/tokenizer", "/with_config"})
    std::filesystem::create_directories(folder + below);
  {  // one document of three tokens
    std::string index("MMIDIDX\0\0", 9);
    const auto put = [&](auto v) { index.append(reinterpret_cast<const char*>(&v), sizeof v); };
    put(uint64_t{1}), put(uint8_t{8}), put(uint64_t{1}), put(uint64_t{2}), put(int32_t{3}), put(int64_t{0}),
        put(int64_t{0}), put(int64_t{1});
    write_file(folder + "/data/a.idx", index);
    write_file(folder + "/data/a.bin", std::string(6, '\1'));
  }
  all.push_back(
      {"sidecar",
       {R"({"format":"ltrain-tokens","version":1,"tokenizer":"byte","tokenizer_hash":"0123","vocab_size":300,)"
        R"("eot":299,"append_eot":true,"type":"u16","documents":1,"sequences":1,"tokens":3,"max_token":257,)"
        R"("bin_xxh3_64":"0123"})"},
       [folder](const std::string& t) {
         write_file(folder + "/data/a.json", t);
         data::check_source(data::inspect_source(folder + "/data/a"), 300, 1);
       }});
  all.push_back({"JSONL record",
                 {R"({"id":1,"text":"words","more":[1,2.5,{"a":null}]})"},
                 [](const std::string& t) { data::json_text(t, "text", "x.jsonl", 1); }});
  all.push_back(
      {"machine profile",
       {R"({"format":1,"machine":"m","cores":2,"process_bytes":1,"ranks":[{"threads":1,"ops":{"matmul":[[1,2,)"
        R"(0.5,1,1,1]]},"peak_flops":{"f32":1e9}}],"collectives":[{"op":"all_reduce","ranks":2,"bytes":8,)"
        R"("seconds":1e-3,"cpu_seconds":0}],"transport":"shm"})"},
       [folder](const std::string& t) {
         write_file(folder + "/profile.json", t);
         load_profile(folder + "/profile.json");
       }});
  all.push_back({"metrics.jsonl",
                 {R"({"step":1,"lm_loss":2.5,"grad_norm":1.0,"consumed_tokens":64,"tokens_per_sec":10.0})"},
                 [folder](const std::string& t) {
                   std::filesystem::create_directories(folder + "/report");
                   write_file(folder + "/report/metrics.jsonl", t + "\n");
                   read_run_report(folder + "/report");
                 }});
  all.push_back(
      {"tokenizer.json",
       {R"({"version":"1.0","truncation":null,"added_tokens":[{"id":3,"content":"<e>","special":true}],"normalizer":)"
        R"({"type":"Replace","pattern":{"Regex":"b+"},"content":"a"},"pre_tokenizer":{"type":"WhitespaceSplit"},)"
        R"("post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},)"
        R"({"SpecialToken":{"id":"<e>","type_id":0}}],"special_tokens":{"<e>":{"id":"<e>","ids":[3],"tokens":["<e>"]}}},)"
        R"("decoder":{"type":"Fuse"},"model":{"type":"BPE","unk_token":"<u>","vocab":{"<u>":0,"a":1,"aa":2},)"
        R"("merges":[["a","a"]]}})"},
       [folder](const std::string& t) {
         write_file(folder + "/tokenizer/tokenizer.json", t);
         data::make_huggingface_tokenizer(folder + "/tokenizer")->encode("aaa bb <e> c");
       }});
  all.push_back(
      {"tokenizer_config.json",
       {R"({"bos_token":"<u>","eos_token":{"content":"<e>"},"model_max_length":1e30})"},
       [folder](const std::string& t) {
         write_file(
             folder + "/with_config/tokenizer.json",
             R"({"added_tokens":[{"id":1,"content":"<e>"}],"model":{"unk_token":"<u>","vocab":{"<u>":0},)"
             R"("merges":[]}})");
         write_file(folder + "/with_config/tokenizer_config.json", t);
         data::make_huggingface_tokenizer(folder + "/with_config");
       }});
  all.push_back(
      {"config.json",
       {R"({"model_type":"llama","vocab_size":300,"hidden_size":64,"num_attention_heads":2,"num_hidden_layers":1,)"
        R"("intermediate_size":64,"rms_norm_eps":1e-5,"max_position_embeddings":512})"},
       [folder](const std::string& t) {
         write_file(folder + "/config.json", t);
         parse_recipe("model: {from: " + folder + "/config.json}", "r.yaml");
       }});
  all.push_back(
      {"config.json with experts, latent attention and more tokens predicted",
       {R"({"model_type":"deepseek_v3","vocab_size":300,"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":4,)"
        R"("num_hidden_layers":3,"intermediate_size":64,"moe_intermediate_size":32,"first_k_dense_replace":1,)"
        R"("n_routed_experts":4,"num_experts_per_tok":2,"n_shared_experts":1,"n_group":2,"topk_group":1,)"
        R"("kv_lora_rank":16,"q_lora_rank":12,"qk_nope_head_dim":8,"qk_rope_head_dim":4,"v_head_dim":6,)"
        R"("num_nextn_predict_layers":1,"max_position_embeddings":512,"rope_scaling":{"type":"yarn","factor":4.0,)"
        R"("beta_fast":32,"beta_slow":1,"original_max_position_embeddings":128,"mscale":1.0,"mscale_all_dim":1.0}})"},
       [folder](const std::string& t) {
         std::filesystem::create_directories(folder + "/latent");
         write_file(folder + "/latent/config.json", t);
         parse_recipe("model: {from: " + folder + "/latent/config.json}", "r.yaml");
       }});
  all.push_back({"model.safetensors.index.json",
                 {R"({"metadata":{"total_size":4},"weight_map":{"w":"x.safetensors"}})"},
                 [folder](const std::string& t) {
                   std::filesystem::create_directories(folder + "/hf");
                   write_file(
                       folder + "/hf/x.safetensors",
                       safetensors_of(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
                   write_file(folder + "/hf/model.safetensors.index.json", t);
                   open_hf_folder(folder + "/hf", "model.from");
                 }});
  return all;
}

/// Texts that parse as a value, but that people do not write.
std::vector<std::string> hostile() {
  std::vector<std::string> all{"8171e4001",
                               "-8171e4001",
                               "1e400",
                               "1e308",
                               "1e-400",
                               "-0",
                               "-0.0",
                               "0.5",
                               "-1",
                               "9223372036854775807",
                               "9223372036854775808",
                               "18446744073709551615",
                               "18446744073709551616",
                               "-9223372036854775808",
                               "-9223372036854775809",
                               "NaN",
                               "Infinity",
                               "nul",
                               "null",
                               "true",
                               "\"\"",
                               "\"\\u0000\"",
                               "\"\\ud800\"",
                               "\"\x1b[31m\"",
                               "\"\\u001b[31m\"",
                               "\"\xff\"",
                               "[]",
                               "{}",
                               "[[]]",
                               "{\"a\":1,\"a\":2}",
                               "{\"\":{\"\":{}}}",
                               "01",
                               "+1",
                               "1.",
                               ".5",
                               "1e",
                               "0x10",
                               "'a'",
                               "//"};
  all.push_back(std::string(100000, '[') + std::string(100000, ']'));
  std::string deep;
  for (int i = 0; i < 20000; ++i) deep += "{\"a\":";
  all.push_back(deep + "1" + std::string(20000, '}'));
  all.push_back("\"" + std::string(1 << 20, 'x') + "\"");
  all.push_back(std::string(5000, '9'));
  all.push_back("0." + std::string(5000, '9'));
  return all;
}

/// Begins and ends of values in a good text: scalars, lists and objects, found by the parser itself.
std::vector<std::pair<size_t, size_t>> values_of(const std::string& text) {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t at = 0; at < text.size(); ++at) {
    if (at > 0 && std::string(":,[").find(text[at - 1]) == std::string::npos &&
        !(text[at - 1] == ' ' && at > 1 && text[at - 2] == ':') && at != 0)
      continue;
    for (size_t end = at + 1; end <= text.size(); ++end)
      if (const char last = text[end - 1];
          std::string("\"]}0123456789el").find(last) != std::string::npos &&
          (end == text.size() || std::string(",]} \n").find(text[end]) != std::string::npos) &&
          json::accept(text.substr(at, end - at))) {
        found.emplace_back(at, end);
        break;
      }
  }
  return found;
}

}  // namespace

TEST_CASE("no reader of JSON takes hostile input for a defect, and none takes long", "[checkpoint][data]") {
  const TemporaryFolder folder;
  const auto bad = hostile();
  Random random = fuzz_random(5);
  for (const HostileReader& r : readers(folder.path())) {
    INFO(r.name);
    const std::string& good = r.good.front();
    CHECK_NOTHROW(r.read(good));  // negative control: the good one is read
    int refused = 0, tried = 0;
    const auto feed = [&](const std::string& text) {
      ++tried;
      const auto start = std::chrono::steady_clock::now();
      try {
        r.read(text);
      } catch (const Error& e) {
        ++refused;
        CAPTURE(text.substr(0, 300), e.what());
        CHECK(e.code() != ExitCode::internal);
        const std::string what = e.what();
        CHECK(what.find('\x1b') == std::string::npos);
        CHECK(what.size() < 4000);
      } catch (const std::exception& e) {
        CAPTURE(text.substr(0, 300), e.what());
        FAIL_CHECK("not an error of ltrain");
      }
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      CHECK(seconds < 2 * time_scale());
    };
    for (const std::string& text : bad) feed(text);
    const auto places = values_of(good);
    CHECK(places.size() > 3);
    // A sanitizer takes half a second for a long value: every tenth place gets those then.
    const size_t each_long = time_scale() > 1 ? 10 : 1;
    for (size_t i = 0; i < places.size(); ++i) {
      const auto [begin, end] = places[i];
      for (const std::string& value : bad)
        if (value.size() < 10000 || i % each_long == 0)
          feed(good.substr(0, begin) + value + good.substr(end));
    }
    feed_mutants(r, fuzz_executions(300), random);
    CHECK(refused > tried / 2);
  }
}
