// One rendering of a template: its limits, and the line that is being rendered.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace ltrain::chat {

/// Limits that end a hostile template with an error. Bytes and steps are sums over one rendering.
struct JinjaLimits {
  size_t template_bytes = size_t{1} << 20;  ///< source of the template
  size_t output_bytes = size_t{64} << 20;   ///< the output, and each string on the way to it
  uint64_t all_bytes = uint64_t{1} << 30;   ///< bytes of all strings and lists made by the template
  uint64_t steps = 20'000'000;              ///< expressions, statements and list items
};

inline constexpr int kMaxJinjaNesting = 150;    ///< levels of expressions and statements in the source
inline constexpr int kMaxJinjaDepth = 600;      ///< levels of evaluation, macro calls included
inline constexpr int kMaxJinjaDataDepth = 150;  ///< levels of lists and mappings inside each other

/// An object that may refer to itself.
class Kept {
 public:
  virtual ~Kept() = default;
  virtual void clear() = 0;  ///< drops what it refers to
};

/// State of one rendering. Not thread-safe.
class Session {
 public:
  Session(const std::string& template_name, const JinjaLimits& limits)
      : limits_(limits), name_(template_name) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Throws Error (data): "NAME:LINE: TEXT".
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw Error(ExitCode::data,
                fmt::format("{}:{}: {}", name_, line, fmt::format(text, std::forward<Args>(args)...)));
  }

  /// Counts steps of work. Throws Error at the limit.
  void step(uint64_t count = 1) {
    if (count > limits_.steps - steps_) fail("the template takes more than {} steps", limits_.steps);
    steps_ += count;
  }
  /// Counts bytes of strings and lists. Throws Error at the limit.
  void allocate(uint64_t bytes) {
    if (bytes > limits_.all_bytes - bytes_)
      fail("the template makes more than {} bytes of strings and lists", limits_.all_bytes);
    bytes_ += bytes;
    step(bytes / 256);
  }
  /// Throws Error if a string of `bytes` bytes is longer than the output may be.
  void check_text(size_t bytes) const {
    if (bytes > limits_.output_bytes)
      fail("the template makes a text of more than {} bytes", limits_.output_bytes);
  }

  /// Objects that templates can make refer to themselves. They are emptied when the rendering ends.
  void keep(std::shared_ptr<Kept> object) { kept_.push_back(std::move(object)); }
  ~Session() {
    for (const auto& object : kept_) object->clear();
  }

  std::string date = "2024-07-26";  ///< strftime_now(), YYYY-MM-DD
  int line = 1;                     ///< line of the template that is being rendered
  uint32_t generations = 0;         ///< generation blocks so far

 private:
  friend class Deeper;
  const JinjaLimits limits_;
  const std::string& name_;
  uint64_t steps_ = 0, bytes_ = 0;
  std::vector<std::shared_ptr<Kept>> kept_;
  int depth_ = 0;
};

/// Counts levels of recursion while it lives. Throws Error at kMaxJinjaDepth.
class Deeper {
 public:
  explicit Deeper(Session& session) : session_(session) {
    if (session_.depth_ >= kMaxJinjaDepth)
      session_.fail("expressions and macro calls are nested deeper than {} levels", kMaxJinjaDepth);
    ++session_.depth_;
  }
  ~Deeper() { --session_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Session& session_;
};

}  // namespace ltrain::chat
