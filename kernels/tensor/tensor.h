// A non-owning view of memory: pointer, element type, shape, device. Arenas own memory.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/tensor/dtype.h"

namespace ltrain {

enum class DeviceKind : uint8_t { cpu, cuda, meta };

/// Up to five dims, row-major, contiguous.
struct Shape {
  std::array<int64_t, 5> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> d) {
    LT_CHECK(d.size() <= 5, "expected a tensor of at most 5 dims, got {}", d.size());
    for (int64_t v : d) dims[rank++] = v;
  }
  int64_t operator[](int i) const { return dims[i < 0 ? rank + i : i]; }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  bool operator==(const Shape& o) const {
    if (rank != o.rank) return false;
    for (int i = 0; i < rank; ++i)
      if (dims[i] != o.dims[i]) return false;
    return true;
  }
};

std::string to_string(const Shape& shape);  ///< "[4, 256]"

struct TensorRecord;  // kernels/meta/meta.h: data of a tensor on the meta device

struct Tensor {
  void* data = nullptr;  ///< null on meta
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  Shape shape;
  TensorRecord* record = nullptr;  ///< meta only

  int64_t elements() const { return shape.elements(); }
  int64_t bytes() const { return elements() * dtype_size(dtype); }
  int64_t rows() const {
    return shape.rank == 0 ? 1 : elements() / shape[-1];
  }  ///< product of all dims but the last
  int64_t cols() const { return shape[-1]; }
  bool defined() const { return data != nullptr || record != nullptr; }

  template <class T>
  T* ptr() const {
    LT_CHECK(dtype_of<T>::value == dtype, "expected a tensor of {}, got {}", dtype_name(dtype_of<T>::value),
             dtype_name(dtype));
    return static_cast<T*>(data);
  }
  /// The same elements under another shape.
  Tensor view(Shape s) const {
    LT_CHECK(s.elements() == elements(), "expected a view of {} elements of {}, got shape {}", elements(),
             to_string(shape), to_string(s));
    Tensor t = *this;
    t.shape = s;
    return t;
  }
  /// `count` consecutive elements from flat element `begin`, as shape `s`.
  Tensor flat(int64_t begin, Shape s) const {
    LT_CHECK(begin >= 0 && begin + s.elements() <= elements(),
             "expected a flat slice within the {} elements of {}, got {} elements from {} on", elements(),
             to_string(shape), s.elements(), begin);
    Tensor t = *this;
    t.shape = s;
    if (data) t.data = static_cast<char*>(data) + begin * dtype_size(dtype);
    return t;
  }
  /// Rows [begin, begin+n) of dim 0.
  Tensor narrow(int64_t begin, int64_t n) const {
    Shape s = shape;
    s.dims[0] = n;
    return flat(begin * (elements() / shape[0]), s);
  }
};

}  // namespace ltrain
