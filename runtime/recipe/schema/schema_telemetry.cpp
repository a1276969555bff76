// Keys of metrics and messages for other programs.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_telemetry_keys(std::vector<Key>& t) {
  t.push_back(
      text("telemetry.prometheus", LT_MEMBER(telemetry.prometheus),
           "Prometheus text file that rank 0 rewrites at each log line, e.g. for the textfile collector of "
           "node_exporter; its name ends in .prom."));
  t.push_back(
      integer("telemetry.prometheus_port", LT_MEMBER(telemetry.prometheus_port),
              "Port of rank 0's host at which http://HOST:PORT/metrics has the same text, for a server "
              "that collects it. 0: none.")
          .between(0, 65535));
  t.push_back(text("telemetry.on_end", LT_MEMBER(telemetry.on_end),
                   "Shell command that is run when the job has ended or failed, with a JSON object on its "
                   "standard input. Its failure is a warning."));
  t.push_back(
      number("telemetry.on_end_seconds", LT_MEMBER(telemetry.on_end_seconds),
             "Seconds after which on_end is killed.")
          .when("telemetry.on_end", true, [](const Recipe& r) { return r.telemetry.on_end.has_value(); })
          .above(0)
          .between(0, 3600));
  t.push_back(text(
      "telemetry.on_save", LT_MEMBER(telemetry.on_save),
      "Shell command that is run for each saved checkpoint, with its path as $1 and its step as $2, while "
      "training continues. Its output goes to the log, and its failure is a warning."));
  t.push_back(
      number("telemetry.on_save_seconds", LT_MEMBER(telemetry.on_save_seconds),
             "Seconds after which on_save is killed.")
          .when("telemetry.on_save", true, [](const Recipe& r) { return r.telemetry.on_save.has_value(); })
          .above(0)
          .between(0, 86400));
}

}  // namespace ltrain::recipe
