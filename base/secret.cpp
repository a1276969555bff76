#include "base/secret.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ltrain {

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t have = 0; have < count;) {
    const ssize_t n = ::getrandom(bytes.data() + have, count - have, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(ExitCode::internal, "no random numbers from the kernel: {}", std::strerror(errno));
    have += static_cast<size_t>(n);
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (unsigned char b : bytes) text += fmt::format("{:02x}", b);
  return text;
}

std::optional<std::string> from_hex(std::string_view text, size_t most) {
  if (text.size() % 2 != 0 || text.size() > 2 * most ||
      text.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return {};
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(static_cast<char>(16 * digit(text[i]) + digit(text[i + 1])));
  return bytes;
}

bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

SecretPair SecretPair::make() { return {random_bytes(kSecretBytes), random_bytes(kSecretBytes)}; }

std::optional<SecretPair> SecretPair::parse(std::string_view text) {
  const std::optional<std::string> both = from_hex(text, 2 * kSecretBytes);
  if (!both || both->size() != 2 * kSecretBytes) return {};
  return SecretPair{both->substr(0, kSecretBytes), both->substr(kSecretBytes)};
}

}  // namespace ltrain
