#include "runtime/checkpoint/remote_fetch.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/bytes_text.h"
#include "base/log.h"
#include "parallel/comm/host_collectives.h"
#include "parallel/comm/rank_texts.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/remote_checkpoints.h"
#include "runtime/launch/folder_lock.h"

namespace ltrain {
namespace {

/// Runs `work` on rank 0. Returns its text on every rank, or throws its Error there.
template <class F>
std::string on_first_rank(Communicator& control, Stream& stream, F work) {
  std::string text;
  if (control.rank() == 0) try {
      text = ok_text(work());
    } catch (const Error& e) {
      text = error_text(e);
    }
  text = broadcast_text(control, stream, text);
  if (!is_ok(text)) throw_error(text);
  return rest_of(text);
}

/// Downloads the files in turns of one for each rank, so that no rank waits long for another. Returns "", or
/// the damage of the first file that has one.
std::string download_share(RemoteCheckpoints& remote, const Candidate& copy, const std::string& to,
                           Communicator& control, Stream& stream) {
  const int rank = control.rank(), world = control.size(),
            files = static_cast<int>(copy.manifest.files.size());
  for (int turn = 0; turn < files; turn += world) {
    std::string mine = ok_text("");
    try {
      if (turn + rank < files) mine = ok_text(remote.download(copy, turn + rank, to));
    } catch (const Error& e) {
      mine = error_text(e);
    }
    for (const std::string& text : gather_texts(control, stream, mine)) {
      if (!is_ok(text)) throw_error(text);
      if (!rest_of(text).empty()) return rest_of(text);
    }
  }
  return "";
}

/// Gives a downloaded folder its name. Rank 0.
void commit_download(RemoteCheckpoints& remote, const Candidate& copy, const std::string& folder,
                     const std::string& temporary) {
  remote.download_commit(copy, temporary);
  read_committed(temporary);  // with the files of all ranks
  sync_folder(temporary);
  const std::string name = checkpoint_name(copy.step());
  for (const Candidate& c : list_checkpoints(folder))
    if (c.name == name) set_aside(c, true);
  rename_new(temporary, folder + "/" + name);
  sync_folder(folder);
}

class Fetch {
 public:
  Fetch(const std::string& url, const std::string& folder, Communicator& control, Stream& stream)
      : remote_(url), folder_(folder), control_(control), stream_(stream) {}

  bool newer_than(int64_t have, std::vector<std::string>& notes) {
    const std::string problems = on_first_rank(control_, stream_, [&] {
      std::string text;
      for (Candidate& c : remote_.list()) {
        if (c.step() <= have) break;
        if (!c.error.empty())
          text += (text.empty() ? "" : "\n") + c.error;
        else if (!c.manifest.info.healthy)
          text +=
              fmt::format("{}{}: its loss or gradient norm is not finite", text.empty() ? "" : "\n", c.path);
        else
          copies_.push_back(std::move(c));
      }
      std::reverse(copies_.begin(), copies_.end());
      return text;
    });
    if (!problems.empty()) notes.push_back("newer copies that cannot be used:\n  " + problems);
    for (;;) {
      const std::string name = on_first_rank(control_, stream_, [&] { return begin_copy(); });
      if (name.empty()) return false;
      if (fetch(name, notes)) return true;
    }
  }

 private:
  /// Rank 0: makes the folder of the next copy. Returns "NAME FOLDER", or "" if none is left.
  std::string begin_copy() {
    if (copies_.empty()) return "";
    copy_ = std::move(copies_.back());
    copies_.pop_back();
    make_folders(folder_);
    if (!lock_) lock_.emplace(folder_, "downloads a checkpoint here");
    const int64_t bytes = copy_.manifest.bytes(), have = free_bytes(folder_);
    if (have < bytes)
      fail(ExitCode::storage, "{}: {} takes {}, and {} are free; free space there, or move output_dir",
           folder_, copy_.path, bytes_text(bytes), bytes_text(have));
    log_lines(LogLevel::info,
              fmt::format("downloading {} ({}) to {}", copy_.path, bytes_text(bytes), folder_));
    const std::string temporary = temporary_name(folder_ + "/" + checkpoint_name(copy_.step()));
    make_folders(temporary);
    return copy_.name + " " + temporary;
  }

  bool fetch(const std::string& begun, std::vector<std::string>& notes) {
    const std::string name = begun.substr(0, begun.find(' ')), temporary = rest_of(begun);
    const auto start = std::chrono::steady_clock::now();
    // Every rank reads the manifest itself.
    std::string mine = ok_text("");
    if (control_.rank() != 0) try {
        copy_ = remote_.find(name);
        if (!copy_.error.empty()) fail(ExitCode::storage, "{}", copy_.error);
      } catch (const Error& e) {
        mine = error_text(e);
      }
    for (const std::string& text : gather_texts(control_, stream_, mine))
      if (!is_ok(text)) throw_error(text);
    const std::string damage = download_share(remote_, copy_, temporary, control_, stream_);
    on_first_rank(control_, stream_, [&] {
      if (damage.empty())
        commit_download(remote_, copy_, folder_, temporary);
      else
        remove_folder(temporary);
      return "";
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    notes.push_back(damage.empty() ? fmt::format("downloaded {} ({} in {:.1f} s)", copy_.path,
                                                 bytes_text(copy_.manifest.bytes()), seconds)
                                   : damage);
    return damage.empty();
  }

  RemoteCheckpoints remote_;
  std::string folder_;
  Communicator& control_;
  Stream& stream_;
  std::vector<Candidate> copies_;  // rank 0: usable ones, oldest first
  Candidate copy_;                 // the one that is fetched
  std::optional<FolderLock> lock_;
};

}  // namespace

bool fetch_newer(const std::string& url, const std::string& folder, int64_t have, Communicator& control,
                 Stream& stream, std::vector<std::string>& notes) {
  return Fetch(url, folder, control, stream).newer_than(have, notes);
}

}  // namespace ltrain
