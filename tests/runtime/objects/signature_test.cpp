// Signatures against the examples that AWS publishes with their results.
#include "runtime/objects/signature.h"

#include <catch2/catch.hpp>

using namespace ltrain::objects;

namespace {

const Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};

/// Signature of a request to the bucket of the S3 documentation.
std::string example(const std::string& path, const Pairs& query, Pairs headers) {
  headers.insert(headers.end(), {{"host", "examplebucket.s3.amazonaws.com"},
                                 {"x-amz-content-sha256", kEmptyPayload},
                                 {"x-amz-date", "20130524T000000Z"}});
  const std::string line = authorization({"GET", path, query, headers, kEmptyPayload}, kExample, "us-east-1",
                                         "s3", "20130524T000000Z");
  return line.substr(line.find("Signature=") + 10);
}

}  // namespace

TEST_CASE("Signature Version 4: the published examples of S3") {
  CHECK(example("/test.txt", {}, {{"range", "bytes=0-9"}}) ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(example("/", {{"lifecycle", ""}}, {}) ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  CHECK(example("/", {{"prefix", "J"}, {"max-keys", "2"}}, {}) ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("Signature Version 4: get-vanilla of the published suite, its scope and signed headers") {
  const Credentials suite{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  const Pairs headers{{"x-amz-date", "20150830T123600Z"}, {"host", "example.amazonaws.com"}};
  CHECK(authorization({"GET", "/", {}, headers, kEmptyPayload}, suite, "us-east-1", "service",
                      "20150830T123600Z") ==
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=host;x-amz-date, "
        "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
}

TEST_CASE("percent-encoding keeps unreserved characters, and queries are sorted by their encoded names") {
  CHECK(percent_encoded("a b/c~é+=", true) == "a%20b/c~%C3%A9%2B%3D");
  CHECK(percent_encoded("a/b", false) == "a%2Fb");
  CHECK(encoded_query({{"b", "2"}, {"a", "x/y"}, {"A", ""}}) == "A=&a=x%2Fy&b=2");
  CHECK(amz_time().size() == 16);
}
