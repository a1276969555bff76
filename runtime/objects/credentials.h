// Keys, region and endpoint of object stores, from the variables and files of the AWS command line.
#pragma once
#include <functional>
#include <string>

#include "runtime/objects/url.h"

namespace ltrain::objects {

struct Credentials {
  std::string access_key, secret_key, session_token;
  bool present() const { return !access_key.empty(); }  ///< absent: requests are not signed
};

struct StoreSettings {
  Credentials credentials;
  std::string credentials_from;  ///< variable or file and profile of the keys, or where none were found
  std::string region = "us-east-1";
  bool region_given = false;
  std::string endpoint;      ///< http://HOST:PORT or https://HOST; empty: AWS
  std::string certificates;  ///< file of certificates of authorities to trust; empty: those of the system
};

/// Value of an environment variable; empty: not set.
using Variables = std::function<std::string(const char*)>;
std::string process_variable(const char* name);

/// Settings for buckets of s3:// or gs://, and `certificates` for any scheme. Keys: AWS_ACCESS_KEY_ID,
/// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; else the profile AWS_PROFILE (default) in ~/.aws/credentials
/// and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE). Region: AWS_REGION, AWS_DEFAULT_REGION,
/// the profile. Endpoint: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile; gs://: Google's S3 interface.
/// Throws Error (usage) for a key without its secret, and for a profile that does not exist. No error has a
/// secret in its text.
StoreSettings store_settings(Url::Scheme scheme, const Variables& variable = process_variable);

}  // namespace ltrain::objects
