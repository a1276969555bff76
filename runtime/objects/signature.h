// AWS Signature Version 4: the Authorization header of a request.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/objects/credentials.h"

namespace ltrain::objects {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct SigningRequest {
  std::string method, path;  ///< path: encoded, from the first slash
  Pairs query;               ///< names and values, not encoded
  Pairs headers;             ///< all that are signed, host and x-amz-date too; names in lower case
  std::string payload_hash;  ///< SHA-256 of the body, in hexadecimal digits
};

/// SHA-256 of an empty body.
extern const char* const kEmptyPayload;

/// Value of the header Authorization. `time`: that of x-amz-date, as 20130524T000000Z.
std::string authorization(const SigningRequest& request, const Credentials& credentials,
                          const std::string& region, const std::string& service, const std::string& time);

/// Bytes other than letters, digits, - . _ ~ (and / if `keep_slash`) as % and two digits.
std::string percent_encoded(std::string_view text, bool keep_slash);

/// Encoded query, sorted by name: "a=1&b=2".
std::string encoded_query(const Pairs& query);

/// The time now, as 20130524T000000Z.
std::string amz_time();

}  // namespace ltrain::objects
