#include "kernels/tensor/last_op.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <vector>

namespace ltrain {
namespace {

template <size_t N>
void copy(char (&to)[N], std::string_view from) {
  const size_t n = std::min(N - 1, from.size());
  std::memcpy(to, from.data(), n);
  to[n] = 0;
}

/// Parameter names of "DType t, const void* y, int64_t n": t, y, n.
std::vector<std::string_view> names_of(std::string_view parameters) {
  std::vector<std::string_view> names;
  int depth = 0;  // depth of <>
  size_t begin = 0;
  for (size_t i = 0; i <= parameters.size(); ++i) {
    const char c = i < parameters.size() ? parameters[i] : ',';
    depth += (c == '<') - (c == '>');
    if (c != ',' || depth != 0) continue;
    const std::string_view one = parameters.substr(begin, i - begin);
    const size_t space = one.find_last_of(" *&");
    names.push_back(space == std::string_view::npos ? one : one.substr(space + 1));
    begin = i + 1;
  }
  return names;
}

}  // namespace

std::string OpArguments::text() const {
  const std::vector<std::string_view> names = names_of(parameters_);
  std::string out;
  for (size_t i = 0; i < count_; ++i) {
    const Value& v = values_[i];
    const std::string_view name = v.name                                        ? std::string_view(v.name)
                                  : static_cast<size_t>(v.place) < names.size() ? names[v.place]
                                                                                : "?";
    out += fmt::format("{}{} = ", out.empty() ? "" : ", ", name);
    if (v.kind == Kind::dtype)
      out += dtype_name(static_cast<DType>(v.whole));
    else if (v.kind == Kind::whole)
      out += fmt::format("{}", v.whole);
    else
      out += fmt::format("{:g}", v.real);
  }
  return out;
}

OpArguments product_arguments(DType type, int64_t m, int64_t n, int64_t k) {
  OpArguments sizes;
  sizes.add("type", type);
  sizes.add("m", m);
  sizes.add("n", n);
  sizes.add("k", k);
  return sizes;
}

LastOp& LastOp::of_thread() {
  thread_local LastOp last;
  return last;
}

void LastOp::open(std::string_view name, std::string_view stream) {
  copy(name_, name);
  copy(stream_, stream);
  arguments_ = OpArguments();
}

void LastOp::enter_layer(std::string_view layer) { copy(layer_, layer); }

std::string LastOp::text() const {
  if (!*name_) return "";
  const std::string arguments = arguments_.text();
  return fmt::format("{}{}{}{} on the stream {}", name_, arguments.empty() ? "" : " (" + arguments + ")",
                     *layer_ ? " of " : "", layer_, stream_);
}

}  // namespace ltrain
