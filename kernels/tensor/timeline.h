// Timeline of a run: every op and collective that a thread enqueues, with times on its stream, under the op
// names of plans.
//
// Only threads with a Timeline record times. On the CPU times come from the thread that runs the work. On a
// GPU they come from timing events before and after it: launches do not block, and gaps between kernels are
// slightly longer. GPU profilers (NVTX) get the names always.
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

/// Timeline of the thread that creates it, during its lifetime; one at a time.
class Timeline {
 public:
  struct Range {
    std::string_view name, layer, stream;  ///< valid as long as the timeline
    double start = 0, seconds = 0;         ///< seconds of the steady clock
    int64_t wire_bytes = 0;                ///< collectives: bytes that this rank sends
  };

  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  static Timeline* of_thread();  ///< null: no timeline

  /// Names the layer of the next ops.
  void enter(const std::string& layer) { layer_ = kept(layer); }
  /// All ranges in the order of enqueueing. Their streams must have been synchronized.
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
  int open_ = 0;  // open ranges
};

/// Suspends the timeline during its lifetime, for work that is captured now and runs later.
class TimelinePause {
 public:
  TimelinePause();
  ~TimelinePause();
  TimelinePause(const TimelinePause&) = delete;
  TimelinePause& operator=(const TimelinePause&) = delete;

 private:
  Timeline* paused_;
};

/// The work enqueued on a stream during its lifetime is one range called `name`. In a timeline, nested ops
/// are part of the outer range.
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

/// Names the layer of the next work: in plans, timelines and GPU profilers.
void enter_layer(Stream& s, const std::string& layer);

}  // namespace ltrain
