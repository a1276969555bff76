// ltrain profile import of traces: matrix products of PyTorch's profiler and of Nsight Systems.
#include "runtime/machines/traced_products.h"
#include "base/json/json.h"

#include <fmt/format.h>
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "runtime/machines/builtin_profiles.h"
#include "runtime/machines/device_cost.h"
#include "runtime/machines/profile_file.h"
#include "runtime/machines/profile_import.h"

using namespace ltrain;
using Catch::Contains;
using nlohmann::json;

namespace {

/// A trace as torch.profiler writes it: ops of the host, what launches, kernels.
struct Trace {
  json root = {{"schemaVersion", 1},
               {"deviceProperties", {{{"id", 0}, {"name", "NVIDIA H100 80GB HBM3"}}}},
               {"traceEvents", json::array()}};
  double now = 1000;
  int correlation = 1;

  void event(const std::string& cat, const std::string& name, int tid, double ts, double us, json args) {
    root["traceEvents"].push_back({{"ph", "X"},
                                   {"cat", cat},
                                   {"name", name},
                                   {"pid", 7},
                                   {"tid", tid},
                                   {"ts", ts},
                                   {"dur", us},
                                   {"args", std::move(args)}});
  }
  /// Trace of thread `tid`, with kernels of the given microseconds, one after the other.
  void op(const std::string& name, const json& dims, const json& types, const std::vector<double>& kernels,
          int tid = 1, const std::string& kernel = "gemm", bool launches = true) {
    json args = {{"External id", 100 + correlation}};
    const int external = 100 + correlation;
    if (!dims.is_null()) args["Input Dims"] = dims, args["Input type"] = types;
    event("cpu_op", "aten::linear", tid, now - 2, 60, {{"External id", 1}});
    event("cpu_op", name, tid, now, 50, args);
    for (const double us : kernels) {
      // An external id of its own, as old profilers write: the place of the launch decides.
      if (launches)
        event("cuda_runtime", "cudaLaunchKernel", tid, now + 10, 5, {{"correlation", correlation}});
      event("kernel", kernel, 20, now + 5000, us,
            {{"correlation", correlation}, {"External id", launches ? correlation : external}});
      ++correlation;
    }
    now += 100;
  }
  std::string text() const { return root.dump(); }
};

const json kBf16 = {"c10::BFloat16", "c10::BFloat16", "c10::BFloat16"};

/// Microseconds on a card at this share of its peak.
double microseconds(double sustained, int64_t m, int64_t n, int64_t k, const std::string& type = "bf16") {
  DeviceProfile d = *find_builtin_device("h100");
  d.matmul.sustained.value = sustained;
  return 1e6 * DeviceCost(d, {}).matmul_seconds(type, 2.0 * m * n * k, m, n, k);
}

DeviceProfile imported(const std::string& text, const ImportOptions& options = {}) {
  return parse_device_profile(import_profile(text, "trace", options).yaml, "made.yaml");
}

std::string refused(const std::string& text, const ImportOptions& options = {}) {
  try {
    import_profile(text, "trace", options);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a trace of PyTorch has the products that launched kernels, with their sizes and types", "[plan]") {
  Trace t;
  t.op("aten::mm", {{512, 256}, {256, 1024}}, kBf16, {30});
  t.op("aten::addmm", {{1024}, {512, 256}, {256, 1024}, json::array()}, kBf16, {20, 5});  // two kernels
  t.op("aten::bmm", {{4, 64, 32}, {4, 32, 16}}, {"float", "float"}, {3}, 2);
  t.op("aten::mm", {{64, 32}, {32, 16}}, {"float", "float"}, {2}, 2, "cutlass_80_tensorop_s1688gemm_64x64");
  t.op("aten::_scaled_mm", {{64, 32}, {32, 16}}, {"c10::Float8_e4m3fn", "c10::Float8_e4m3fn"}, {1}, 1, "x",
       false);                                          // matched by its external id
  t.op("aten::mm", nullptr, nullptr, {9});              // without shapes
  t.op("aten::mm", {{64, 32}, {32, 16}}, kBf16, {});    // launched nothing
  t.op("aten::mul", {{64, 32}, {32, 16}}, kBf16, {5});  // not a matmul
  t.event("kernel", "other", 20, t.now, 50, {{"correlation", 9999}});
  TracedProducts p = products_of_pytorch_trace(t.text(), "trace");
  CHECK(p.card == "NVIDIA H100 80GB HBM3");
  CHECK(p.without_shapes == 1);
  std::vector<std::string> rows;
  for (const TracedProduct& x : p.products)
    rows.push_back(fmt::format("{} {} {} {} {} {:.0f}", x.type, x.batch, x.m, x.n, x.k, x.seconds * 1e6));
  std::sort(rows.begin(), rows.end());
  CHECK(rows == std::vector<std::string>{"bf16 1 512 1024 256 25", "bf16 1 512 1024 256 30",
                                         "f32 4 64 16 32 3", "fp8 1 64 16 32 1", "tf32 1 64 16 32 2"});
}

TEST_CASE("the rate of large products is taken from a trace, small ones are listed", "[plan]") {
  Trace t;
  for (const double off : {1.0, 0.5, 1.0, 3.0, 1.0})  // the median counts
    t.op("aten::mm", {{8192, 4096}, {4096, 14336}}, kBf16, {off * microseconds(0.7, 8192, 14336, 4096)});
  t.op("aten::mm", {{4096, 8192}, {8192, 4096}}, kBf16, {microseconds(0.7, 4096, 4096, 8192)});
  t.op("aten::mm", {{64, 4096}, {4096, 4096}}, kBf16, {1000});
  const DeviceProfile d = imported(t.text());
  CHECK(d.name == "h100-measured");
  CHECK(d.matmul.sustained.value == Approx(0.7).epsilon(1e-4));
  CHECK(d.matmul.sustained.source == FigureSource::measured);
  CHECK_THAT(d.matmul.sustained.reference, Contains("6 large matrix products of 2 shapes"));
  const std::string report = import_profile(t.text(), "trace").report;
  CHECK_THAT(report, Contains("- bf16  1 x 64 x 4096 x 4096") &&
                         Contains("\n  bf16  1 x 8192 x 14336 x 4096                      5    84.7 %") &&
                         Contains("matmul.sustained = 0.700 (built in: 0.803)"));
  // A trace of another card, by its name here or on the command line.
  CHECK(imported(t.text(), {"h200", ""}).name == "h200-measured");
  CHECK_THAT(refused(t.text(), {"h300", ""}),
             Contains("no profile of the card h300 is built in; --card must be"));
  Trace unknown = t;
  unknown.root["deviceProperties"][0]["name"] = "Q1";
  CHECK_THAT(refused(unknown.text()), Contains("no profile of the card \"Q1\" is built in"));
  unknown.root.erase("deviceProperties");
  CHECK_THAT(refused(unknown.text()), Contains("does not say of which card it is; --card must be one of"));
  CHECK(imported(unknown.text(), {"h100", ""}).matmul.sustained.value == Approx(0.7).epsilon(1e-4));
}

TEST_CASE("a trace that says nothing of a card's rate is refused with the reason", "[plan]") {
  CHECK_THAT(refused("\x1f\x8b\b\1"), Contains("is compressed; gunzip it first"));
  CHECK_THAT(refused(R"({"traceEvents": [)"), Contains("trace: not JSON: parse error at line 1"));
  CHECK_THAT(refused(R"({"traceEvents": []})"), Contains("a trace without kernels of a GPU"));
  CHECK_THAT(refused(R"({"traceEvents": )" + std::string(100'000, '[')), Contains("not JSON"));
  Trace shapeless;
  shapeless.op("aten::mm", nullptr, nullptr, {9});
  CHECK_THAT(refused(shapeless.text()), Contains("and 1 without; record_shapes=True records them"));
  Trace small;
  small.op("aten::mm", {{64, 4096}, {4096, 4096}}, kBf16, {1000});
  CHECK_THAT(refused(small.text()), Contains("none of its 1 products has 512 and more rows"));
  Trace fast;
  fast.op("aten::mm", {{8192, 8192}, {8192, 8192}}, kBf16, {0.8 * microseconds(1, 8192, 8192, 8192)});
  CHECK_THAT(refused(fast.text()), Contains("and the peak of h100 is 989.4: is it another card"));
  // Sizes from outside: too large, of other ranks, that do not meet.
  for (const json& dims : {json{{-8, 8}, {8, 8}}, json{{8, 8}, {9, 8}}, json{{8}, {8, 8}}, json{{8, 8}},
                           json{{4, 8, 8}, {5, 8, 8}}, json{{8, 1e30}, {8, 8}}, json{"x", 3},
                           json{{int64_t{1} << 40, 8}, {8, 8}}}) {
    Trace t;
    t.op("aten::mm", dims, kBf16, {9});
    CHECK(products_of_pytorch_trace(t.text(), "trace").products.empty());
    CHECK(products_of_pytorch_trace(t.text(), "trace").without_shapes == 1);
  }
}

TEST_CASE("a report of Nsight Systems has the products of ranges that PyTorch names", "[plan]") {
  const double us = microseconds(0.65, 8192, 8192, 8192);
  const std::string head =
      "Processing [x.sqlite] with [nvtx_kern_sum.py]...\n"
      "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),"
      "StdDev (ns),Kernel Name\n";
  const auto row = [](const std::string& range, int instances, double total_ns) {
    return fmt::format("\"{}\",PushPop,12,13,{},{},{:.0f},1,1,1,1,0,\"void gemm<a, b>(\"\"x\"\")\"\n", range,
                       instances, instances, total_ns);
  };
  const std::string product = ":aten::mm, seq = 5, op_id = 31, sizes = [[8192, 8192], [8192, 8192]]";
  const std::string text =
      head + row(":aten::linear, seq = 5, op_id = 30, sizes = [[8192, 8192], [8192, 8192], []]", 1, 9e9) +
      row(product, 1, us * 900) + row(product, 1, us * 100) +  // two kernels of one call
      row("aten::addmm, op_id = 32, sizes = [[64], [16, 32], [32, 64], [], []], input_op_ids = [(3,0)]", 2,
          8e3) +
      row(":aten::mm, seq = 7", 1, 5e3) + "\n";
  const TracedProducts p = products_of_nsight(text, "report.csv");
  REQUIRE(p.products.size() == 2);
  CHECK(p.without_shapes == 1);
  CHECK((p.products[0].m == 8192 && p.products[0].seconds == Approx(us * 1e-6).epsilon(1e-6)));
  CHECK((p.products[1].m == 16 && p.products[1].n == 64 && p.products[1].k == 32));
  CHECK(p.products[1].seconds == Approx(4e-6));
  CHECK(imported(text, {"h100", "bf16"}).matmul.sustained.value == Approx(0.65).epsilon(1e-4));
  CHECK_THAT(refused(text), Contains("does not say of which card it is"));
  CHECK_THAT(refused(text, {"h100", ""}),
             Contains("does not say of which type the products are; --type must be"));
  CHECK_THAT(refused(text, {"h100", "int4"}), Contains("products of type int4; --type must be one of bf16"));
  CHECK_THAT(refused("NVTX Range,TID\n", {"h100", "bf16"}), Contains("trace:1: has no column \"NVTX Inst\""));
  CHECK_THAT(refused(head + "a,b\n", {"h100", "bf16"}),
             Contains("trace:3: has 2 fields, and the head has 13"));
  CHECK_THAT(refused(head + row(product, 1, 1e15), {"h100", "bf16"}),
             Contains("trace:3: Total Time (ns) = 1"));
}
