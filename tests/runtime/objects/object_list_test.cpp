// Lists of objects: patterns, and answers of servers, hostile ones too.
#include "runtime/objects/object_list.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "runtime/objects/md5.h"
#include "runtime/objects/xml.h"

using namespace ltrain;
using namespace ltrain::objects;
using Catch::Contains;

namespace {

const Url kBucket = parse_url("s3://bucket/data");

std::string list_of(const std::string& inside) {
  return "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" +
         inside + "</ListBucketResult>";
}

std::string object_of(const std::string& key) {
  return "<Contents><Key>" + key +
         "</Key><LastModified>2024-01-01</LastModified><ETag>&quot;abc&quot;</ETag><Size>7</Size>"
         "<Owner><ID>9</ID></Owner></Contents>";
}

std::string list_refusal(const std::string& xml) {
  try {
    read_list_page(xml, kBucket);
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::data);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a list of objects: keys, sizes, ETags, entities, encoded keys and the continuation token") {
  const ListPage page = read_list_page(list_of("<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b"
                                               "</NextContinuationToken>" +
                                               object_of("data/x&lt;&#x79;") + object_of("<![CDATA[a&b]]>")),
                                       kBucket);
  REQUIRE(page.objects.size() == 2);
  CHECK(page.objects[0].url.path == "data/x<y");
  CHECK(page.objects[0].etag == "\"abc\"");
  CHECK(page.objects[0].size == 7);
  CHECK(page.objects[1].url.path == "a&b");
  CHECK(page.next == "a&b");
  const ListPage encoded =
      read_list_page(list_of(object_of("a%2Fb+c%2Bd%C3%A9") +
                             "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"),
                     kBucket);
  CHECK(encoded.objects.at(0).url.path == "a/b c+dé");
  CHECK(encoded.next.empty());
}

TEST_CASE("a list of objects: another text is refused, with the byte offset") {
  CHECK_THAT(list_refusal(""), Contains("not the XML"));
  CHECK_THAT(list_refusal("<html><body>proxy</body></html>"), Contains("another answer"));
  CHECK_THAT(list_refusal(list_of(object_of("x")).substr(0, 150)), Contains("byte offset"));
  CHECK_THAT(list_refusal("<!DOCTYPE x [<!ENTITY a \"aaaa\">]><ListBucketResult/>"),
             Contains("document type"));
  CHECK_THAT(list_refusal(list_of("<a>&unknown;</a>")), Contains("unknown entity"));
  CHECK_THAT(list_refusal(list_of("<a>&#xD800;</a>")), Contains("no character"));
  CHECK_THAT(list_refusal(list_of("<a></b>")), Contains("not open"));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "<a>";
  CHECK_THAT(list_refusal(list_of(deep)), Contains("nested more than 16"));
  CHECK_THAT(list_refusal(list_of("<Contents><Key>x</Key></Contents>")), Contains("without a key or a size"));
  CHECK_THAT(list_refusal(list_of("<Contents><Key>x</Key><Size>-5</Size></Contents>")),
             Contains("without a key"));
  CHECK_THAT(list_refusal(list_of("<IsTruncated>true</IsTruncated>")), Contains("no continuation token"));
  CHECK_THAT(list_refusal(list_of("<EncodingType>url</EncodingType>" + object_of("a%zz"))),
             Contains("not encoded"));
  CHECK_THAT(list_refusal(list_of("") + list_of("")), Contains("second root"));
}

TEST_CASE("a list of objects: damaged answers end in an error or a list, for 20000 changes") {
  const std::string whole =
      list_of(object_of("data/a&amp;b") + object_of("c") + "<x y='1' z=\"2\"/><!-- c -->");
  std::mt19937 random(5);
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole;
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 20);
          break;
        default:
          text.insert(at, whole.substr(random() % whole.size(), random() % 30));
      }
      if (text.empty()) text = "<";
    }
    try {
      read_list_page(text, kBucket);
    } catch (const Error& e) {
      if (e.code() != ExitCode::data) throw;
    }
  }
}

TEST_CASE("patterns of keys: stars stay within a folder, and two stars are any folders") {
  CHECK(matches_pattern("data/*.jsonl", "data/a.jsonl"));
  CHECK_FALSE(matches_pattern("data/*.jsonl", "data/b/a.jsonl"));
  CHECK(matches_pattern("data/**/*.jsonl", "data/b/c/a.jsonl"));
  CHECK(matches_pattern("data/**/*.jsonl", "data/a.jsonl"));
  CHECK(matches_pattern("**/x", "x"));
  CHECK(matches_pattern("part-[0-3]?", "part-17"));
  CHECK_FALSE(matches_pattern("part-[0-3]?", "part-7"));
  std::string stars, folders;
  for (int i = 0; i < 300; ++i) stars += "**/", folders += "a/";
  CHECK_FALSE(matches_pattern(stars + "x", folders + "y"));
}

TEST_CASE("MD5: the vectors of RFC 1321, in one part and in many") {
  const auto md5 = [](const std::string& text, size_t step) {
    Md5 m;
    for (size_t at = 0; at < text.size(); at += step)
      m.add(text.data() + at, std::min(step, text.size() - at));
    return m.hex();
  };
  CHECK(md5("", 1) == "d41d8cd98f00b204e9800998ecf8427e");
  CHECK(md5("message digest", 99) == "f96b697d7cb7938d525a2f31aaf161d0");
  const std::string digits =
      "12345678901234567890123456789012345678901234567890123456789012345678901234567890";
  for (const size_t step : {1, 7, 64, 80}) CHECK(md5(digits, step) == "57edf4a22be3c955ac49da2e2107b67a");
}
