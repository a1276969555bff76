// Secrets that processes of one job show each other, and their text form.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ltrain {

/// Random bytes from the kernel.
std::string random_bytes(size_t count);
/// Two digits for each byte, 0-9 and a-f.
std::string to_hex(std::string_view bytes);
/// Inverse of to_hex; nothing if `text` has other characters, an odd length, or more than `most` bytes.
std::optional<std::string> from_hex(std::string_view text, size_t most);
/// Comparison in constant time for equal lengths. Secrets of different lengths are not equal.
bool equal_secrets(std::string_view a, std::string_view b);

inline constexpr size_t kSecretBytes = 16;

/// Secrets of a rank for incoming connections, stored where only the job's ranks can read them: the
/// connecting side shows `client` and is shown `server`. kSecretBytes each.
struct SecretPair {
  std::string client, server;
  static SecretPair make();
  std::string text() const { return to_hex(client + server); }
  static std::optional<SecretPair> parse(std::string_view text);
};

}  // namespace ltrain
