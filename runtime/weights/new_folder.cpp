#include "runtime/weights/new_folder.h"

#include <unistd.h>

#include <filesystem>

#include "base/bytes_text.h"
#include "base/error.h"
#include "runtime/checkpoint/files.h"

namespace ltrain {

NewFolder::NewFolder(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (path_.empty()) fail(ExitCode::usage, "a folder to write is needed, and its name is empty");
  if (path_exists(path_) && !(std::filesystem::is_directory(path_) && list_folder(path_).empty()))
    fail(ExitCode::usage,
         "{}: exists, and is not an empty folder: nothing of it is replaced; name another one", path_);
  work_ = fmt::format("{}.tmp-{}", path_, ::getpid());
  make_folders(work_);
}

NewFolder::~NewFolder() {
  if (committed_) return;
  try {
    remove_folder(work_);
  } catch (const Error&) {  // the original failure is being reported
  }
}

void NewFolder::need(int64_t bytes) const {
  if (const int64_t free = free_bytes(work_); free < bytes)
    fail(ExitCode::storage, "{}: {} are to be written, and the file system has {} free", path_,
         bytes_text(bytes), bytes_text(free));
}

void NewFolder::commit() {
  sync_folder(work_);
  // Removes only an empty folder.
  if (std::error_code error; !std::filesystem::remove(path_, error) && error)
    fail(ExitCode::storage,
         "{}: was an empty folder when this began, and is none now ({}): nothing of it is replaced", path_,
         error.message());
  rename_new(work_, path_);
  committed_ = true;
  const std::string parent = std::filesystem::path(path_).parent_path();
  sync_folder(parent.empty() ? "." : parent);
}

}  // namespace ltrain
