// Lines of routing records: written and read again, and refused where they do not fit the model or the step.
#include <catch2/catch.hpp>

#include <stdexcept>

#include "runtime/routing/routing_lines.h"

using namespace ltrain;
using Catch::Contains;

namespace {

constexpr int64_t kSeq = 6, kStep = 3;

/// Three layers, of which 1 and 2 have four experts, two a token; one module of multi-token prediction.
ModelConfig model() {
  ModelConfig m;
  m.num_hidden_layers = 3;
  m.num_nextn_predict_layers = 1;
  m.moe.num_experts = 4;
  m.moe.top_k = 2;
  m.moe.dense_layers = {0};
  return m;
}

RoutedTokens parse(const std::string& text) { return parse_routed_line(text, model(), kSeq, kStep); }

std::string refusal(const std::string& text) {
  try {
    parse(text);
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "accepted";
}

/// A good line with `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string text =
      R"({"step":3,"block":"decoder","layer":1,"sample":17,"position":2,"num_tokens":2,"topk":2,)"
      R"("top_indices":[[0,3],[2,1]]})";
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("routing lines: what is written is read again, of layers and of modules behind them") {
  for (const int64_t layer : {2, 3}) {
    const RoutedTokens t{.step = kStep,
                         .rank = 5,
                         .sample = 9000000000,
                         .position = 1,
                         .top_k = 2,
                         .layers = {layer},
                         .experts = {3, 0, 1, 2, 0, 1}};
    const std::string line = line_of(model(), t);
    INFO(line);
    CHECK_THAT(line, Contains(layer == 3 ? R"("block":"mtp","layer":0,"mtp_idx":0)"
                                         : R"("stage":"pre_dispatch","block":"decoder","layer":2)"));
    const RoutedTokens read = parse(line);
    CHECK((read.sample == t.sample && read.position == 1 && read.layers == t.layers && !read.partial));
    CHECK((read.experts == t.experts && read.tokens() == 3));
  }
}

TEST_CASE("routing lines: vLLM's routed_experts have all layers with experts of a token") {
  const RoutedTokens t = parse(R"({"sample":4,"routed_experts":[[[0,1],[2,3]],[[3,2],[1,0]]]})");
  CHECK((t.partial && t.sample == 4 && t.position == 0 && t.tokens() == 2));
  CHECK(t.layers == std::vector<int64_t>{1, 2});
  CHECK(t.experts == std::vector<int32_t>{0, 1, 2, 3, 3, 2, 1, 0});
  CHECK(refusal(R"({"sample":4,"routed_experts":[[[0,1]]]})") ==
        "routed_experts: a token must have 2 layers with experts, got 1");
  CHECK(refusal(R"({"sample":4,"routed_experts":[[[0,1],[2,2]]]})") ==
        "position 0, layer 2: duplicate expert 2");
  CHECK(refusal(R"({"sample":4,"routed_experts":[]})") == "must have at least one token");
  CHECK(refusal(R"({"sample":4,"routed_experts":7})") == "routed_experts: must be a list of tokens");
}

TEST_CASE("routing lines: a line that does not fit the model, the step or the samples is refused by rule") {
  CHECK(parse(changed("17", "18")).sample == 18);
  const auto refuses = [](const std::string& from, const std::string& to, const std::string& why) {
    CHECK(refusal(changed(from, to)) == why);
  };
  refuses("\"layer\":1", "\"layer\":0", "layer = 0: has no experts in this model");
  refuses("\"layer\":1", "\"layer\":3", "layer = 3: must be from 0 to 2");
  refuses("\"layer\":1", "\"layer\":-1", "layer = -1: must be from 0 to 2");
  refuses("\"layer\":1", "\"layer\":1.5", "layer: expected an integer, got 1.5");
  refuses("\"layer\":1,", "", "expected the key layer, got none");
  refuses("decoder", "encoder", "block = encoder: must be decoder or mtp");
  refuses("\"decoder\"", "1", "block = 1: must be decoder or mtp");
  refuses("\"decoder\"", "\"mtp\",\"mtp_idx\":1", "mtp_idx = 1: must be from 0 to 0");
  refuses("\"step\":3", "\"step\":4", "step = 4: must be that of its folder, 3");
  refuses("\"topk\":2", "\"topk\":3", "topk = 3: must be from 2 to 2");
  refuses("\"num_tokens\":2", "\"num_tokens\":3", "num_tokens = 3: must be from 2 to 2");
  refuses("[2,1]", "[2]", "a token must have topk = 2 experts, got 1");
  refuses("[2,1]", "7", "a token must have topk = 2 experts, got 0");
  refuses("[2,1]", "[2,4]", "position 3, layer 1: expert 4: must be from 0 to 3");
  refuses("[2,1]", "[-1,1]", "position 3, layer 1: expert -1: must be from 0 to 3");
  refuses("[2,1]", "[2,2]", "position 3, layer 1: duplicate expert 2");
  refuses("[2,1]", "[2,99999999999]", "an expert must be an integer, got 99999999999");
  refuses("[2,1]", "[2,\"1\"]", "an expert must be an integer, got \"1\"");
  refuses("\"position\":2", "\"position\":5",
          "position 5 and 2 tokens are beyond the 6 of a sample (data.seq_length)");
  refuses("\"position\":2", "\"position\":18446744073709551615",
          "position: expected an integer, got 18446744073709551615");
  refuses("\"sample\":17", "\"sample\":-1", "sample = -1: must be from 0 to 9223372036854775807");
  CHECK_THAT(refusal(changed("\"sample\":17,", "")), Contains("has no sample: a trace of Megatron-LM"));
  CHECK(refusal(R"({"sample":4})") == "has neither top_indices nor routed_experts");
  CHECK(refusal("[1]") == "must be a JSON object");
  for (const std::string text : {"", "{", "{}}", R"({"sample":1,"sample":1})", "[[[[[[[[[[[[1]]]]]]]]]]]]"})
    CHECK(refusal(text) != "accepted");
}

TEST_CASE("routing lines: of a damaged line every byte is read or refused") {
  const std::string good = changed("17", "17");
  for (size_t i = 0; i < good.size(); ++i) {
    CHECK(refusal(good.substr(0, i)) != "accepted");
    for (const char c : {'\0', '"', '[', '9', '\xff'}) {
      std::string text = good;
      text[i] = c;
      CHECK_NOTHROW(refusal(text));
    }
  }
}
