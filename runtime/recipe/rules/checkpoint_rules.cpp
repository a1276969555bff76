// Rules of the checkpoints that a run keeps.
#include "base/error.h"
#include "runtime/objects/url.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

namespace {

void check_keep_every(const Recipe& r, const BrokenRule& broken) {
  const int64_t every = r.checkpoint.keep_every, save = r.checkpoint.save_interval;
  if (every == 0 || (save > 0 && every % save == 0)) return;
  broken("checkpoint.keep_every",
         save == 0
             ? std::string("nothing is saved with checkpoint.save_interval: 0; nearest valid value: 0")
             : fmt::format(
                   "is not a multiple of checkpoint.save_interval: {}, so some of these steps would have "
                   "no checkpoint; nearest valid value: {}",
                   save, (every + save - 1) / save * save),
         {"checkpoint.save_interval"});
}

void check_remote(const Recipe& r, const BrokenRule& broken) {
  if (!r.checkpoint.remote) return;
  const std::string key = "checkpoint.remote";
  try {
    const objects::Url url = objects::parse_url(*r.checkpoint.remote);
    if (!url.is_bucket() || url.path.find_first_not_of('/') == std::string::npos)
      broken(key,
             "must be a prefix in a bucket; valid: s3://BUCKET/PREFIX and "
             "gs://BUCKET/PREFIX",
             {});
  } catch (const Error& e) {
    broken(key, e.what(), {});
  }
}

}  // namespace

void checkpoint_rules(const Recipe& r, const BrokenRule& broken) {
  check_keep_every(r, broken);
  check_remote(r, broken);
  const std::string key = "checkpoint.keep_best";
  if (!r.checkpoint.keep_best) return;
  const int64_t every = r.train.eval_interval, save = r.checkpoint.save_interval;
  if (r.data.eval.empty() || every == 0)
    return broken(
        key,
        "compares checkpoints by their loss on data.eval, and nothing evaluates: give data.eval and "
        "train.eval_interval; nearest valid value: false",
        {"data.eval", "train.eval_interval"});
  if (save % every == 0) return;
  broken(
      key,
      fmt::format("compares checkpoints by their held-out loss, and some of those that "
                  "checkpoint.save_interval: {} makes have none, with train.eval_interval: {}; nearest valid "
                  "value: false, or checkpoint.save_interval: {}",
                  save, every, (save / every + 1) * every),
      {"checkpoint.save_interval", "train.eval_interval"});
}

}  // namespace ltrain::recipe
