// PREFIX.json: what ltrain knows of a token file beyond Megatron's index.
#pragma once
#include <string>

#include "runtime/data/indexed_dataset.h"

namespace ltrain::data {

std::string write_sidecar_text(const SourceInfo& info, bool append_eot);

/// Fills the sidecar's fields of `info` from PREFIX.json if there is one, and checks it against the counts
/// that `info` has from the index. Error (data) for JSON that is broken, lacks a key, or is of another build
/// than the index.
void read_sidecar(SourceInfo& info);

}  // namespace ltrain::data
