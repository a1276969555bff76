#include "runtime/check/background_build.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "runtime/check/tokenized_sources.h"

namespace ltrain {
namespace {

constexpr int kNice = 10;

/// Thrown out of a build that is to stop.
struct Stopped {};

}  // namespace

BackgroundBuild::BackgroundBuild(Recipe recipe)
    : thread_([this, recipe = std::move(recipe)] { work(recipe); }) {}

BackgroundBuild::~BackgroundBuild() {
  stop_ = true;
  thread_.join();
}

std::optional<Error> BackgroundBuild::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void BackgroundBuild::work(const Recipe& recipe) {
  // Linux keeps a priority for each thread, which the threads that it starts inherit.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
  try {
    const auto notes = tokenize_sources(recipe, MadeFiles::all, [this](const auto&, const auto&) {
      if (stop_) throw Stopped();
    });
    done_ = true;
    for (const std::string& note : notes) log_lines(LogLevel::info, "note: " + note);
  } catch (const Stopped&) {
  } catch (const std::exception& e) {
    const std::lock_guard lock(mutex_);
    const Error error = as_error(e);
    error_.emplace(error.code(), fmt::format("the later token files cannot be made: {}", error.what()));
  }
}

}  // namespace ltrain
