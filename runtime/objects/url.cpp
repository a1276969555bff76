#include "runtime/objects/url.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::objects {
namespace {

constexpr std::array<std::pair<std::string_view, Url::Scheme>, 4> kSchemes{
    {{"https://", Url::https}, {"http://", Url::http}, {"s3://", Url::s3}, {"gs://", Url::gs}}};
constexpr size_t kMaxUrl = 8192;  // bytes

std::string_view prefix_of(Url::Scheme scheme) {
  for (const auto& [prefix, s] : kSchemes)
    if (s == scheme) return prefix;
  return "";
}

bool is_bucket_name(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  });
}

bool is_host(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return is_bucket_name({&c, 1}) || c == ':' || c == '[' || c == ']';
  });
}

}  // namespace

std::string Url::name() const { return printable(std::string(prefix_of(scheme)) + host + path_text(), 2000); }

std::string Url::full() const {
  return std::string(prefix_of(scheme)) + host + path_text() + (query.empty() ? "" : "?" + query);
}

std::string Url::path_text() const { return is_bucket() ? "/" + path : path; }

bool is_url(std::string_view input) {
  return std::any_of(kSchemes.begin(), kSchemes.end(),
                     [&](const auto& s) { return input.starts_with(s.first); });
}

Url parse_url(std::string_view text) {
  Url url;
  size_t at = 0;
  for (const auto& [prefix, scheme] : kSchemes)
    if (text.starts_with(prefix)) {
      url.scheme = scheme;
      at = prefix.size();
    }
  LT_CHECK(at > 0, "expected a URL of http, https, s3 or gs");
  const std::string scheme(text.substr(0, at));
  if (text.size() > kMaxUrl)
    fail(ExitCode::usage, "{}...: a URL of {} bytes, expected at most {}", scheme, text.size(), kMaxUrl);
  std::string_view rest = text.substr(at);
  if (!url.is_bucket()) {
    rest = rest.substr(0, rest.find('#'));
    if (const size_t question = rest.find('?'); question != rest.npos) {
      url.query = rest.substr(question + 1);
      rest = rest.substr(0, question);
    }
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.host = rest.substr(0, slash);
  if (url.host.find('@') != std::string::npos)
    fail(
        ExitCode::usage,
        "{}...@...: a user name or password in a URL would be written to logs; leave it out. Keys of buckets "
        "are read from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        scheme);
  if (url.is_bucket()) {
    if (url.host.size() < 3 || url.host.size() > 222 || !is_bucket_name(url.host))
      fail(ExitCode::usage,
           "{}{}: expected the name of a bucket after {}, of 3 or more letters, digits, - . and _", scheme,
           printable(url.host, 100), scheme);
    url.path = rest.substr(std::min(slash + 1, rest.size()));
    return url;
  }
  if (!is_host(url.host))
    fail(ExitCode::usage, "{}{}: expected a host name after {}", scheme, printable(url.host, 100), scheme);
  url.path = slash == rest.size() ? "/" : std::string(rest.substr(slash));
  for (const std::string* part : {&url.path, &url.query})
    for (const char c : *part)
      if (static_cast<unsigned char>(c) <= ' ' || c == '\x7f' || c == '\\')
        fail(ExitCode::usage,
             "{}: a blank, a control character or a backslash in a URL: write it as %20, or % and its two "
             "hexadecimal digits",
             url.name());
  return url;
}

void refuse_query(const Url& url, const std::string& key) {
  if (url.query.empty()) return;
  fail(
      ExitCode::usage,
      "{}: path {}?...: the part of a URL after ? may hold secrets, and recipes are written to logs and "
      "checkpoints. Leave it out; or tokenise with ltrain data build --input URL, and give its output as the "
      "path",
      key, url.name());
}

}  // namespace ltrain::objects
