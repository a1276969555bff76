// A folder that gets its name only when it is complete.
#pragma once
#include <string>

namespace ltrain {

class NewFolder {
 public:
  /// Throws Error (usage) if `path` exists and is not an empty folder. Files must be written to work(), a
  /// folder next to it.
  explicit NewFolder(std::string path);
  /// Removes files that were not committed.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::string& work() const { return work_; }
  /// Throws Error (storage) if the file system has less than `bytes` free.
  void need(int64_t bytes) const;
  void commit();

 private:
  std::string path_, work_;
  bool committed_ = false;
};

}  // namespace ltrain
