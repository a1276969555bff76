#include "runtime/objects/credentials.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "runtime/objects/object_store.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::objects;
using Catch::Contains;

namespace {

struct Home {
  test::TemporaryFolder folder;
  std::map<std::string, std::string> variables;

  Home() {
    variables["HOME"] = folder.path();
    std::filesystem::create_directories(folder.path() + "/.aws");
  }
  void write(const std::string& file, const std::string& text) {
    std::ofstream(folder.path() + "/.aws/" + file) << text;
  }
  Variables reader() const {
    return [this](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? "" : found->second;
    };
  }
  StoreSettings settings(Url::Scheme scheme = Url::s3) const { return store_settings(scheme, reader()); }
};

}  // namespace

TEST_CASE("keys of object stores: variables come before the profile, and none leaves requests unsigned") {
  Home home;
  CHECK_FALSE(home.settings().credentials.present());
  CHECK_THAT(home.settings().credentials_from, Contains("AWS_ACCESS_KEY_ID is not set"));
  CHECK(home.settings().region == "us-east-1");
  home.write("credentials",
             "# keys\n[default]\naws_access_key_id = DEFAULT\naws_secret_access_key = s1\n\n[work]\n"
             "aws_access_key_id=WORK\r\naws_secret_access_key=s2\naws_session_token = t\n");
  home.write("config",
             "[default]\nregion = eu-west-1\ns3 =\n  endpoint_url = http://nested\n[profile work]\n"
             "region=eu-north-1\nendpoint_url = https://store:9000/\n");
  CHECK(home.settings().credentials.access_key == "DEFAULT");
  CHECK(home.settings().region == "eu-west-1");
  CHECK(home.settings().endpoint.empty());
  home.variables["AWS_PROFILE"] = "work";
  const StoreSettings work = home.settings();
  CHECK(work.credentials.access_key == "WORK");
  CHECK(work.credentials.session_token == "t");
  CHECK(work.endpoint == "https://store:9000");
  CHECK(work.region == "eu-north-1");
  home.variables["AWS_ACCESS_KEY_ID"] = "VARIABLE";
  CHECK_THROWS_WITH(home.settings(), Contains("the secret key") || Contains("give both"));
  home.variables["AWS_SECRET_ACCESS_KEY"] = "s3";
  home.variables["AWS_DEFAULT_REGION"] = "r2";
  CHECK(home.settings().credentials.access_key == "VARIABLE");
  CHECK(home.settings().credentials.session_token.empty());
  CHECK(home.settings().region == "r2");
  home.variables["AWS_REGION"] = "r1";
  CHECK(home.settings().region == "r1");
  home.variables["AWS_SECRET_ACCESS_KEY"] = "line\nend";
  CHECK_THROWS_WITH(home.settings(), !Contains("line") && Contains("a blank"));
}

TEST_CASE("settings of object stores: Google's endpoint, and endpoints and profiles that are refused") {
  Home home;
  CHECK(home.settings(Url::gs).endpoint == "https://storage.googleapis.com");
  CHECK(home.settings(Url::gs).region == "auto");
  home.variables["AWS_ENDPOINT_URL"] = "http://minio:9000";
  CHECK(home.settings().endpoint == "http://minio:9000");
  CHECK(home.settings(Url::gs).endpoint == "https://storage.googleapis.com");
  home.variables["AWS_ENDPOINT_URL_S3"] = "https://s3.example/path";
  CHECK_THROWS_WITH(home.settings(), Contains("no path"));
  home.variables["AWS_ENDPOINT_URL_S3"] = "minio:9000";
  CHECK_THROWS_WITH(home.settings(), Contains("https://HOST"));
  home.variables["AWS_PROFILE"] = "other";
  CHECK_THROWS_WITH(home.settings(), Contains("no such profile"));
}

TEST_CASE("addresses of objects: by host at AWS, by path elsewhere, and keys in percent-encoding") {
  Home home;
  const auto url_of = [&](const std::string& text) {
    const Url url = parse_url(text);
    return ObjectStore(url, home.reader()).request("GET", url, {{"prefix", "a b"}}).url;
  };
  CHECK(url_of("s3://bucket/a b/é") == "https://bucket.s3.us-east-1.amazonaws.com/a%20b/%C3%A9?prefix=a%20b");
  CHECK(url_of("s3://dotted.bucket/a") == "https://s3.us-east-1.amazonaws.com/dotted.bucket/a?prefix=a%20b");
  home.variables["AWS_REGION"] = "cn-north-1";
  CHECK(url_of("s3://bucket/a") == "https://bucket.s3.cn-north-1.amazonaws.com.cn/a?prefix=a%20b");
  home.variables["AWS_ENDPOINT_URL"] = "http://minio:9000";
  CHECK(url_of("s3://bucket/a") == "http://minio:9000/bucket/a?prefix=a%20b");
  CHECK(url_of("gs://bucket/a") == "https://storage.googleapis.com/bucket/a?prefix=a%20b");
  home.variables["AWS_ACCESS_KEY_ID"] = "K";
  home.variables["AWS_SECRET_ACCESS_KEY"] = "secret";
  home.variables["AWS_SESSION_TOKEN"] = "T";
  const Url url = parse_url("s3://bucket/a");
  std::string headers;
  for (const std::string& h : ObjectStore(url, home.reader()).request("GET", url).headers)
    headers += h + "\n";
  CHECK_THAT(headers,
             Contains("Credential=K/") && Contains("/cn-north-1/s3/aws4_request") &&
                 Contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token") &&
                 Contains("x-amz-security-token: T") && !Contains("secret"));
}
