// A tiny sharded state, and ranks as threads, for the checkpoint tests.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/store.h"
#include "runtime/checkpoint/writer.h"

namespace ltrain::test {

/// Changes one bit.
void flip_bit(const std::string& path, int64_t byte, int bit = 0);

/// Runs `body(rank, group)` on `world` threads; rethrows the first error.
void with_ranks(int world, const std::function<void(int, Communicator&)>& body);

/// How the tensors of the test state are cut among ranks.
enum class Slicing { flat, rows, columns, replicated_parts };

/// The value of element `i` of tensor `name` at `step`: what every save holds and every load is compared
/// with.
float expected_value(const std::string& name, int64_t step, int64_t i);

/// The slices of one rank, with the values of one step behind them.
class State {
 public:
  State(int rank, int world, Slicing cut);
  void fill(int64_t step);
  const std::vector<StateSlice>& slices() const { return slices_; }
  float* data(size_t i) { return values_[i].data(); }
  static const std::vector<std::pair<std::string, Shape>>& tensors();

 private:
  std::vector<StateSlice> slices_;
  std::vector<std::vector<float>> values_;
};

CheckpointInfo make_info(int64_t step);
CheckpointOptions sync_options(const std::string& folder, int64_t keep = 2);

/// One writer over `world` threads that saves the given steps.
void save_steps(const std::string& folder, int world, Slicing cut, const std::vector<int64_t>& steps,
                int64_t keep = 2);

/// Loads with one rank and compares every element; returns the step, or -1 for a fresh start. Throws what
/// open throws.
int64_t load_and_check(const std::string& folder, std::vector<std::string>& notes,
                       const std::string& resume = "auto");

/// Text of the Error that `body` throws, or "" when it throws none.
std::string error_of(const std::function<void()>& body);

}  // namespace ltrain::test
