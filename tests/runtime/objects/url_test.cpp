#include "runtime/objects/url.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace ltrain;
using namespace ltrain::objects;
using Catch::Contains;

namespace {

std::string url_refusal(const std::string& text) {
  try {
    parse_url(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("URLs: scheme, host or bucket, path or key, and a name without the query") {
  CHECK(is_url("s3://b/k"));
  CHECK(is_url("https://host"));
  CHECK_FALSE(is_url("folder/https://x"));
  CHECK_FALSE(is_url("hf://x"));
  const Url web = parse_url("https://host:8443/a/b%20c.csv?sig=secret#part");
  CHECK(web.host == "host:8443");
  CHECK(web.path == "/a/b%20c.csv");
  CHECK(web.query == "sig=secret");
  CHECK(web.name() == "https://host:8443/a/b%20c.csv");
  CHECK(web.full() == "https://host:8443/a/b%20c.csv?sig=secret");
  CHECK(parse_url("http://[::1]:80").path == "/");
  const Url bucket = parse_url("s3://my-bucket/a b/?[0-9].jsonl#x");
  CHECK(bucket.host == "my-bucket");
  CHECK(bucket.path == "a b/?[0-9].jsonl#x");
  CHECK(parse_url("gs://my-bucket").path.empty());
}

TEST_CASE("URLs: text that is no URL is refused without its secrets") {
  for (const char* text : {"https://user:secret@host/x", "s3://AKIA:secret@bucket/x"}) {
    CHECK_THAT(url_refusal(text), Contains("user name or password"));
    CHECK_THAT(url_refusal(text), !Contains("secret"));
  }
  CHECK_THAT(url_refusal("https:///x"), Contains("host name"));
  CHECK_THAT(url_refusal("https://host/a b?k=secret"), Contains("%20") && !Contains("secret"));
  CHECK_THAT(url_refusal("https://host/?k=secret\r\nX-Header: 1"),
             Contains("control character") && !Contains("secret"));
  CHECK_THAT(url_refusal("s3:///key"), Contains("bucket"));
  CHECK_THAT(url_refusal("s3://buck et/key"), Contains("bucket"));
  CHECK_THAT(url_refusal("https://host/" + std::string(10000, 'x')), Contains("10013 bytes"));
  CHECK_THROWS_WITH(refuse_query(parse_url("https://h/x?sig=hidden"), "data.train"),
                    Contains("data.train") && !Contains("hidden"));
  CHECK_NOTHROW(refuse_query(parse_url("https://h/x"), "data.train"));
}
