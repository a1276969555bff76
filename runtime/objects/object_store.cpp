#include "runtime/objects/object_store.h"

#include <charconv>

#include "base/error.h"
#include "base/hash/sha256.h"
#include "base/printable.h"
#include "base/secret.h"
#include "runtime/objects/xml.h"

namespace ltrain::objects {
namespace {

/// Bucket as a host name: its certificate covers one label without dots or capitals.
bool is_label(const std::string& bucket) {
  return bucket.size() <= 63 &&
         bucket.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == bucket.npos;
}

/// A count of bytes; -1: none.
int64_t count_in(const std::string& text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

std::string encoded_path(const Url& url) {
  // Bytes outside ASCII are encoded; what the URL has encoded stays.
  std::string out;
  for (const char c : url.path)
    out += static_cast<unsigned char>(c) < 0x80 ? std::string(1, c) : percent_encoded({&c, 1}, true);
  return out;
}

}  // namespace

std::string Object::identity() const {
  return fmt::format("{} {} {} {}", url.full(), size, etag, etag.empty() ? modified : "");
}

StoreError store_error(const HttpResponse& response) {
  StoreError e;
  try {
    read_xml(response.body, "", [&](const std::vector<std::string>& path, const std::string& text) {
      if (path.size() != 2 || path[0] != "Error") return;
      if (path[1] == "Code") e.code = printable(text, 100);
      if (path[1] == "Message") e.message = printable(text, 400);
      if (path[1] == "Region") e.region = printable(text, 60);
    });
  } catch (const Error&) {  // HTML of a proxy, or nothing
    return {};
  }
  return e;
}

ObjectStore::ObjectStore(const Url& url, const Variables& variable)
    : settings_(store_settings(url.scheme, variable)) {}

HttpRequest ObjectStore::request(const std::string& method, const Url& url, const Pairs& query,
                                 const Pairs& headers, std::string_view body) const {
  HttpRequest r;
  r.method = method;
  r.body = body;
  r.name = url.name();
  r.certificates = settings_.certificates;
  if (!url.is_bucket()) {
    r.url = (url.scheme == Url::http ? "http://" : "https://") + url.host + encoded_path(url) +
            (url.query.empty() ? "" : "?" + url.query);
    r.follow_redirects = true;
    for (const auto& [name, value] : headers) r.headers.push_back(name + ": " + value);
    return r;
  }
  const std::string amazon =
      "s3." + settings_.region + ".amazonaws.com" + (settings_.region.starts_with("cn-") ? ".cn" : "");
  const bool by_host = settings_.endpoint.empty() && is_label(url.host);
  const std::string base = !settings_.endpoint.empty() ? settings_.endpoint
                           : by_host                   ? "https://" + url.host + "." + amazon
                                                       : "https://" + amazon;
  const std::string path = (by_host ? "" : "/" + url.host) + "/" + percent_encoded(url.path, true);
  const std::string text = encoded_query(query);
  r.url = base + path + (text.empty() ? "" : "?" + text);
  Pairs signed_headers = headers;
  if (settings_.credentials.present()) {
    const std::string time = amz_time(),
                      payload = body.empty() ? kEmptyPayload : to_hex(bytes_of(sha256(body)));
    signed_headers.emplace_back("host", base.substr(base.find("://") + 3));
    signed_headers.emplace_back("x-amz-content-sha256", payload);
    signed_headers.emplace_back("x-amz-date", time);
    if (!settings_.credentials.session_token.empty())
      signed_headers.emplace_back("x-amz-security-token", settings_.credentials.session_token);
    r.headers.push_back("Authorization: " + authorization({method, path, query, signed_headers, payload},
                                                          settings_.credentials, settings_.region, "s3",
                                                          time));
  }
  for (const auto& [name, value] : signed_headers)
    if (name != "host") r.headers.push_back(name + ": " + value);
  return r;
}

bool ObjectStore::learn_region(const HttpResponse& response) {
  if (settings_.region_given || !settings_.endpoint.empty()) return false;
  std::string region = response.header("x-amz-bucket-region");
  if (region.empty()) region = store_error(response).region;
  if (region.empty() || region == settings_.region ||
      region.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != region.npos)
    return false;
  settings_.region = region;
  return true;
}

HttpResponse ObjectStore::send(const std::string& method, const Url& url, const Pairs& query,
                               const Pairs& headers, const std::atomic<bool>* stop, std::string_view body) {
  const auto make = [&] { return request(method, url, query, headers, body); };
  HttpResponse response = objects::send(make, stop);
  if (!response.ok() && url.is_bucket() && learn_region(response)) response = objects::send(make, stop);
  return response;
}

bool ObjectStore::try_head(const Url& url, Object& object) {
  HttpResponse r = send("HEAD", url);
  // A server without HEAD answers a request for the first byte, with the size in Content-Range.
  if (!url.is_bucket() && (r.status == 403 || r.status == 405 || r.status == 501))
    r = send("GET", url, {}, {{"range", "bytes=0-0"}});
  if (r.failure.empty() && (r.status == 404 || (url.is_bucket() && r.status == 403))) return false;
  if (!r.ok()) fail_response(r, url);
  std::string size = r.header("content-length");
  if (const std::string range = r.header("content-range"); !range.empty())
    size = range.substr(range.rfind('/') + 1);
  object = {url, count_in(size), r.header("etag"), r.header("last-modified")};
  if (object.size < 0)
    fail(ExitCode::data, "{}: the server does not say its size; copy the file and give its path", url.name());
  return true;
}

Object ObjectStore::head(const Url& url) {
  Object object;
  if (!try_head(url, object)) {
    // The answer to HEAD has no body, and so no reason.
    const HttpResponse r = send("GET", url, {}, {{"range", "bytes=0-0"}});
    if (!r.ok()) fail_response(r, url);
    fail(ExitCode::storage, "{}: HEAD was refused and GET was not; start again", url.name());
  }
  return object;
}

std::string ObjectStore::read(const Object& object, int64_t most_bytes) {
  if (object.size == 0) return "";
  const HttpResponse r = send("GET", object.url, {},
                              {{"range", fmt::format("bytes=0-{}", std::min(object.size, most_bytes) - 1)}});
  if (!r.ok()) fail_response(r, object.url);
  return r.body.substr(0, static_cast<size_t>(most_bytes));
}

void ObjectStore::fail_response(const HttpResponse& r, const Url& url, const std::string& more) const {
  const std::string name = url.name();
  if (!r.failure.empty())
    fail(ExitCode::storage, "{}: {}{}", name, r.failure,
         r.can_retry
             ? fmt::format("; {} attempts were made. Start again when the network is there", kAttempts)
             : "");
  const StoreError e = store_error(r);
  const std::string said = fmt::format("{}: HTTP {}{}{}", name, r.status, e.code.empty() ? "" : " " + e.code,
                                       e.message.empty() ? "" : ": " + e.message);
  const std::string region = r.header("x-amz-bucket-region");
  std::string help;
  if (!region.empty() && region != settings_.region &&
      (r.status == 301 || r.status == 307 || r.status == 400))
    help = fmt::format("the bucket is in the region {}, and requests went to {}: set AWS_REGION={}",
                       printable(region, 60), printable(settings_.region, 60), printable(region, 60));
  else if (url.is_bucket() && (r.status == 401 || r.status == 403 || e.code == "InvalidAccessKeyId"))
    help = fmt::format("keys: {}; region {}{}", settings_.credentials_from, printable(settings_.region, 60),
                       settings_.credentials.present()
                           ? ". They need s3:GetObject and s3:ListBucket of the bucket"
                           : ". The request was not signed, which public buckets allow");
  else if (r.status == 401 || r.status == 403)
    help = "ltrain sends no password; a link with a signature, or a public file, can be read";
  else if (r.status == 301 || r.status == 307 || r.status == 400)
    help = url.is_bucket() ? fmt::format(
                                 "requests went to the region {}{}; AWS_REGION and AWS_ENDPOINT_URL "
                                 "choose another one",
                                 printable(settings_.region, 60),
                                 settings_.endpoint.empty() ? "" : " of " + settings_.endpoint)
                           : "";
  else if (r.can_retry)
    help = fmt::format("{} attempts were made; start again later", kAttempts);
  if (!more.empty()) help += (help.empty() ? "" : ". ") + more;
  fail(r.can_retry ? ExitCode::storage : ExitCode::data, "{}{}{}", said, help.empty() ? "" : "; ", help);
}

}  // namespace ltrain::objects
