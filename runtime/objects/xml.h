// The answers of object stores: elements of XML and their texts.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::objects {

/// Calls `take(path, text)` at the end of each element, with the names of the elements around it and its own
/// ("ListBucketResult", "Contents", "Key"), without namespaces, and the text that lies in it directly. Throws
/// Error (data) with `name` for a text that is malformed, has a document type, or is nested more than 16
/// deep.
void read_xml(std::string_view xml, const std::string& name,
              const std::function<void(const std::vector<std::string>& path, const std::string& text)>& take);

}  // namespace ltrain::objects
