// Every reader of text and bytes from outside, fed with random changes of good ones: recipes and machine
// files, templates and rows of conversations, tokenizers, answers of stores, messages between processes,
// records of runs. Record files and JSON have tests of their own. LTRAIN_FUZZ_EXECUTIONS asks for a longer
// run (docs/testing.md).
#include <catch2/catch.hpp>
#include <filesystem>
#include <stdexcept>

#include "base/error.h"
#include "base/secret.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/schedule_csv.h"
#include "runtime/bench/links_file.h"
#include "runtime/chat/chat_template.h"
#include "runtime/chat/conversation.h"
#include "runtime/eval/multiple_choice.h"
#include "runtime/eval/routing_record.h"
#include "runtime/files/file.h"
#include "runtime/files/write_file.h"
#include "runtime/launch/environment/hostlist.h"
#include "runtime/launch/flight_dump.h"
#include "runtime/launch/job_key.h"
#include "runtime/launch/message.h"
#include "runtime/launch/rank_status.h"
#include "runtime/launch/topology.h"
#include "runtime/machines/cluster.h"
#include "runtime/machines/profile_file.h"
#include "runtime/machines/profile_import.h"
#include "runtime/machines/trainer_profile.h"
#include "runtime/objects/object_list.h"
#include "runtime/objects/object_store.h"
#include "runtime/recipe/recipe.h"
#include "runtime/routing/routing_lines.h"
#include "runtime/tokenizer/bpe_merges_file.h"
#include "runtime/tokenizer/formats/sentencepiece_tokenizer.h"
#include "runtime/tokenizer/formats/tekken.h"
#include "runtime/tokenizer/regex.h"
#include "tests/support/mutations.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

std::string source_file(const std::string& path) {
  return data::read_whole(LTRAIN_SOURCE_DIR "/" + path, 64 << 20);
}

std::vector<HostileReader> recipe_readers() {
  return {
      {"recipe",
       {source_file("recipes/quickstart.yaml"), source_file("recipes/moe.yaml"),
        source_file("recipes/diloco.yaml")},
       [](const std::string& t) { parse_recipe(t, "r.yaml"); }},
      {"schedule",
       {"0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n", "0F0,0I0,0W0\n1F0,1I0,1W0\n",
        "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"},
       [](const std::string& t) { pipeline::read_schedule_csv(t, "s.csv"); }},
      {"order of axes",
       {"tp-cp-dp-pp", "tp-pp-cp-dp"},
       [](const std::string& t) {
         std::string error;
         parse_axis_order(t, error);
       }},
      {"cluster",
       {"format: ltrain.cluster.v1\nname: ours\nprofile: h100\nnodes: 16\ngpus_per_node: 4\nnetwork: "
        "ethernet-100g\n",
        "format: ltrain.cluster.v1\nname: ours\nprofile: a100\nnodes: 4\ngpus_per_node: 8\ncores_per_node: "
        "96\nlevels:\n  - {name: line, ranks: 0, ranks_a_link: 0, seconds: {value: 5.0e-3, source: assumed, "
        "reference: fibre}, bytes_per_second: {value: 12.5e9, source: assumed, reference: line}, sustained: "
        "{value: 0.8, "
        "source: assumed, reference: tcp}}\n"},
       [](const std::string& t) { parse_cluster(t, "c.yaml"); }},
      {"profile of a card",
       {source_file("runtime/machines/devices/h100.yaml"),
        source_file("runtime/machines/devices/cpu-16.yaml")},
       [](const std::string& t) { parse_device_profile(t, "d.yaml"); }},
      {"profile of a trainer",
       {source_file("runtime/machines/trainers/megatron-2022.yaml")},
       [](const std::string& t) { parse_trainer_profile(t, "t.yaml"); }},
      {"measurements of links",
       {source_file("tests/golden/all_reduce_perf.log")},
       [](const std::string& t) {
         import_profile(t, "nccl.log", {"h100", ""});
       }},
      {"links of a job",
       {R"({"schema":"ltrain.links.v1","device":"cpu","ranks":[{"host":"a","switches":""},{"host":"b","switches":"s.l"}],"links":[{"from":0,"to":1,"bytes_per_second":1e9}]})"},
       [](const std::string& t) {
         MachineProfile p = builtin_profile(2);
         price_by_links(p, parse_links(t, "links.json"), DeviceKind::cpu, 1);
       }},
  };
}

std::vector<HostileReader> chat_readers() {
  return {
      {"chat template",
       {"{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% if loop.last and not "
        "add_generation_prompt %}{{ eos_token }}{% endif %}\n{% endfor %}",
        "{%- macro f(a, b=2) -%}{{ a ~ (b | int + 1) }}{%- endmacro -%}{% set ns = namespace(n=0) %}{%- for "
        "m in "
        "messages if m.role != 'system' -%}{% set ns.n = ns.n + 1 %}{{ f(m.content.split('a')[0], ns.n) }}{% "
        "generation %}{{ m | tojson }}{% endgeneration %}{%- endfor -%}",
        "{{ messages[1:]|map(attribute='content')|join(', ') }}{% if tools is defined and tools is iterable "
        "%}"
        "{{ tools | tojson(indent=2) }}{% else %}{{ strftime_now('%d %b') }}{% endif %}{{ 'x' * 20 }}"},
       [](const std::string& t) {
         chat::JinjaLimits limits;
         limits.steps = 20000, limits.output_bytes = 1 << 20, limits.all_bytes = 1 << 24;
         const chat::Json messages = chat::Json::parse(
             R"([{"role":"system","content":"be"},{"role":"user","content":"an ant"},{"role":"assistant","content":"a"}])");
         using Source = chat::JinjaVariable::Source;
         chat::JinjaTemplate(t, "t.jinja", limits)
             .render({{"messages", messages, Source::messages}, {"eos_token", "</s>", Source::setting}},
                     chat::kTemplateDate);
       }},
      {"row of a conversation",
       {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","content":"2","tool_call_id":"1"},{"role":"assistant","content":"b"}],"tools":[{"type":"function","function":{"name":"f"}}]})",
        R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}],"system":"s"})",
        R"({"instruction":"a","input":"b","output":"c","history":[["d","e"]]})",
        R"({"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":"b"}]})"},
       [](const std::string& t) { chat::read_chat_row(chat::parse_row(t, "x:1"), {}, "x:1"); }},
      {"row of a pair",
       {R"({"prompt":"a","chosen":"b","rejected":"c"})",
        R"({"chosen":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"rejected":[{"role":"user","content":"a"},{"role":"assistant","content":"c"}]})"},
       [](const std::string& t) { chat::read_preference_row(chat::parse_row(t, "x:1"), {}, "x:1"); }},
      {"labelled row",
       {R"({"prompt":"a","completion":"b","label":true})"},
       [](const std::string& t) { chat::read_unpaired_row(chat::parse_row(t, "x:1"), {}, "x:1"); }},
  };
}

std::vector<HostileReader> tokenizer_readers() {
  const std::string folder = "tests/golden/tokenizers/";
  return {
      {"regular expression",
       {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
        R"([^a-z]|(?<=x)y{2,}|(a|b)*?c)"},
       [](const std::string& t) {
         data::Regex regex(t, "tokenizer.json: pattern");
         data::Regex::Match match;
         const std::string text = "It's 12 of them,\n  naïve xyy abc";
         for (size_t at = 0; at < text.size() && regex.next(text, at, match);)
           at = std::max(match.end, at + 1);
       }},
      {"ranks",
       {source_file("tests/golden/small.tiktoken")},
       [](const std::string& t) { data::parse_ranks(t, "r.tiktoken"); }},
      {"SentencePiece model",
       {source_file(folder + "bpe-bytes.model"), source_file(folder + "unigram-rules.model")},
       [](const std::string& t) {
         data::make_sentencepiece_tokenizer(t, "t.model")->encode("an ant, twice");
       }},
      {"tekken",
       {source_file(folder + "small-tekken.json")},
       [](const std::string& t) { data::read_tekken(t, "tekken.json"); }},
  };
}

std::vector<HostileReader> store_readers() {
  return {
      {"URL",
       {"s3://bucket/a/b.jsonl", "https://host.example:8443/a%20b?token=x", "gs://buck/c*",
        "http://[::1]:80/x"},
       [](const std::string& t) {
         if (!objects::is_url(t)) return;
         const objects::Url url = objects::parse_url(t);
         url.name(), url.full();
       }},
      {"list of objects",
       {"<?xml "
        "version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;"
        "</NextContinuationToken><Contents><Key>a&#47;b</Key><LastModified>2026-01-01T00:00:00Z</"
        "LastModified>"
        "<ETag>&quot;0&quot;</ETag><Size>12</Size></Contents></ListBucketResult>"},
       [](const std::string& t) { objects::read_list_page(t, objects::parse_url("s3://bucket/a")); }},
      {"error of a store",
       {"<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong</Message><Region>eu-west-1</Region>"
        "</Error>"},
       [](const std::string& t) {
         objects::HttpResponse response;
         response.status = 400, response.body = t;
         objects::store_error(response);
       }},
  };
}

/// Reads all frames of a stream as the sides of a channel do.
void read_frames(const std::string& stream) {
  FrameBuffer buffer;
  buffer.feed(stream.data(), stream.size());
  bool bad = false;
  while (const std::optional<Message> m = buffer.next(&bad)) {
    if (m->type == MessageType::status) {
      if (const auto status = read_status(*m)) where(*status), last_heard(*status, 1, false);
      continue;
    }
    MessageReader fields(*m);
    fields.text(), fields.number(), fields.real(), fields.text();
  }
}

std::vector<HostileReader> launch_readers(const std::string& folder) {
  RankStatus status;
  status.section = "step", status.step = 7;
  status.groups = {{"data[0-3]", {CollectiveOp::all_reduce, 3, 4096, DType::f32}, 3, 2}};
  FlightRing ring;
  const FlightRecord group("data");
  ring.enter(&group, 1, {CollectiveOp::all_reduce, 1, 4096, DType::f32, ReduceOp::sum, -1});
  const std::string flights = folder + "/flight";
  write_flight(flights, {0, 2, "a", "a test", "step", 7, {{"data[0-1]", {0, 1}, &group}}}, ring);
  const JobKey key("token", "settings");
  const std::string client = JobKey::greeting(kClientMagic), server = JobKey::greeting(kServerMagic);
  const std::string proofs = key.proofs(client, server);
  return {
      {"messages between processes",
       {MessageWriter(MessageType::set).text("key").text("value").frame() +
            MessageWriter(MessageType::goodbye).number(-5).real(2.5).frame(),
        write_status(status) + MessageWriter(MessageType::hello).text("a").number(1).frame()},
       read_frames},
      {"proofs of a job",
       {proofs},
       [=](const std::string& t) {
         if (t.size() == kProofBytes && t.substr(0, sizeof(Digest)) != proofs.substr(0, sizeof(Digest)))
           if (key.judge(t, client, server) == Kinship::same)
             throw std::logic_error("a wrong proof is taken");
         key.read_answer(t, client, server);
       }},
      {"hosts",
       {"node[001-003,010],gpu7", "r[1-2]c[01-02]"},
       [](const std::string& t) { parse_hostlist(t, "SLURM_NODELIST"); }},
      {"tasks", {"2(x3),1", "4"}, [](const std::string& t) { parse_tasks_per_node(t, "SLURM_TASKS"); }},
      {"cores", {"0-3,8,10-11"}, [](const std::string& t) { cores_of(t); }},
      {"digits of a secret",
       {std::string(64, 'a') + " " + std::string(64, '0')},
       [](const std::string& t) { from_hex(t, 64), SecretPair::parse(t); }},
      {"flight record",
       {data::read_whole(flight_path(flights, 0), 1 << 20)},
       [=](const std::string& t) {
         write_file(flight_path(flights, 0), t);
         merge_flights(flights);
       }},
  };
}

std::vector<HostileReader> run_readers(const std::string& folder) {
  ModelConfig model;
  model.num_hidden_layers = 2, model.moe.num_experts = 4, model.moe.top_k = 2;
  return {
      {"line of a routing record",
       {R"({"step":3,"block":"decoder","layer":1,"sample":17,"position":2,"num_tokens":2,"topk":2,"top_indices":[[0,3],[2,1]]})",
        R"({"step":3,"sample":17,"position":0,"routed_experts":[[[0,1],[2,3]]]})"},
       [=](const std::string& t) {
         try {
           parse_routed_line(t, model, 6, 3);
         } catch (const std::invalid_argument& e) {
           fail(ExitCode::data, "{}", e.what());
         }
       }},
      {"line of held-out routing",
       {R"({"step":1,"set":"a","sample":0,"layer":1,"num_tokens":2,"topk":2,"top_indices":[[0,3],[2,1]],"tokens":[5,6]})",
        R"({"step":1,"set":"a","sample":0,"layer":1,"num_tokens":2,"topk":3,"selection":"top_p","top_indices":[[0],[2,1]]})"},
       [=](const std::string& t) {
         write_file(folder + "/routing.jsonl", t);
         read_routing(folder + "/routing.jsonl");
       }},
      {"questions",
       {R"({"question":"a b","choices":["c","d"],"answer":1})"},
       [=](const std::string& t) {
         write_file(folder + "/questions.jsonl", t);
         read_questions(folder + "/questions.jsonl");
       }},
  };
}

void check_readers(const std::vector<HostileReader>& readers, int64_t fixed) {
  for (size_t i = 0; i < readers.size(); ++i) DYNAMIC_SECTION(readers[i].name) {
      for (const std::string& good : readers[i].good) {
        INFO(good);
        REQUIRE_NOTHROW(readers[i].read(good));
      }
      Random random = fuzz_random(i);
      feed_mutants(readers[i], fuzz_executions(fixed), random);
    }
}

}  // namespace

TEST_CASE("hostile text: recipes, schedules and machine files are read or refused", "[recipe]") {
  check_readers(recipe_readers(), 200);
}
TEST_CASE("hostile text: templates and rows of conversations are read or refused", "[chat]") {
  check_readers(chat_readers(), 2000);
}
TEST_CASE("hostile text: tokenizers are read or refused", "[tokenizer]") {
  check_readers(tokenizer_readers(), 200);
}
TEST_CASE("hostile text: answers of stores are read or refused", "[objects]") {
  check_readers(store_readers(), 5000);
}
TEST_CASE("hostile text: messages between processes are read or refused", "[launch]") {
  const TemporaryFolder folder;
  check_readers(launch_readers(folder.path()), 3000);
}
TEST_CASE("hostile text: records of runs are read or refused", "[telemetry]") {
  const TemporaryFolder folder;
  check_readers(run_readers(folder.path()), 2000);
}
