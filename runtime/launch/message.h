// The control channel's messages: framing, and fields with checked bounds. Everything that arrives is hostile
// until read by MessageReader without an error.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

enum class MessageType : uint8_t {
  // rank to coordinator
  hello = 1,    // who joins
  set = 2,      // key, value
  get = 3,      // key: answered by `value` when it is there
  status = 4,   // heartbeat
  error = 5,    // this rank failed: exit code, text
  goodbye = 6,  // this rank ends on purpose: exit code
  signal = 7,   // this rank was asked by a signal to stop
  differs = 8,  // who would join, and its recipe, which is another than the job's
  // coordinator to rank
  welcome = 32,  // all ranks have joined
  value = 33,    // key, value
  stop = 34,     // everybody is to save and stop
  end = 35,      // the run has failed: why, and with which exit code
  ping = 36,     // the coordinator is alive
  refused = 37,  // this rank cannot join: exit code, why
  noted = 38,    // the error or goodbye has arrived
};

constexpr size_t kMaxFrame = 1 << 20;

class MessageWriter {
 public:
  explicit MessageWriter(MessageType type) : bytes_(5, '\0') { bytes_[4] = static_cast<char>(type); }
  MessageWriter& number(int64_t v);
  MessageWriter& real(double v);
  MessageWriter& text(std::string_view v);
  /// The whole frame: length, type, fields.
  std::string frame();

 private:
  std::string bytes_;
};

struct Message {
  MessageType type{};
  std::string body;
};

/// Fields in the order in which they were written. After a read past the end, ok() is false and reads give
/// zeros.
class MessageReader {
 public:
  explicit MessageReader(const Message& m) : body_(m.body) {}
  int64_t number();
  double real();
  std::string text();
  bool ok() const { return ok_; }

 private:
  std::string_view body_;
  bool ok_ = true;
};

/// Cuts a stream of bytes into messages.
class FrameBuffer {
 public:
  void feed(const char* data, size_t size) { bytes_.append(data, size); }
  /// The next whole message. Sets `bad` when the stream cannot be one of ours.
  std::optional<Message> next(bool* bad);
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace ltrain
