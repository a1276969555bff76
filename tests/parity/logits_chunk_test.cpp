// The loss by chunks of any number of tokens is that of all tokens at once, in every kind of tensor
// parallelism; memory follows the number.
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions one_chunk_job(const char* architecture) {
  TinyOptions o;
  o.architecture = architecture;
  o.micro_batch = 8;
  o.seq = 16;
  o.padded_targets = true;
  return o;
}

}  // namespace

TEST_CASE("the loss by chunks of tokens equals that of all at once", "[parity]") {
  for (const char* architecture : {"llama", "gpt2"}) {
    const TinyResult whole = train_tiny(one_chunk_job(architecture));  // 128 tokens, one chunk
    for (const char* mode : {"1d", "2d", "3d"}) {
      TinyOptions o = one_chunk_job(architecture);
      o.tensor_mode = mode;
      o.tensor = mode[0] == '1' ? 2 : mode[0] == '2' ? 4 : 8;
      for (int64_t rows : {7, 64, 1000}) {
        o.logits_chunk.rows = rows;
        INFO(architecture << " " << mode << ", " << rows << " tokens");
        const TinyResult result = train_tiny(o);
        require_parity(whole, result, 1e-12);
        CHECK(result.plan_bytes == result.used_bytes);
        CHECK(result.plan_wire == result.used_wire);
      }
    }
  }
}

TEST_CASE("logits take the memory of as many tokens as are asked for", "[parity]") {
  TinyOptions o = one_chunk_job("llama");
  o.vocab = 4096;  // logits are larger than all else between forward and backward
  o.logits_chunk.rows = 128;
  const int64_t all = train_tiny(o).plan_bytes[0];
  o.logits_chunk.rows = 32;
  CHECK(all - train_tiny(o).plan_bytes[0] == (128 - 32) * 4096 * 8);
  // 64 MiB hold more tokens than there are.
  o.logits_chunk = {};
  CHECK(train_tiny(o).plan_bytes[0] == all);
  o.vocab = 1 << 18;
  o.steps = 1;
  o.logits_chunk.least = 64;
  const int64_t least = train_tiny(o).plan_bytes[0];
  o.logits_chunk.least = 128;
  CHECK(train_tiny(o).plan_bytes[0] - least == 64 * (int64_t{1} << 18) * 8);
}
