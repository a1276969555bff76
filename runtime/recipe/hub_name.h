// Names of models on the Hugging Face Hub, given where a folder is expected.
#pragma once
#include <string>

namespace ltrain::recipe {

/// "; a model of the Hugging Face Hub is downloaded first ...", with the command, where `path` does not exist
/// and looks like OWNER/NAME of a model there; else empty.
std::string download_first(const std::string& path);

}  // namespace ltrain::recipe
