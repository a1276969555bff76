// Which job a process belongs to, proven over a connection without being said: both sides show a digest of
// the job's token, and of its recipe, over numbers that each has just made up.
//
//   rank to coordinator   kClientMagic, 16 random bytes
//   coordinator to rank   kServerMagic, 16 random bytes
//   rank to coordinator   proof of token and recipe, proof of the token alone
//   coordinator to rank   'S' (same recipe) or 'J' (same job, another recipe), and its own proof
//
// Nothing else is sent, read or believed before that fits.
#pragma once
#include <string>
#include <string_view>

#include "base/secret.h"
#include "runtime/launch/sha256.h"

namespace ltrain {

inline constexpr std::string_view kClientMagic = "LTRAINc2", kServerMagic = "LTRAINs2";
inline constexpr size_t kNonceBytes = 16, kGreetingBytes = 8 + kNonceBytes, kProofBytes = 2 * sizeof(Digest),
                        kAnswerBytes = 1 + sizeof(Digest);

/// How two processes stand to each other.
enum class Kinship : char {
  none = 0,            ///< strangers
  other_recipe = 'J',  ///< of one job, and their recipes differ
  same = 'S'
};

class JobKey {
 public:
  /// `settings`: of settings_of_job.
  JobKey(std::string_view token, std::string_view settings);

  static std::string greeting(std::string_view magic) {
    return std::string(magic) + random_bytes(kNonceBytes);
  }
  /// After both greetings. kProofBytes.
  std::string proofs(std::string_view client_greeting, std::string_view server_greeting) const;
  /// The coordinator's judgement of a rank's proofs, and its answer: kAnswerBytes.
  Kinship judge(std::string_view proofs, std::string_view client_greeting,
                std::string_view server_greeting) const;
  std::string answer(Kinship kinship, std::string_view client_greeting,
                     std::string_view server_greeting) const;
  /// The rank's judgement of an answer.
  Kinship read_answer(std::string_view answer, std::string_view client_greeting,
                      std::string_view server_greeting) const;

 private:
  Digest proof(Kinship of, std::string_view side, std::string_view client, std::string_view server) const;
  Digest job_, same_;
};

/// What all ranks of a job have alike: its number of ranks, and "key: value" lines of the recipe.
std::string settings_of_job(int ranks, std::string_view recipe);

/// The first key that differs, with both values and whose they are ("seed: 1 on A, 2 on B"), and how many
/// more do; empty where none does. `settings` as above.
std::string first_difference(std::string_view settings_a, std::string_view a, std::string_view settings_b,
                             std::string_view b);

}  // namespace ltrain
