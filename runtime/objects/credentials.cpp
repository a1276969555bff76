#include "runtime/objects/credentials.h"

#include <cstdlib>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/file.h"

namespace ltrain::objects {
namespace {

constexpr int64_t kMaxSettingsFile = 1 << 20;
constexpr const char* kGoogle = "https://storage.googleapis.com";

using Section = std::map<std::string, std::string>;
using Sections = std::map<std::string, Section>;

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

/// Sections of an INI file; none if it does not exist. Indented lines, which are nested settings, comments,
/// and lines of another form are left out.
Sections read_ini(const std::string& path) {
  Sections sections;
  if (path.empty() || !data::file_exists(path)) return sections;
  std::istringstream in(data::read_whole(path, kMaxSettingsFile));
  Section* section = nullptr;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == ' ' || line[0] == '\t' || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      std::string name = trimmed(line.substr(1, line.find(']') - 1));
      if (name.starts_with("profile ")) name = trimmed(name.substr(8));
      section = &sections[name];
    } else if (const size_t equals = line.find('='); section && equals != line.npos) {
      (*section)[trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
    }
  }
  return sections;
}

struct Profile {
  std::string name, credentials_file, config_file;
  Section secrets, config;

  std::string get(const char* key) const {
    for (const Section* s : {&config, &secrets})
      if (const auto found = s->find(key); found != s->end()) return found->second;
    return "";
  }
};

std::string profile_names(const Sections& a, const Sections& b) {
  std::string names;
  for (const Sections* sections : {&a, &b})
    for (const auto& [name, section] : *sections)
      if (sections == &a || !a.contains(name)) names += (names.empty() ? "" : ", ") + printable(name, 60);
  return names.empty() ? "none" : names;
}

Profile read_profile(const Variables& variable) {
  const std::string home = variable("HOME"), given = variable("AWS_PROFILE");
  const auto file = [&](const char* name, const char* below) {
    const std::string path = variable(name);
    return !path.empty() ? path : home.empty() ? "" : home + below;
  };
  Profile p;
  p.name = given.empty() ? "default" : given;
  p.credentials_file = file("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials");
  p.config_file = file("AWS_CONFIG_FILE", "/.aws/config");
  Sections secrets = read_ini(p.credentials_file), config = read_ini(p.config_file);
  if (!given.empty() && !secrets.contains(given) && !config.contains(given))
    fail(ExitCode::usage, "AWS_PROFILE={}: no such profile in {} and {}; there are: {}",
         printable(given, 100), printable(p.credentials_file, 300), printable(p.config_file, 300),
         profile_names(secrets, config));
  p.secrets = std::move(secrets[p.name]);
  p.config = std::move(config[p.name]);
  return p;
}

/// Takes the keys of `get`, whose names are for the error text.
bool take_keys(Credentials& c, const std::string& from, const std::string& access, const std::string& secret,
               const std::string& token) {
  if (access.empty() && secret.empty()) return false;
  if (access.empty() || secret.empty())
    fail(ExitCode::usage, "{}: {} is there and {} is not; give both, or neither for public buckets", from,
         access.empty() ? "the secret key" : "the access key",
         access.empty() ? "the access key" : "the secret key");
  for (const std::string* text : {&access, &secret, &token})
    for (const char c2 : *text)
      if (static_cast<unsigned char>(c2) <= ' ' || static_cast<unsigned char>(c2) >= 0x7f)
        fail(ExitCode::usage, "{}: a key has a blank or a character outside ASCII; copy it again", from);
  c = {access, secret, token};
  return true;
}

void take_credentials(StoreSettings& s, const Profile& p, const Variables& variable) {
  Credentials& c = s.credentials;
  s.credentials_from = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
  if (take_keys(c, s.credentials_from, variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                variable("AWS_SESSION_TOKEN")))
    return;
  const std::string profile = fmt::format("the profile {}", printable(p.name, 100));
  for (const auto& [file, section] :
       {std::pair(p.credentials_file, &p.secrets), {p.config_file, &p.config}}) {
    const auto get = [&](const char* key) {
      const auto found = section->find(key);
      return found == section->end() ? "" : found->second;
    };
    const std::string from = fmt::format("{} of {}", profile, printable(file, 300));
    if (!take_keys(c, from, get("aws_access_key_id"), get("aws_secret_access_key"), get("aws_session_token")))
      continue;
    s.credentials_from = from;
    return;
  }
  s.credentials_from =
      fmt::format("none: AWS_ACCESS_KEY_ID is not set, and {} has no aws_access_key_id in {} and {}", profile,
                  printable(p.credentials_file, 300), printable(p.config_file, 300));
  for (const char* other : {"sso_session", "sso_start_url", "role_arn", "credential_process"})
    if (!p.get(other).empty()) {
      s.credentials_from += fmt::format(
          "; it has {}, which ltrain does not use: eval \"$(aws configure export-credentials --format env)\" "
          "sets the variables",
          other);
      return;
    }
}

}  // namespace

std::string process_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

StoreSettings store_settings(Url::Scheme scheme, const Variables& variable) {
  StoreSettings s;
  s.certificates = variable("AWS_CA_BUNDLE");
  if (scheme == Url::http || scheme == Url::https) return s;
  const Profile p = read_profile(variable);
  take_credentials(s, p, variable);
  if (scheme == Url::gs) {
    s.endpoint = kGoogle;
    s.region = "auto";
    s.region_given = true;
    return s;
  }
  for (const std::string& region : {variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"), p.get("region")})
    if (!region.empty() && !s.region_given) {
      s.region = region;
      s.region_given = true;
    }
  for (const std::string& url :
       {variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"), p.get("endpoint_url")})
    if (!url.empty() && s.endpoint.empty()) s.endpoint = url;
  if (s.endpoint.empty()) return s;
  if (!s.endpoint.starts_with("http://") && !s.endpoint.starts_with("https://"))
    fail(ExitCode::usage, "AWS_ENDPOINT_URL: expected https://HOST or http://HOST:PORT, got {}",
         printable(s.endpoint, 100));
  const Url endpoint = parse_url(s.endpoint);
  if (endpoint.path != "/" || !endpoint.query.empty())
    fail(ExitCode::usage, "AWS_ENDPOINT_URL: {}: expected no path after the host", endpoint.name());
  s.endpoint = (endpoint.scheme == Url::http ? "http://" : "https://") + endpoint.host;
  return s;
}

}  // namespace ltrain::objects
