// What ran when: every op and collective that a thread enqueues, with the times of its stream, under the
// names that plans have for it.
//
// Nothing is timed unless the calling thread has a Timeline. On the CPU times are those of the thread that
// runs the work; on a GPU they come from timing events before and after it, so that launches wait for nobody
// and gaps between kernels are a little longer than without. Apart from that a GPU's tools (NVTX) are always
// told the names.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// Seconds of the steady clock.
double steady_seconds();

/// Of the thread that makes it, while it lives; one at a time.
class Timeline {
 public:
  struct Range {
    std::string_view name, layer, stream;  ///< valid as long as the timeline
    double start = 0, seconds = 0;         ///< of the steady clock
    int64_t wire_bytes = 0;                ///< collectives: that this rank sends
  };

  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  static Timeline* of_thread();  ///< null: nothing is timed

  /// Names the layer of what comes.
  void enter(const std::string& layer) { layer_ = kept(layer); }
  /// In the order in which they were enqueued. Their streams have been synchronized.
  std::vector<Range> ranges() const;

 private:
  friend class OpRange;
  struct Entry {
    Range range;
    std::shared_ptr<Timestamp> begin, end;
  };
  std::string_view kept(std::string_view text) { return *names_.emplace(text).first; }

  std::set<std::string, std::less<>> names_;
  std::string_view layer_;
  std::vector<Entry> entries_;
  int open_ = 0;  // ranges
};

/// Nothing is timed while it lives: for work that is recorded now and runs later.
class TimelinePause {
 public:
  TimelinePause();
  ~TimelinePause();
  TimelinePause(const TimelinePause&) = delete;
  TimelinePause& operator=(const TimelinePause&) = delete;

 private:
  Timeline* paused_;
};

/// The work that is enqueued on a stream while it lives is one range, called `name`. In a timeline an op that
/// another calls is part of it.
class OpRange {
 public:
  OpRange(Stream& s, std::string_view name, int64_t wire_bytes = 0);
  ~OpRange();
  OpRange(const OpRange&) = delete;
  OpRange& operator=(const OpRange&) = delete;

 private:
  Stream& stream_;
  Timeline* timeline_;
  bool outermost_ = false;
  size_t place_ = 0;
};

/// Names the layer of what is enqueued next: in plans, timelines and a GPU's tools.
void enter_layer(Stream& s, const std::string& layer);

}  // namespace ltrain
