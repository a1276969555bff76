// Runs a function on every rank of a group, each rank a thread, over one of the implementations.
#pragma once
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/communicator_gloo.h"
#include "parallel/shm/communicator_shm.h"

namespace ltrain::test {

enum class Kind { in_process, gloo, shm };
inline const char* kind_name(Kind k) {
  return k == Kind::gloo ? "gloo" : k == Kind::shm ? "shm" : "in-process";
}

/// Error of each rank; empty if it returned.
inline std::vector<std::string> try_ranks(Kind kind, int size,
                                          const std::function<void(Communicator&, Stream&)>& body,
                                          double timeout = 20) {
  std::vector<std::unique_ptr<Communicator>> in_process;
  if (kind == Kind::in_process) in_process = make_in_process_group(size, "test", Axis::data, {timeout});
  auto store = make_memory_store();
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        std::unique_ptr<Communicator> group;
        if (kind == Kind::in_process)
          group = std::move(in_process[r]);
        else if (kind == Kind::shm)
          // Small slots: several chunks and lanes of odd sizes without large tensors.
          group = make_shm_group(store, "test", r, size, "test", Axis::data, {timeout, 20, 4096, 4096, -1});
        else
          group = make_gloo_group(make_gloo_transport("127.0.0.1"), store, "test", r, size, "test",
                                  Axis::data, {timeout, 20, 20, 64 << 10});
        auto stream = make_inline_stream("test");
        body(*group, *stream);
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}

inline void on_ranks(Kind kind, int size, const std::function<void(Communicator&, Stream&)>& body) {
  for (const std::string& e : try_ranks(kind, size, body))
    if (!e.empty()) throw std::runtime_error(e);
}

template <class T>
Tensor tensor(std::vector<T>& v, Shape shape) {
  return {v.data(), dtype_of<T>::value, DeviceKind::cpu, shape, nullptr};
}
template <class T>
Tensor tensor(std::vector<T>& v) {
  return tensor(v, Shape{static_cast<int64_t>(v.size())});
}

/// A value that differs with rank and index, and whose sums round in f32 and bf16.
inline double value(int rank, int64_t i) {
  uint64_t h = (static_cast<uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15ull +
               static_cast<uint64_t>(i) * 0xd1b54a32d192ed03ull;
  h ^= h >> 29, h *= 0xbf58476d1ce4e5b9ull, h ^= h >> 32;
  return static_cast<double>(static_cast<int64_t>(h % 2000003) - 1000001) / 997.0;
}
template <class T>
std::vector<T> values(int rank, int64_t n) {
  std::vector<T> v;
  for (int64_t i = 0; i < n; ++i) v.push_back(static_cast<T>(static_cast<float>(value(rank, i))));
  return v;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace ltrain::test
