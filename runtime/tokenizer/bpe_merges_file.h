// tiktoken's rank file: lines of `base64 rank`, LF or CRLF. A token's rank is its id, and the order of
// merges.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::data {

/// Tokens by rank. Error (data), naming path and line, unless every line is well formed, the ranks are 0 ..
/// n-1, no token comes twice and each of the 256 single bytes is one.
std::vector<std::string> read_rank_file(const std::string& path);

/// The same of text in memory; `name` for messages.
std::vector<std::string> parse_ranks(std::string_view text, const std::string& name);

/// Strict base64 (RFC 4648, padded); false if it is not.
bool decode_base64(std::string_view text, std::string& out);

}  // namespace ltrain::data
