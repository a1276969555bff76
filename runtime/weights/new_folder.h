// A folder that appears under its name when it is whole, and not before.
#pragma once
#include <string>

namespace ltrain {

class NewFolder {
 public:
  /// Error (usage) when `path` exists and is not an empty folder. Files go into work(), beside it.
  explicit NewFolder(std::string path);
  /// Removes what was not committed.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::string& work() const { return work_; }
  /// Error (storage) when the file system lacks so many bytes.
  void need(int64_t bytes) const;
  void commit();

 private:
  std::string path_, work_;
  bool committed_ = false;
};

}  // namespace ltrain
