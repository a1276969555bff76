// Order of the samples of one source, whose token files are shuffled window by window.
//
// Window k of an epoch has the files [k*N, k*N + N) of the source, in their order, with N = the window's
// length. Draw j of the source is in the epoch and window that the numbers of samples of the files before
// give, and its sample is shuffled among all samples of the window. Later files have no part in that, so that
// they may not exist yet. The order is a function of seed, source, window length and files alone. A source of
// one window has the order of drawn_sample().
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace ltrain::data {

class WindowOrder {
 public:
  /// `files` of source number `source`, at least 1. `window`: files of a window; 0: all.
  WindowOrder(int source, int64_t files, int64_t window, uint64_t seed, bool shuffle);

  /// Adds the number of samples of the next file, which may be 0.
  void add(int64_t samples);
  int64_t known_files() const { return static_cast<int64_t>(before_.size()) - 1; }
  bool knows_all() const { return known_files() == files_; }
  int64_t known_samples() const { return before_.back(); }

  struct Place {
    int64_t file = 0, sample = 0;  ///< sample of the file
    int64_t epoch = 0;
    int64_t in_source = 0;  ///< number of the sample in the source
  };
  /// Place of a draw, at least 0; nothing if it depends on files that were not added yet. All files together
  /// must have a sample.
  std::optional<Place> find(int64_t draw) const;

 private:
  int source_;
  int64_t files_, window_;
  uint64_t seed_;
  bool shuffle_;
  std::vector<int64_t> before_{0};  // samples before each known file, and of all of them
};

}  // namespace ltrain::data
