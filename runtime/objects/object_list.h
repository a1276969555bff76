// Objects of an input: one object, those below a prefix, or those that match a pattern.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/objects/object_store.h"

namespace ltrain::objects {

struct ObjectList {
  std::vector<Object> objects;  ///< sorted by key; without empty ones that stand for folders
  bool is_folder = false;       ///< objects below the URL, and not one that it names or matches
};

/// One answer of ListObjectsV2.
struct ListPage {
  std::vector<Object> objects;
  std::string next;  ///< continuation token; empty: the last page
};

/// Reads such an answer for the bucket of `url`. Throws Error (data) for another text.
ListPage read_list_page(std::string_view xml, const Url& url);

/// Objects of a bucket whose keys begin with `prefix`, sorted by key; empty if there are none.
std::vector<Object> objects_with_prefix(const Url& url, const std::string& prefix, ObjectStore& store);

/// Returns whether a key matches a pattern: * and ? do not match a slash, and **/ stands for any folders, or
/// none.
bool matches_pattern(const std::string& pattern, const std::string& key);

/// Objects of `url`. s3 and gs: the object of the key; else those that match a pattern (*, ?, [), or those
/// below the key as a folder. http and https: the object. Downloads no object. Throws Error (data) if there
/// is none, with the names that are near; or as ObjectStore::fail_response().
ObjectList list_objects(const Url& url, ObjectStore& store);

}  // namespace ltrain::objects
