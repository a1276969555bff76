// A trained model for inference: loaded from a checkpoint, in one process or on the ranks of a job.
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
  int64_t tokens = 200;      ///< maximum number of tokens to generate
  double temperature = 0.8;  ///< 0: always the most likely token
  int64_t top_k = 0;         ///< sample from the k most likely tokens; 0: all
  double top_p = 1.0;        ///< sample from the most likely tokens whose probabilities sum up to p
  uint64_t seed = 1;
  bool stop_at_end = true;  ///< stop at each of Session::end_tokens
  /// If a text or prompt reaches the model's number of positions, continue from its second half. Otherwise it
  /// is an error.
  bool context_shift = false;
};

/// Tokens before a text.
enum class TextBegin : uint8_t {
  /// The token that began training documents; for other models, tokens that the tokenizer puts before texts.
  as_trained,
  bos,  ///< the tokenizer's begin-of-text token
  none
};

/// Parallel layout of a model for inference. Ranks of `data` have the same parameters, except experts, and
/// process the same texts.
struct ModelLayout {
  int64_t data = 1, tensor = 1, pipeline = 1, expert = 1;
  int64_t ranks() const { return data * tensor * pipeline; }
};

class Session;

struct SessionOptions {
  /// A checkpoint, a folder of checkpoints, or a run's output_dir, of which the newest valid one is used; or
  /// a Hugging Face folder.
  std::string where;
  std::vector<std::string> from_ignore{};  ///< model.from_ignore for a Hugging Face folder
  std::string tokenizer{};                 ///< replaces data.tokenizer.path of the recipe
  int64_t micro_batch = 0;                 ///< sequences evaluated at once; 0: no evaluation
  int64_t texts = 0;                       ///< texts generated or scored at once; 0: none
  bool scores = false;                     ///< the texts are scored (TrainProgram::score)
  bool choices = false;                    ///< evaluations keep the choices of the routers
  int64_t seq_length = 0;                  ///< tokens per sequence; 0: as in the recipe
  const Data* data = nullptr;              ///< replaces the recipe's sequences and their documents; null: not
  /// Returns the tokens of the longest text. Called when tokenizer and recipe are loaded and before memory is
  /// allocated. Null: as long as a sequence.
  std::function<int64_t(Session&)> text_length{};
  DeviceChoice device =
      DeviceChoice::automatic;  ///< auto: a GPU if available, independent of the training device
  bool average = false;         ///< use the EMA weights
  /// Precision of weights, activations, keys and values: "fp32", "bf16" or "fp64". Empty: the run's
  /// precision, or fp32 if the run had fp32 master weights.
  std::string precision{};
  ModelLayout layout{};
  Job* job = nullptr;  ///< job of several ranks; must outlive the session
};

/// Throws Error (usage) if the model does not support the layout. Called before ranks are started.
void check_layout(const SessionOptions& options);

/// A session. With several ranks, each makes one, and all make the same calls in the same order.
class Session {
 public:
  /// Throws Error (storage or usage).
  explicit Session(const SessionOptions& options);
  ~Session();

  const Recipe& recipe() const { return recipe_; }
  const std::string& path() const { return path_; }
  int64_t step() const { return step_; }  ///< 0: Hugging Face folder
  /// Notes for the user about opening the model, such as unusable newer checkpoints.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Tokenizer of the training data or of the Hugging Face folder; nullopt: unknown.
  std::optional<data::TokenizerIdentity> trained_tokenizer();
  /// Throws Error if the tokenizer is not the one of the training data.
  data::Tokenizer& tokenizer();
  int64_t end_of_document();  ///< token id; -1: none
  /// Tokens that end a text: the end of document, and those named by a Hugging Face folder of the model, of
  /// the weights it began with, or of the tokenizer (runtime/generate/end_tokens.h).
  std::vector<EndToken> end_tokens();
  /// Tokens before a text. Throws Error (usage) if the tokenizer's files name none.
  std::vector<int32_t> text_begin(TextBegin how);
  TrainProgram& program() { return *program_; }
  KeyValueCache& cache(size_t text) { return caches_.at(text); }

  /// Generates texts. Calls `emit` with the index of a prompt and each token generated for it; if it returns
  /// false, that text ends. Processes SessionOptions::texts prompts at once, with at most
  /// SessionOptions::text_length tokens each. Returns false if a rank was asked to stop, which ends
  /// generation on all ranks.
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
  bool trained_on_data_ = false;  // the model comes from a run that recorded its data
  std::unique_ptr<Arena> arena_, host_;
  std::unique_ptr<Stream> compute_;  // destroyed before the arenas
  Job* job_ = nullptr;
  GroupSet alone_;
  std::unique_ptr<Communicator> control_;  // with several ranks
  std::unique_ptr<GroupSet> groups_;
  std::unique_ptr<TrainProgram> program_;
  std::vector<KeyValueCache> caches_;  // caches of the texts generated at once
  std::unique_ptr<data::Tokenizer> tokenizer_;
};

/// Samples a token from logits: temperature, then top-k, then top-p. A function of (seed, index).
int32_t sample_token(std::vector<float> logits, const SamplingOptions& options, uint64_t index);

}  // namespace ltrain
