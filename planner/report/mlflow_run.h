// A run in MLflow's file store, which `mlflow ui` shows and `mlflow migrate-filestore` moves to a database.
#pragma once
#include <string>

namespace ltrain {

/// Writes RUN as a run of the experiment `experiment` of the file store FOLDER. A later call for the same run
/// replaces it. Throws Error (data, storage).
void write_mlflow_run(const std::string& run, const std::string& folder, const std::string& experiment);

}  // namespace ltrain
