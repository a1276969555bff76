// Folders in the layout of Hugging Face datasets: which files belong to a configuration and a split.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace ltrain::data {

/// Part of a dataset folder to read. Empty: the default of the folder.
struct DatasetPart {
  std::string config, split;
};

struct DatasetFiles {
  std::vector<std::filesystem::path> files;   ///< in the order of `files` given
  std::vector<std::filesystem::path> others;  ///< files of other splits and configurations
};

/// Chooses among the sorted `files` below `folder`. With `configs:` in the front matter of README.md, the
/// files of the configuration (that of the name, the one marked default, or the only one) and the split. Else
/// the files whose path names the split (train, validation, test and their usual variants, between - . _
/// blanks, digits and slashes). The default split is train, and only for a folder of a dataset: one with
/// Parquet or Arrow files, or dataset_info in its README.md. Any other folder is taken whole. Throws Error
/// (data) with the names that the folder has for a name that it does not have.
DatasetFiles select_dataset(std::vector<std::filesystem::path> files, const std::filesystem::path& folder,
                            const DatasetPart& part);
/// The same for the text of a README.md; empty: the folder has none. `folder`: for messages.
DatasetFiles select_dataset(std::vector<std::filesystem::path> files, const std::filesystem::path& folder,
                            const DatasetPart& part, const std::string& readme);

/// Split that a path names, in the folder's terms: "train", "validation", "test"; empty: none.
std::string split_of(const std::string& path);

/// Front matter of a README.md: the YAML between two lines of three dashes; empty: none.
std::string front_matter(const std::string& readme);

}  // namespace ltrain::data
