#include "parallel/comm/host_collectives.h"

#include <algorithm>
#include <cstring>

namespace ltrain {

namespace {

Tensor as_tensor(void* data, DType dtype, size_t size) {
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.shape = Shape{static_cast<int64_t>(size)};
  return t;
}
Tensor as_tensor(std::vector<int64_t>& v) { return as_tensor(v.data(), DType::i64, v.size()); }

}  // namespace

std::vector<std::string> gather_texts(Communicator& group, Stream& stream, const std::string& mine) {
  const size_t n = static_cast<size_t>(group.size());
  if (n == 1) return {mine};
  const std::vector<int64_t> sizes = gather_numbers(group, stream, {static_cast<int64_t>(mine.size())});
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  const size_t words = static_cast<size_t>(longest / 8 + 1);
  std::vector<int64_t> in(words);
  std::memcpy(in.data(), mine.data(), mine.size());
  const std::vector<int64_t> out = gather_numbers(group, stream, std::move(in));
  std::vector<std::string> texts;
  for (size_t r = 0; r < n; ++r)
    texts.emplace_back(reinterpret_cast<const char*>(out.data() + r * words), static_cast<size_t>(sizes[r]));
  return texts;
}

std::vector<int64_t> gather_numbers(Communicator& group, Stream& stream, std::vector<int64_t> mine) {
  if (group.size() == 1) return mine;
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(group.size()));
  group.all_gather(stream, as_tensor(all), as_tensor(mine));
  stream.synchronize();
  return all;
}

std::string broadcast_text(Communicator& group, Stream& stream, const std::string& mine) {
  if (group.size() == 1) return mine;
  std::vector<int64_t> size{static_cast<int64_t>(mine.size())};
  group.broadcast(stream, as_tensor(size), 0);
  stream.synchronize();
  std::vector<int64_t> words(static_cast<size_t>(size[0] / 8 + 1));
  if (group.rank() == 0) std::memcpy(words.data(), mine.data(), mine.size());
  group.broadcast(stream, as_tensor(words), 0);
  stream.synchronize();
  return std::string(reinterpret_cast<const char*>(words.data()), static_cast<size_t>(size[0]));
}

void sum_over(Communicator& group, Stream& stream, std::vector<int64_t>& values) {
  if (group.size() == 1 || values.empty()) return;
  group.all_reduce(stream, as_tensor(values));
  stream.synchronize();
}

int64_t sum_over(Communicator& group, Stream& stream, int64_t mine) {
  std::vector<int64_t> v{mine};
  sum_over(group, stream, v);
  return v[0];
}

double sum_over(Communicator& group, Stream& stream, double mine) {
  if (group.size() == 1) return mine;
  group.all_reduce(stream, as_tensor(&mine, DType::f64, 1));
  stream.synchronize();
  return mine;
}

std::vector<int64_t> max_over(Communicator& group, Stream& stream, std::vector<int64_t> mine) {
  if (group.size() == 1) return mine;
  group.all_reduce(stream, as_tensor(mine), ReduceOp::max);
  stream.synchronize();
  return mine;
}

}  // namespace ltrain
