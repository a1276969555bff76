// Changes of data.stages that `ltrain data stages` leaves for a run that goes on, in files of its output_dir:
// stages-next.json, whose text the run moves to stages.json when it takes them, or to stages-refused.json. A
// later start of the run goes on with stages.json. Each has the list as JSON, the value of data.stages.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"
#include "runtime/data/identity.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Text of the stages that the run with this output_dir has taken; nothing: none. Throws Error (storage).
std::optional<std::string> taken_stages(const std::string& output_dir);
/// Leaves stages for the run. Throws Error (storage).
void leave_stages(const std::string& output_dir, const std::string& stages);

/// Stages in words, by their text: "from step 40: tokens/web, tokens/code".
std::string stages_in_words(const std::string& stages);

/// Stages that wait for a run, and the agreement of its ranks on them.
class StageChanges {
 public:
  using WithStages =
      std::function<Recipe(const Recipe&, const std::string&)>;  ///< TrainerOptions::with_stages

  /// `group`: of all ranks, and of this object only: checkpoints use theirs while the run goes on.
  StageChanges(std::string output_dir, WithStages with_stages, std::unique_ptr<Communicator> group);

  /// On rank 0: returns whether stages wait. Looks at most twice a second.
  bool pending();

  struct Change {
    Recipe recipe;                ///< the run's, with the new stages
    data::DataIdentity identity;  ///< identity of its data
    std::string stages;           ///< their text, on rank 0
  };
  /// Takes the stages that rank 0 finds, if all ranks can: a change, or nothing and `reason` on every rank.
  /// The files say which. Collective. `before` and `cursor`: data of the run, and its next sample.
  std::optional<Change> take(const Recipe& recipe, const data::DataIdentity& before, int64_t cursor,
                             std::string& reason);

 private:
  std::string read() const;
  void answer(const std::string& stages, const char* name) const;

  std::string output_dir_;
  WithStages with_stages_;
  std::unique_ptr<Communicator> group_;
  std::unique_ptr<Stream> stream_;
  double look_at_ = 0;  // steady_seconds() of the next look
};

}  // namespace ltrain
