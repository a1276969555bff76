// tiktoken's rank file: lines of `base64 rank`, LF or CRLF. The rank of a token is its id and its position in
// the order of merges.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::data {

/// Reads tokens by rank. Throws Error (data) with path and line unless every line is well formed, the ranks
/// are 0 .. n-1, no token is repeated, and each of the 256 single bytes is a token.
std::vector<std::string> read_rank_file(const std::string& path);

/// Like read_rank_file, from text in memory. `name`: for messages.
std::vector<std::string> parse_ranks(std::string_view text, const std::string& name);

/// Decodes strict base64 (RFC 4648, padded). Returns false for invalid text.
bool decode_base64(std::string_view text, std::string& out);

}  // namespace ltrain::data
