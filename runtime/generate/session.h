// A trained model to look at: loaded from a checkpoint, on one process or over the ranks of a job.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/reader.h"
#include "runtime/generate/end_tokens.h"
#include "runtime/launch/job.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain {

struct SamplingOptions {
  int64_t tokens = 200;      ///< to generate, at most
  double temperature = 0.8;  ///< 0: the likeliest token
  int64_t top_k = 0;         ///< keep the k likeliest; 0: all
  double top_p = 1.0;        ///< keep the likeliest whose probabilities reach p
  uint64_t seed = 1;
  bool stop_at_end = true;  ///< stop at each of Session::end_tokens
  /// A text that is as long as the model has positions goes on from its younger half, and so does a longer
  /// prompt. Without it both are refused.
  bool context_shift = false;
};

/// What comes before a text.
enum class TextBegin : uint8_t {
  as_trained,  ///< what began the documents of training; of other models what the tokenizer puts before texts
  bos,         ///< the tokenizer's begin-of-text token
  none
};

/// Over how many ranks a model lies that is not trained. Those of `data` have the same parameters but for
/// experts, and read the same texts.
struct ModelLayout {
  int64_t data = 1, tensor = 1, pipeline = 1, expert = 1;
  int64_t ranks() const { return data * tensor * pipeline; }
};

class Session;

struct SessionOptions {
  /// A checkpoint, a folder of them, or a run's output_dir: the newest valid one is taken. Or a Hugging Face
  /// folder.
  std::string where;
  std::vector<std::string> from_ignore{};  ///< model.from_ignore, of a Hugging Face folder
  std::string tokenizer{};                 ///< data.tokenizer.path, when the recipe's is not to be used
  int64_t micro_batch = 0;                 ///< sequences at once, of an evaluation; 0: none is made
  int64_t texts = 0;                       ///< that are generated or scored at once; 0: none
  bool scores = false;                     ///< of texts: TrainProgram::score
  int64_t seq_length = 0;                  ///< tokens of a sequence; 0: the recipe's
  /// Tokens of the longest text, asked when tokenizer and recipe are there and before memory is taken; none:
  /// as long as a sequence.
  std::function<int64_t(Session&)> text_length{};
  DeviceChoice device =
      DeviceChoice::automatic;  ///< auto: a GPU where there is one, whatever trained the model
  bool average = false;         ///< the average that the run kept of the weights
  /// Of weights, activations, keys and values: "fp32", "bf16" or "fp64"; empty: the run's, and fp32 where the
  /// run had fp32 weights beside those of another type.
  std::string precision{};
  ModelLayout layout{};
  Job* job = nullptr;  ///< with several ranks: their job, which outlives the session
};

/// Error (usage) where the model cannot be laid out so; before the ranks are started.
void check_layout(const SessionOptions& options);

/// With several ranks all of them make one, and ask for the same in the same order.
class Session {
 public:
  /// Throws Error (storage or usage).
  explicit Session(const SessionOptions& options);
  ~Session();

  const Recipe& recipe() const { return recipe_; }
  const std::string& path() const { return path_; }
  int64_t step() const { return step_; }  ///< 0: of a Hugging Face folder
  /// What whoever uses it should know of how it was opened: newer checkpoints that cannot be used.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Of the data that it was trained on, or of the Hugging Face folder; absent: neither says.
  std::optional<data::TokenizerIdentity> trained_tokenizer();
  /// Error where it is not the one of the data that the model was trained on.
  data::Tokenizer& tokenizer();
  int64_t end_of_document();  ///< the token; -1: none
  /// Tokens that end a text: the end of document, and those that a Hugging Face folder of the model, of the
  /// weights that it began with, or of the tokenizer names (runtime/generate/end_tokens.h).
  std::vector<EndToken> end_tokens();
  /// Tokens that come before a text. Error (usage) where the tokenizer's files name none.
  std::vector<int32_t> text_begin(TextBegin how);
  TrainProgram& program() { return *program_; }
  KeyValueCache& cache(size_t text) { return caches_.at(text); }

  /// Calls `emit` with the number of a prompt and each token that is generated for it; false from it ends
  /// that text. As many prompts at once as SessionOptions::texts, which have SessionOptions::text_length
  /// tokens at most. False: a rank was asked to stop, and it ended early on all.
  bool generate(const std::vector<std::vector<int32_t>>& prompts, const SamplingOptions& options,
                const std::function<bool(size_t, int32_t)>& emit);

 private:
  std::unique_ptr<PieceReader> open(const SessionOptions& options);
  ProgramOptions inference_options(const SessionOptions& options) const;
  void make_groups(DeviceKind device, const ProgramOptions& options);

  Recipe recipe_;
  std::string path_;
  std::vector<std::string> notes_;
  int64_t step_ = 0;
  std::optional<data::TokenizerIdentity> trained_tokenizer_;
  bool trained_on_data_ = false;  // a run made it, which recorded its data
  std::unique_ptr<Arena> arena_, host_;
  std::unique_ptr<Stream> compute_;  // ends before the arenas go
  Job* job_ = nullptr;
  GroupSet alone_;
  std::unique_ptr<Communicator> control_;  // of several ranks
  std::unique_ptr<GroupSet> groups_;
  std::unique_ptr<TrainProgram> program_;
  std::vector<KeyValueCache> caches_;  // of the texts that are generated at once
  std::unique_ptr<data::Tokenizer> tokenizer_;
};

/// One token drawn from logits: temperature, then top-k, then top-p; a function of (seed, index).
int32_t sample_token(std::vector<float> logits, const SamplingOptions& options, uint64_t index);

}  // namespace ltrain
