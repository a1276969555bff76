#include "runtime/program/quantized_matrices.h"

#include "base/error.h"
#include "models/decoder/decoder.h"
#include "parallel/optim/optimizer.h"
#include "runtime/recipe/diagnostics.h"

namespace ltrain {

std::map<std::string, Shape> quantized_matrices(const Recipe& r) {
  std::map<std::string, Shape> found;
  const QuantizationSettings& q = r.quantization;
  if (!q.on()) return found;
  const GroupSet alone;
  ParameterStore store;
  const Decoder decoder(r.model, store, alone.groups(), {});
  std::string linear;  // a matrix that can be quantized
  const auto refuse = [&](const char* key, const std::string& rule) {
    fail(ExitCode::usage, "{}{}: {}; such are matrices of linear layers, but no expert{}",
         r.origins ? r.origins->place(key).text() + ": " : "", key, rule,
         linear.empty() ? "" : ", as " + linear);
  };
  for (int id = 0; id < store.count(); ++id) {
    const ParameterSpec& spec = store.spec(id);
    if (linear.empty() && spec.is_linear()) linear = spec.name;
    if (is_quantized(q, spec)) found.emplace(spec.name, spec.slice.global);
  }
  for (const auto& [key, patterns] :
       {std::pair("quantization.match", &q.match), std::pair("quantization.ignore", &q.ignore)})
    for (const std::string& pattern : *patterns) {
      bool any = false;
      for (int id = 0; id < store.count() && !any; ++id)
        any = store.spec(id).is_linear() && name_matches(pattern, store.spec(id).name);
      if (!any) refuse(key, pattern + " matches nothing that can be quantized");
    }
  if (found.empty()) refuse("quantization.match", "nothing is left to quantize");
  return found;
}

}  // namespace ltrain
