#include "runtime/launch/message.h"

#include <bit>
#include <cstring>

namespace ltrain {
namespace {

void put(std::string& out, uint64_t v, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(v >> (8 * i)));
}
uint64_t take(std::string_view in, int bytes) {
  uint64_t v = 0;
  for (int i = 0; i < bytes; ++i) v |= static_cast<uint64_t>(static_cast<unsigned char>(in[i])) << (8 * i);
  return v;
}

}  // namespace

MessageWriter& MessageWriter::number(int64_t v) {
  put(bytes_, static_cast<uint64_t>(v), 8);
  return *this;
}
MessageWriter& MessageWriter::real(double v) {
  put(bytes_, std::bit_cast<uint64_t>(v), 8);
  return *this;
}
MessageWriter& MessageWriter::text(std::string_view v) {
  v = v.substr(0, kMaxText);
  put(bytes_, v.size(), 4);
  bytes_.append(v);
  return *this;
}
std::string MessageWriter::frame() {
  const uint32_t length = static_cast<uint32_t>(bytes_.size() - 4);
  for (int i = 0; i < 4; ++i) bytes_[i] = static_cast<char>(length >> (8 * i));
  return bytes_;
}

int64_t MessageReader::number() {
  if (body_.size() < 8) {
    ok_ = false;
    return 0;
  }
  const uint64_t v = take(body_, 8);
  body_.remove_prefix(8);
  return static_cast<int64_t>(v);
}
double MessageReader::real() { return std::bit_cast<double>(number()); }
std::string MessageReader::text() {
  if (body_.size() < 4 || body_.size() - 4 < take(body_, 4)) {
    ok_ = false;
    return {};
  }
  const size_t n = take(body_, 4);
  std::string v(body_.substr(4, n));
  body_.remove_prefix(4 + n);
  return v;
}

std::optional<Message> FrameBuffer::next(bool* bad) {
  *bad = false;
  if (bytes_.size() < 5) return {};
  const size_t length = take(bytes_, 4);
  if (length < 1 || length > kMaxFrame) {
    *bad = true;
    return {};
  }
  if (bytes_.size() < 4 + length) return {};
  Message m{static_cast<MessageType>(bytes_[4]), bytes_.substr(5, length - 1)};
  bytes_.erase(0, 4 + length);
  return m;
}

}  // namespace ltrain
