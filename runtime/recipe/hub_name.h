// Detection of Hugging Face Hub model names given where a folder is expected.
#pragma once
#include <string>

namespace ltrain::recipe {

/// "; a model of the Hugging Face Hub is downloaded first ...", with the command, if `path` does not exist
/// and looks like OWNER/NAME; else empty.
std::string download_first(const std::string& path);

}  // namespace ltrain::recipe
