// Download of a checkpoint from checkpoint.remote, by all ranks together.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ltrain {

/// Collective. Downloads the newest usable copy below `url` of a step after `have` into `folder`, where it is
/// a checkpoint like others from then on; each rank downloads a share of the files. A folder with its name is
/// set aside as damaged. Damaged copies are skipped, with a note. Returns false if there is no such copy.
/// Throws Error (storage) on every rank if the store cannot be asked, or the folder cannot be written: a run
/// that would begin afresh or further back, for a reason that passes, does not start.
bool fetch_newer(const std::string& url, const std::string& folder, int64_t have, Communicator& control,
                 Stream& stream, std::vector<std::string>& notes);

}  // namespace ltrain
