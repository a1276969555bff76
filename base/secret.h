// Secrets that processes of one job show each other, and how they are written down.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ltrain {

/// Random bytes from the kernel.
std::string random_bytes(size_t count);
/// Two digits a byte, of 0-9 and a-f.
std::string to_hex(std::string_view bytes);
/// What to_hex was given; nothing where `text` is of other characters, an odd number of them, or more than
/// `most` bytes.
std::optional<std::string> from_hex(std::string_view text, size_t most);
/// In a time that tells their length alone. Of different lengths they are not equal.
bool equal_secrets(std::string_view a, std::string_view b);

inline constexpr size_t kSecretBytes = 16;

/// What a rank makes up that others are to connect to, and leaves where the job's ranks alone can read: who
/// comes shows `client`, and is shown `server`. kSecretBytes each.
struct SecretPair {
  std::string client, server;
  static SecretPair make();
  std::string text() const { return to_hex(client + server); }
  static std::optional<SecretPair> parse(std::string_view text);
};

}  // namespace ltrain
