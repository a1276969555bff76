// Messages of the control channel: framing, and fields with checked bounds. All input is untrusted until
// MessageReader has read it without an error.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

enum class MessageType : uint8_t {
  // rank to coordinator
  hello = 1,    // identity of a joining rank
  set = 2,      // key, value
  get = 3,      // key; answered by `value` once it exists
  status = 4,   // heartbeat
  error = 5,    // this rank failed: exit code, text
  goodbye = 6,  // this rank ends on purpose: exit code
  signal = 7,   // a signal asked this rank to stop
  differs = 8,  // identity and recipe of a rank whose recipe differs from the job's
  vote = 9,     // a replica's, to the quorum; answered by `membership`
  // coordinator to rank
  welcome = 32,     // all ranks have joined
  value = 33,       // key, value
  stop = 34,        // all ranks must save and stop
  end = 35,         // the run has failed: reason and exit code
  ping = 36,        // the coordinator is alive
  refused = 37,     // this rank cannot join: exit code, reason
  noted = 38,       // the error or goodbye has arrived
  renumbered = 40,  // this rank's number in the job, where the launcher's is another; before `welcome`
  // quorum to replica
  membership = 39,  // the replicas of the next step
};

/// Longest text of a message; the rest is cut.
constexpr size_t kMaxText = 1 << 18;
/// Room for the welcome of a million ranks on hosts of eight.
constexpr size_t kMaxFrame = 1 << 25;

class MessageWriter {
 public:
  explicit MessageWriter(MessageType type) : bytes_(5, '\0') { bytes_[4] = static_cast<char>(type); }
  MessageWriter& number(int64_t v);
  MessageWriter& real(double v);
  MessageWriter& text(std::string_view v);
  /// Complete frame: length, type, fields.
  std::string frame();

 private:
  std::string bytes_;
};

struct Message {
  MessageType type{};
  std::string body;
};

/// Reads fields in the order in which they were written. After a read past the end, ok() is false and reads
/// return zeros.
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

/// Splits a stream of bytes into messages.
class FrameBuffer {
 public:
  void feed(const char* data, size_t size) { bytes_.append(data, size); }
  /// The next complete message. Sets `bad` if the stream is not one of ours.
  std::optional<Message> next(bool* bad);
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace ltrain
