// A run as an offline folder of Weights & Biases, which its own client uploads: wandb sync FOLDER.
#pragma once
#include <string>

namespace ltrain {

/// Writes RUN as FOLDER/offline-run-START-ID/run-ID.wandb, and returns the offline folder. A later call for
/// the same run replaces the file, with the same id, so that the client uploads all of it again to the same
/// page. Throws Error (data, storage).
std::string write_wandb_run(const std::string& run, const std::string& folder, const std::string& project);

}  // namespace ltrain
