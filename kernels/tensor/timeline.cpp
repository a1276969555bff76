#include "kernels/tensor/timeline.h"

#include <chrono>

#include "base/error.h"
#include "base/progress.h"
#include "kernels/tensor/layer_prefix.h"
#include "kernels/tensor/micro_batch_overlap.h"

namespace ltrain {
namespace {

thread_local Timeline* timeline = nullptr;
thread_local std::string_view layer_prefix;

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Timeline::Timeline() {
  LT_CHECK(!timeline, "expected one timeline for each thread, got a second one");
  timeline = this;
}
Timeline::~Timeline() { timeline = nullptr; }

Timeline* Timeline::of_thread() { return timeline; }

std::vector<Timeline::Range> Timeline::ranges() const {
  std::vector<Range> all;
  for (const Entry& e : entries_) {
    if (!e.end) continue;  // its work threw
    all.push_back(e.range);
    all.back().start = e.begin->seconds();
    all.back().seconds = e.end->seconds() - all.back().start;
  }
  return all;
}

TimelinePause::TimelinePause() : paused_(timeline) { timeline = nullptr; }
TimelinePause::~TimelinePause() { timeline = paused_; }

OpRange::OpRange(Stream& s, std::string_view name, int64_t wire_bytes) : stream_(s), timeline_(timeline) {
  note_progress();
  stream_.open_range(name);
  if (!timeline_) return;
  outermost_ = timeline_->open_++ == 0;
  if (!outermost_) return;
  Timeline::Entry e;
  e.range.name = timeline_->kept(name);
  e.range.layer = timeline_->layer_;
  e.range.stream = timeline_->kept(s.name());
  e.range.wire_bytes = wire_bytes;
  e.begin = s.timestamp();
  place_ = timeline_->entries_.size();
  timeline_->entries_.push_back(std::move(e));
}

OpRange::~OpRange() {
  stream_.close_range();
  if (!timeline_) return;
  --timeline_->open_;
  if (!outermost_) return;
  try {
    timeline_->entries_[place_].end = stream_.timestamp();
  } catch (...) {  // the stream is broken; its next waiter gets the error
  }
}

LayerPrefix::LayerPrefix(std::string_view prefix) {
  LT_CHECK(layer_prefix.empty(), "expected one second model at a time, got {} within {}", prefix,
           layer_prefix);
  layer_prefix = prefix;
}

LayerPrefix::~LayerPrefix() { layer_prefix = {}; }

void enter_layer(Stream& s, const std::string& layer) {
  if (!layer_prefix.empty()) return name_layer(s, std::string(layer_prefix) + layer);
  if (s.overlap) s.overlap->enter(layer);
  name_layer(s, layer);
}

void name_layer(Stream& s, const std::string& layer) {
  s.enter_layer(layer);
  if (timeline) timeline->enter(layer);
}

}  // namespace ltrain
