// Proof that two processes belong to the same job, without sending the secret. Both sides send a digest of
// the job's token and of its recipe over fresh random numbers.
//
//   rank to coordinator   kClientMagic, 16 random bytes
//   coordinator to rank   kServerMagic, 16 random bytes
//   rank to coordinator   proof of token and recipe, proof of the token alone
//   coordinator to rank   'S' (same recipe) or 'J' (same job, another recipe), and its own proof
//
// Nothing else is sent, read or trusted before the proofs match.
#pragma once
#include <string>
#include <string_view>

#include "base/hash/sha256.h"
#include "base/secret.h"

namespace ltrain {

inline constexpr std::string_view kClientMagic = "LTRAINc2", kServerMagic = "LTRAINs2";
inline constexpr size_t kNonceBytes = 16, kGreetingBytes = 8 + kNonceBytes, kProofBytes = 2 * sizeof(Digest),
                        kAnswerBytes = 1 + sizeof(Digest);

/// Relation between two processes.
enum class Kinship : char {
  none = 0,            ///< different jobs
  other_recipe = 'J',  ///< one job with different recipes
  same = 'S'
};

class JobKey {
 public:
  /// `settings`: result of settings_of_job.
  JobKey(std::string_view token, std::string_view settings);

  static std::string greeting(std::string_view magic) {
    return std::string(magic) + random_bytes(kNonceBytes);
  }
  /// The rank's proofs after both greetings, kProofBytes long.
  std::string proofs(std::string_view client_greeting, std::string_view server_greeting) const;
  /// The coordinator's verification of a rank's proofs, and its answer of kAnswerBytes.
  Kinship judge(std::string_view proofs, std::string_view client_greeting,
                std::string_view server_greeting) const;
  std::string answer(Kinship kinship, std::string_view client_greeting,
                     std::string_view server_greeting) const;
  /// The rank's verification of an answer.
  Kinship read_answer(std::string_view answer, std::string_view client_greeting,
                      std::string_view server_greeting) const;

 private:
  Digest proof(Kinship of, std::string_view side, std::string_view client, std::string_view server) const;
  Digest job_, same_;
};

/// Settings that all ranks of a job share: the number of ranks, and "key: value" lines of the recipe.
std::string settings_of_job(int ranks, std::string_view recipe);

/// First key that differs, with both values and their owners ("seed: 1 on A, 2 on B"), and the number of
/// further differences; empty if all are equal. `settings`: as above.
std::string first_difference(std::string_view settings_a, std::string_view a, std::string_view settings_b,
                             std::string_view b);

}  // namespace ltrain
