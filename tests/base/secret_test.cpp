// Secrets: random, written down and read again, compared.
#include <catch2/catch.hpp>

#include "base/secret.h"

using namespace ltrain;

TEST_CASE("random bytes are as many as asked for, and others each time") {
  for (size_t n : {0, 1, 16, 1000}) CHECK(random_bytes(n).size() == n);
  CHECK(random_bytes(16) != random_bytes(16));
}

TEST_CASE("bytes come back from their digits") {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  CHECK(to_hex(std::string("\0\x09\xa0\xff", 4)) == "0009a0ff");
  CHECK(from_hex(to_hex(all), 256) == all);
  CHECK(from_hex("", 0) == std::string());
}

TEST_CASE("what to_hex does not write is refused") {
  for (const char* text : {"0", "abc", "0g", "g0", "AB", "0x", " 0", "0 ", "-1", "\xff\xff"})
    CHECK_FALSE(from_hex(text, 100));
  CHECK_FALSE(from_hex(std::string("0\0", 2), 100));
  CHECK(from_hex("0102", 2));
  CHECK_FALSE(from_hex("010203", 2));
}

TEST_CASE("secrets are equal when all bytes are") {
  const std::string a = random_bytes(32);
  CHECK(equal_secrets(a, std::string(a)));
  CHECK(equal_secrets("", ""));
  for (size_t i = 0; i < a.size(); ++i) {
    std::string b = a;
    b[i] = static_cast<char>(b[i] ^ 0x40);
    CHECK_FALSE(equal_secrets(a, b));
  }
  CHECK_FALSE(equal_secrets(a, a.substr(1)));
  CHECK_FALSE(equal_secrets(a, a + '\0'));
}

TEST_CASE("a pair of secrets is read from what another rank has written down, and from nothing else") {
  const SecretPair made = SecretPair::make();
  CHECK((made.client.size() == kSecretBytes && made.server.size() == kSecretBytes));
  CHECK(made.client != made.server);
  const auto read = SecretPair::parse(made.text());
  REQUIRE(read);
  CHECK((read->client == made.client && read->server == made.server));
  for (const std::string& text : {std::string(), made.text().substr(2), made.text() + "00",
                                  made.text().substr(1), "x" + made.text().substr(1)})
    CHECK_FALSE(SecretPair::parse(text));
}
