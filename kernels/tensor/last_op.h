// The op that a thread enqueued last on a GPU. An error that shows now was caused by it or by an op shortly
// before.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/tensor/dtype.h"

namespace ltrain {

/// Sizes, types and numbers of a kernel call. Every launch stores them unformatted; text() formats them after
/// a failure.
class OpArguments {
 public:
  OpArguments() = default;
  /// `parameters`: declarations of the values, text that outlives the object: "DType t, void* y, int64_t n".
  /// Pointers are skipped. A struct contributes the values that its sizes(f) passes to f(name, number).
  template <class... P>
  explicit OpArguments(const char* parameters, const P&... values) : parameters_(parameters) {
    int place = 0;
    (take(place++, values), ...);
  }
  void add(const char* name, int64_t whole) { keep({name, -1, Kind::whole, whole, 0}); }
  void add(const char* name, DType t) { keep({name, -1, Kind::dtype, static_cast<int64_t>(t), 0}); }
  void add(const char* name, double real) { keep({name, -1, Kind::real, 0, real}); }

  /// "t = bf16, n = 4096"
  std::string text() const;

 private:
  enum class Kind : uint8_t { whole, real, dtype };
  struct Value {
    const char* name = nullptr;  ///< null: name of the parameter
    int place = 0;
    Kind kind = Kind::whole;
    int64_t whole = 0;
    double real = 0;
  };
  template <class T>
  void take(int place, const T& value) {
    if constexpr (std::is_same_v<T, DType>)
      keep({nullptr, place, Kind::dtype, static_cast<int64_t>(value), 0});
    else if constexpr (std::is_integral_v<T>)
      keep({nullptr, place, Kind::whole, static_cast<int64_t>(value), 0});
    else if constexpr (std::is_floating_point_v<T>)
      keep({nullptr, place, Kind::real, 0, static_cast<double>(value)});
    else if constexpr (requires { value.sizes([](const char*, int64_t) {}); })
      value.sizes([this](const char* name, int64_t whole) { add(name, whole); });
  }
  void keep(const Value& v) {
    if (count_ < values_.size()) values_[count_++] = v;
  }
  const char* parameters_ = "";
  size_t count_ = 0;
  std::array<Value, 16> values_;
};

/// Arguments of a matmul m x k by k x n.
OpArguments product_arguments(DType type, int64_t m, int64_t n, int64_t k);

class LastOp {
 public:
  static LastOp& of_thread();
  void open(std::string_view name, std::string_view stream);  ///< without arguments yet
  void enter_layer(std::string_view layer);
  void note(const OpArguments& arguments) { arguments_ = arguments; }
  /// "matmul_nt (type = bf16, m = 4096, n = 768, k = 768) of layers.3.mlp on the stream compute"; "" if there
  /// was no op.
  std::string text() const;

 private:
  char name_[64] = "", layer_[64] = "", stream_[32] = "";
  OpArguments arguments_;
};

}  // namespace ltrain
