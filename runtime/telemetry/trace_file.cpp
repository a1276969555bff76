#include "runtime/telemetry/trace_file.h"

#include <algorithm>

#include "base/error.h"
#include "base/json/json.h"

namespace ltrain {
namespace {

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

}  // namespace

std::string chrome_trace(const std::string& process, int rank, int ranks, double origin,
                         const std::vector<TraceSlice>& slices) {
  std::string out = fmt::format(
      "{{\"schemaVersion\":1,\"distributedInfo\":{{\"rank\":{},\"world_size\":{}}},\"displayTimeUnit\":"
      "\"ms\",\"traceEvents\":[\n"
      "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"name\":{}}}}},\n"
      "{{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"sort_index\":{}}}}}",
      rank, ranks, rank, json_text(process), rank, rank);
  std::vector<std::string_view> streams;
  for (const TraceSlice& e : slices) {
    const auto at = std::find(streams.begin(), streams.end(), e.stream);
    const auto thread = at - streams.begin();
    if (at == streams.end()) {
      streams.push_back(e.stream);
      out += fmt::format(
          ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", rank,
          thread, json_text(e.stream));
    }
    out += fmt::format(
        ",\n{{\"name\":{},\"cat\":{},\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":{},\"tid\":{},"
        "\"args\":{{\"layer\":{}",
        json_text(e.name), json_text(e.category), (e.start - origin) * 1e6, e.seconds * 1e6, rank, thread,
        json_text(e.layer));
    for (const auto& [key, value] :
         {std::pair{"flops", e.flops}, {"bytes", e.bytes}, {"wire_bytes", e.wire_bytes}})
      if (value > 0) out += fmt::format(",\"{}\":{}", key, value);
    out += "}}";
  }
  return out + "\n]}\n";
}

}  // namespace ltrain
