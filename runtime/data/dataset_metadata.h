// PREFIX.json: metadata of a token file beyond Megatron's index.
#pragma once
#include <string>

#include "runtime/data/indexed_dataset.h"

namespace ltrain::data {

std::string write_sidecar_text(const SourceInfo& info, bool append_eot);

/// Fills the sidecar's fields of `info` from PREFIX.json if it exists, and checks it against the counts from
/// the index. Throws Error (data) for broken JSON, a missing key, or a sidecar of another build than the
/// index.
void read_sidecar(SourceInfo& info);

}  // namespace ltrain::data
