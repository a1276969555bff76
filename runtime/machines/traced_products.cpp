#include "runtime/machines/traced_products.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"

namespace ltrain {
namespace {

using nlohmann::json;
using Dims = std::vector<std::vector<int64_t>>;

constexpr int64_t kMostOfADim = int64_t{1} << 32;
constexpr double kMostSeconds = 3600;

/// Index of the first operand among an op's arguments; -1: not a matmul.
int first_operand(std::string_view op) {
  if (op == "aten::mm" || op == "aten::bmm" || op == "aten::_scaled_mm") return 0;
  if (op == "aten::addmm" || op == "aten::baddbmm") return 1;
  return -1;
}

/// Matmul with operands [batch,] m x k and [batch,] k x n; m is 0 for other shapes.
TracedProduct product_of(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  TracedProduct p;
  const size_t d = a.size();
  if ((d != 2 && d != 3) || b.size() != d || a[d - 1] != b[d - 2] || (d == 3 && a[0] != b[0])) return p;
  for (const auto* operand : {&a, &b})
    for (const int64_t size : *operand)
      if (size < 1 || size > kMostOfADim) return p;
  p.batch = d == 3 ? a[0] : 1;
  p.m = a[d - 2], p.k = a[d - 1], p.n = b[d - 1];
  if (p.flops() > 1e24) p.m = 0;
  return p;
}

TracedProduct product_of(const Dims& dims, int first) {
  const auto at = static_cast<size_t>(first);
  return dims.size() < at + 2 ? TracedProduct() : product_of(dims[at], dims[at + 1]);
}

std::string type_of(const std::string& torch_name) {
  if (torch_name == "c10::BFloat16") return "bf16";
  if (torch_name == "c10::Half") return "f16";
  if (torch_name == "float") return "f32";
  if (torch_name == "double") return "f64";
  return torch_name.rfind("c10::Float8", 0) == 0 ? "fp8" : "";
}

bool is_tf32(const std::string& kernel) {
  return kernel.find("tf32") != std::string::npos || kernel.find("s1688gemm") != std::string::npos;
}

/// An op of a host thread, in microseconds of the trace.
struct HostOp {
  double start = 0, end = 0;
  int64_t external = -1;
  TracedProduct product;  ///< m is 0: without shapes
  bool tf32 = false;      ///< from the name of one of its kernels
};

/// Processes the events of a trace one by one, so that memory depends only on the events that are kept.
class TraceReader {
 public:
  void take(const json& e) {
    if (!e.is_object() || text(e, "ph") != "X") return;
    const std::string category = text(e, "cat"), name = text(e, "name");
    const json none = json::object();
    const auto found = e.find("args");
    const json& args = found != e.end() && found->is_object() ? *found : none;
    const double start = number(e, "ts"), duration = number(e, "dur");
    if (category == "cpu_op") {
      if (first_operand(name) >= 0) take_op(e, args, name, start, duration);
    } else if (category == "cuda_runtime" || category == "cuda_driver") {
      if (const int64_t correlation = whole(args, "correlation"); correlation >= 0)
        launches_[correlation] = {whole(e, "tid"), start};
    } else if (category == "kernel" && duration >= 0 && duration * 1e-6 < kMostSeconds) {
      kernels_.push_back(
          {is_tf32(name), whole(args, "correlation"), whole(args, "External id"), duration * 1e-6});
    }
  }

  TracedProducts finish(std::string card) {
    std::map<int64_t, HostOp*> by_external;
    for (auto& [thread, ops] : ops_) {
      std::sort(ops.begin(), ops.end(), [](const HostOp& a, const HostOp& b) { return a.start < b.start; });
      for (HostOp& op : ops) by_external[op.external] = &op;
    }
    for (const Kernel& k : kernels_) {
      HostOp* op = nullptr;
      if (const auto launch = launches_.find(k.correlation); launch != launches_.end())
        op = running(launch->second.thread, launch->second.start);
      else if (const auto it = by_external.find(k.external); it != by_external.end())
        op = it->second;  // a trace without launch calls
      if (!op) continue;
      op->product.seconds += k.seconds;
      op->tf32 |= k.tf32;
    }
    TracedProducts all;
    all.card = std::move(card);
    for (auto& [thread, ops] : ops_)
      for (HostOp& op : ops) {
        if (op.product.seconds <= 0) continue;
        if (op.product.m == 0) {
          ++all.without_shapes;
          continue;
        }
        if (op.product.type == "f32" && op.tf32) op.product.type = "tf32";
        all.products.push_back(op.product);
      }
    return all;
  }

  size_t kernels() const { return kernels_.size(); }

 private:
  struct Launch {
    int64_t thread = -1;
    double start = 0;
  };
  struct Kernel {
    bool tf32 = false;
    int64_t correlation = -1, external = -1;
    double seconds = 0;
  };

  static std::string text(const json& e, const char* key) {
    const auto it = e.find(key);
    return it != e.end() && it->is_string() ? it->get<std::string>() : "";
  }
  static double number(const json& e, const char* key) {
    const auto it = e.find(key);
    return it != e.end() && it->is_number() ? it->get<double>() : -1;
  }
  static int64_t whole(const json& e, const char* key) {
    const auto it = e.find(key);
    return it != e.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
  }

  void take_op(const json& e, const json& args, const std::string& name, double start, double duration) {
    HostOp op;
    op.start = start;
    op.end = start + std::max(0.0, duration);
    op.external = whole(args, "External id");
    const int first = first_operand(name);
    const auto types = args.find("Input type");
    if (const auto sizes = args.find("Input Dims"); sizes != args.end() && sizes->is_array()) {
      Dims dims;
      for (const json& d : *sizes) {
        dims.emplace_back();
        if (!d.is_array()) continue;
        for (const json& size : d) dims.back().push_back(size.is_number_integer() ? size.get<int64_t>() : 0);
      }
      op.product = product_of(dims, first);
    }
    const auto at = static_cast<size_t>(first);
    if (types != args.end() && types->is_array() && types->size() > at && (*types)[at].is_string())
      op.product.type = type_of((*types)[at].get<std::string>());
    ops_[whole(e, "tid")].push_back(std::move(op));
  }

  /// The op that a thread runs at `time`.
  HostOp* running(int64_t thread, double time) {
    const auto it = ops_.find(thread);
    if (it == ops_.end()) return nullptr;
    auto after = std::upper_bound(it->second.begin(), it->second.end(), time,
                                  [](double t, const HostOp& op) { return t < op.start; });
    if (after == it->second.begin()) return nullptr;
    HostOp& op = *std::prev(after);
    return time <= op.end ? &op : nullptr;
  }

  std::map<int64_t, std::vector<HostOp>> ops_;  ///< key: thread
  std::map<int64_t, Launch> launches_;          ///< key: correlation
  std::vector<Kernel> kernels_;
};

/// Fields of a CSV line. Quoted fields may contain commas.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
      out.back() += line[++i];
    else if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      out.emplace_back();
    else if (c != '\r')
      out.back() += c;
  }
  return out;
}

/// ":aten::addmm, seq = 5, op_id = 3, sizes = [[512], [256, 128], [128, 512]], input_op_ids = ..."
TracedProduct product_of_range(const std::string& range, bool& is_product) {
  const size_t begin = range.rfind(':', 0) == 0 ? 1 : 0, comma = range.find(", ", begin);
  const int first = first_operand(std::string_view(range).substr(begin, comma - begin));
  is_product = first >= 0;
  constexpr std::string_view kSizes = "sizes = ";
  const size_t at = range.find(kSizes);
  if (!is_product || at == std::string::npos) return {};
  Dims dims;
  int depth = 0;
  int64_t size = -1;
  for (size_t i = at + kSizes.size(); i < range.size(); ++i) {
    const char c = range[i];
    if (c >= '0' && c <= '9') {
      size = std::min(kMostOfADim + 1, std::max<int64_t>(size, 0) * 10 + (c - '0'));
      continue;
    }
    if (size >= 0 && depth == 2) dims.back().push_back(size);
    size = -1;
    if (c == '[' && ++depth == 2) dims.emplace_back();
    if (c == ']' && --depth == 0) break;
  }
  return product_of(dims, first);
}

}  // namespace

TracedProducts products_of_pytorch_trace(const std::string& text, const std::string& file) {
  TraceReader reader;
  std::string list, card;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == 1) list = value.get<std::string>();
    if (event != json::parse_event_t::object_end || depth != 2) return depth < 32;
    if (list == "traceEvents") reader.take(value);
    if (list == "deviceProperties" && card.empty())
      if (const auto name = value.find("name"); name != value.end() && name->is_string())
        card = name->get<std::string>();
    return false;  // not kept
  };
  try {
    [[maybe_unused]] const json rest = json::parse(text, watch);
  } catch (const json::exception& e) {
    std::string why = e.what();
    if (const size_t end = why.find("] "); end != std::string::npos) why = why.substr(end + 2);
    fail(ExitCode::usage, "{}: not JSON: {}", printable(file), printable(why, 200));
  }
  if (reader.kernels() == 0)
    fail(ExitCode::usage,
         "{}: a trace without kernels of a GPU; torch.profiler writes them with ProfilerActivity.CUDA",
         printable(file));
  return reader.finish(std::move(card));
}

bool is_nsight_report(const std::string& text) {
  return text.substr(0, 4096).find("NVTX Range,") != std::string::npos;
}

TracedProducts products_of_nsight(const std::string& text, const std::string& file) {
  std::istringstream lines(text);
  std::string line;
  std::map<std::string, size_t> column;
  std::map<std::string, TracedProduct> ranges;  // all kernels of a range, keyed by its name and thread
  TracedProducts all;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::vector<std::string> fields = fields_of(line);
    if (column.empty()) {
      if (fields.empty() || fields[0] != "NVTX Range") continue;  // nsys writes other lines first
      for (size_t i = 0; i < fields.size(); ++i) column[fields[i]] = i;
      for (const char* needed : {"NVTX Inst", "Total Time (ns)", "TID"})
        if (!column.count(needed))
          fail(ExitCode::usage, "{}:{}: has no column \"{}\", as `nsys stats --report nvtx_kern_sum` writes",
               printable(file), number, needed);
      continue;
    }
    if (fields.size() != column.size()) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) break;  // the end of the report
      fail(ExitCode::usage, "{}:{}: has {} fields, and the head has {}", printable(file), number,
           fields.size(), column.size());
    }
    bool is_product = false;
    TracedProduct p = product_of_range(fields[0], is_product);
    if (!is_product) continue;
    const std::string& total = fields[column.at("Total Time (ns)")];
    char* end = nullptr;
    const double ns = std::strtod(total.c_str(), &end);
    if (end == total.c_str() || *end != '\0' || !(ns >= 0) || ns * 1e-9 > kMostSeconds)
      fail(ExitCode::usage, "{}:{}: Total Time (ns) = {}: must be a number of nanoseconds, at most an hour",
           printable(file), number, printable(total, 40));
    const double instances = std::max(1.0, std::strtod(fields[column.at("NVTX Inst")].c_str(), nullptr));
    if (p.m == 0) {
      ++all.without_shapes;
      continue;
    }
    TracedProduct& sum = ranges.try_emplace(fields[0] + fields[column.at("TID")], p).first->second;
    sum.seconds += ns * 1e-9 / instances;
  }
  if (column.empty())
    fail(ExitCode::usage, "{}: has no line that begins with \"NVTX Range\"", printable(file));
  for (const auto& [range, p] : ranges)
    if (p.seconds > 0) all.products.push_back(p);
  return all;
}

}  // namespace ltrain
