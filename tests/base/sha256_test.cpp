#include "base/hash/sha256.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "base/hash/sha256_blocks.h"
#include "base/secret.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {
std::string hex(const Digest& d) { return to_hex(bytes_of(d)); }
}  // namespace

TEST_CASE("SHA-256: the vectors of FIPS 180-4, and every way to fill the last block") {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256(std::string(1000000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // Digest of the digests of 0 to 200 times "a", by another implementation (Python's hashlib).
  std::string all;
  for (size_t n = 0; n <= 200; ++n) all += bytes_of(sha256(std::string(n, 'a')));
  CHECK(hex(sha256(all)) == "1be2d7d291484baf4c78d463a65b40a26c255b1946e5205eac8edad606a76fdd");
}

TEST_CASE("HMAC-SHA-256: the vectors of RFC 4231") {
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(
      hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("the SHA instructions of this CPU give what the portable code does") {
  const Sha256Blocks fast = sha256_blocks_of_cpu();
  if (!fast) skip_test("this CPU has no SHA instructions");
  std::mt19937 random(3);
  std::vector<unsigned char> data(64 * 37);
  for (unsigned char& c : data) c = static_cast<unsigned char>(random());
  for (size_t blocks = 0; blocks <= 37; ++blocks) {
    uint32_t a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = b[i] = static_cast<uint32_t>(random());
    sha256_blocks_portable(a, data.data(), blocks);
    fast(b, data.data(), blocks);
    CHECK(std::equal(a, a + 8, b));
  }
}
