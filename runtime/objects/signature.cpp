#include "runtime/objects/signature.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <fmt/format.h>

#include "base/hash/sha256.h"
#include "base/secret.h"

namespace ltrain::objects {
namespace {

std::string hmac(const std::string& key, std::string_view text) {
  return std::string(bytes_of(hmac_sha256(key, text)));
}

/// A header's value without blanks around it, and with one blank for several.
std::string folded_value(const std::string& value) {
  std::string out;
  for (const char c : value)
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

const char* const kEmptyPayload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string percent_encoded(std::string_view text, bool keep_slash) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (keep_slash && c == '/');
    if (plain)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string encoded_query(const Pairs& query) {
  Pairs encoded;
  for (const auto& [name, value] : query)
    encoded.emplace_back(percent_encoded(name, false), percent_encoded(value, false));
  std::sort(encoded.begin(), encoded.end());
  std::string text;
  for (const auto& [name, value] : encoded) text += (text.empty() ? "" : "&") + name + "=" + value;
  return text;
}

std::string authorization(const SigningRequest& request, const Credentials& credentials,
                          const std::string& region, const std::string& service, const std::string& time) {
  Pairs headers = request.headers;
  std::stable_sort(headers.begin(), headers.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string canonical = request.method + "\n" + request.path + "\n" + encoded_query(request.query) + "\n",
              names;
  for (const auto& [name, value] : headers) {
    canonical += name + ":" + folded_value(value) + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  canonical += "\n" + names + "\n" + request.payload_hash;
  const std::string date = time.substr(0, 8), scope = date + "/" + region + "/" + service + "/aws4_request";
  const std::string text =
      "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + to_hex(bytes_of(sha256(canonical)));
  std::string key = "AWS4" + credentials.secret_key;
  for (const std::string& part : {date, region, service, std::string("aws4_request")}) key = hmac(key, part);
  return "AWS4-HMAC-SHA256 Credential=" + credentials.access_key + "/" + scope + ", SignedHeaders=" + names +
         ", Signature=" + to_hex(hmac(key, text));
}

std::string amz_time() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  return text;
}

}  // namespace ltrain::objects
