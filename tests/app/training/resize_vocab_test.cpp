// ltrain checkpoint resize-vocab, and runs that begin with its result.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("a trained model with rows for more tokens trains on, and tokens of its data keep their rows") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const Outcome grown = t.sh("checkpoint resize-vocab run grown --vocab-size 300 -q");
  INFO(grown.text);
  REQUIRE(grown.code == 0);
  CHECK_THAT(grown.text,
             Contains("grown: 300 rows for tokens where run, step 6, has 257, in lm_head.weight and "
                      "model.embed_tokens.weight; weights alone, without the optimizer's states"));
  CHECK(t.sh("checkpoint verify grown").code == 0);
  const auto json = nlohmann::json::parse(t.sh("checkpoint show grown --json --tensors").text);
  for (const auto& tensor : json["tensor_list"])
    if (tensor["name"] == "lm_head.weight") CHECK(tensor["shape"] == nlohmann::json({300, 32}));
  const Outcome on = t.sh(
      "run tiny.yaml checkpoint.load.path=grown model.vocab_size=300 output_dir=on "
      "train.train_steps=2 train.eval_interval=0");
  INFO(on.text);
  CHECK(on.code == 0);
  CHECK(t.metric("lm_loss", "on").size() == 2);
  // A new token has the mean of the old logits. Their exponentials add at most 43 / 257 to the sum (Jensen).
  const auto loss = [&](const std::string& model) {
    return nlohmann::json::parse(t.sh("eval " + model + " --json 2>/dev/null").text)["sets"][0]["loss"]
        .get<double>();
  };
  const double before = loss("run"), after = loss("grown");
  CHECK(after > before);
  CHECK(after < before + std::log(300.0 / 257.0));
  const Outcome fewer = t.sh("checkpoint resize-vocab run fewer --vocab-size 250 -q");
  CHECK(fewer.code == 64);
  CHECK_THAT(fewer.text,
             Contains("the tokenizer of its data has 257 tokens, and those from 250 on would lose their "
                      "rows; nearest valid value: 257"));
  CHECK(t.sh("checkpoint resize-vocab grown back --vocab-size 257 --force -q").code == 0);
  CHECK(t.sh("checkpoint resize-vocab run grown --vocab-size 310 -q").code != 0);  // it is there
}
