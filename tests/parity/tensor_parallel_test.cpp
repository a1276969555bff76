// Tensor and sequence parallelism against one process, alone and with data parallelism and ZeRO.
#include "tests/parity/parity.h"
#include "tests/support/made_up_families.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("tensor parallelism equals one process to 1e-12 in fp64") {
  TinyOptions one;
  one.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  one.tied = GENERATE(false, true);
  one.micro_batch = 4;
  one.padded_targets = true;
  one.dropout = 0.1;  // 61 tokens do not divide over 2 or 4 ranks: the vocabulary is padded
  const TinyResult base = train_tiny(one);
  for (int tensor : {2, 4})
    for (bool sequence : {false, true})
      for (int data : {1, 2})
        for (int zero : {0, 1, 3}) {
          if (data == 1 && zero > 0) continue;
          // llama on 4: each of the 2 key-value heads is on two ranks
          TinyOptions many = one;
          many.tensor = tensor;
          many.sequence_parallel = sequence;
          many.ranks = data;
          many.zero_stage = zero;
          many.micro_batch = 2;
          INFO(one.architecture << (one.tied ? " tied" : "") << ", tensor " << tensor
                                << (sequence ? " with sequence" : "") << ", data " << data << ", ZeRO "
                                << zero);
          const TinyResult result = train_tiny(many);
          require_parity(base, result, 1e-12);
          CHECK(result.plan_bytes == result.used_bytes);
          CHECK(result.plan_wire == result.used_wire);
        }
}

TEST_CASE("tensor-parallel products in parts have the bits of whole ones, and equal one process") {
  TinyOptions one;
  one.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  one.micro_batch = 2;
  one.padded_targets = true;
  one.dropout = 0.1;
  const std::string schedule = GENERATE(as<std::string>(), "", "zb-h1");  // weights' gradients come later
  const TinyResult base = train_tiny(one);
  for (int tensor : {2, 4})
    for (bool sequence : {false, true}) {
      TinyOptions whole = one;
      whole.tensor = tensor;
      whole.sequence_parallel = sequence;
      if (!schedule.empty()) whole.pipeline = 2, whole.schedule = schedule;
      TinyOptions parts = whole;
      parts.async_tensor_parallel = true;
      INFO(one.architecture << ", tensor " << tensor << (sequence ? " with sequence " : " ") << schedule);
      const TinyResult a = train_tiny(whole), b = train_tiny(parts);
      require_parity(base, b, 1e-12);
      CHECK(b.plan_bytes == b.used_bytes);
      CHECK(b.plan_wire == b.used_wire);
      check_same_bits(a, b);
      // A ring passes on what an all-gather would bring.
      CHECK(b.used_wire == a.used_wire);
    }
}

TEST_CASE("every trait of a family under tensor parallelism equals one process to 1e-12 in fp64") {
  TinyOptions one;
  one.micro_batch = 4;
  for (const Family& f : made_up_families()) {
    one.family = &f;
    const TinyResult base = train_tiny(one);
    for (int tensor : {2, 4}) {  // on 4: each of the 2 key-value heads is on two ranks
      TinyOptions many = one;
      many.tensor = tensor;
      many.sequence_parallel = tensor == 4;
      INFO(f.name << ", tensor " << tensor);
      require_parity(base, train_tiny(many), 1e-12);
    }
  }
}

TEST_CASE("tensor parallelism agrees in fp32 and bf16") {
  TinyOptions one;
  one.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  one.micro_batch = 4;
  TinyOptions many = one;
  many.tensor = 2;
  many.sequence_parallel = GENERATE(false, true);
  one.precision = many.precision = "fp32";
  require_parity(train_tiny(one), train_tiny(many), 1e-5);
  one.precision = many.precision = "bf16";
  const TinyResult a = train_tiny(one), b = train_tiny(many);
  for (size_t i = 0; i < a.losses.size(); ++i) CHECK(b.losses[i] == Approx(a.losses[i]).epsilon(0.01));
}
