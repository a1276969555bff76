#include "runtime/launch/job_key.h"

#include <catch2/catch.hpp>
#include <set>

using namespace ltrain;
using Catch::Contains;

TEST_CASE("a handshake: same job and recipe, same job, or strangers, and nothing of the token is shown") {
  const std::string token = "a token of the job", recipe = settings_of_job(2, "seed: 1\n");
  const JobKey key(token, recipe);
  const std::string c = JobKey::greeting(kClientMagic), s = JobKey::greeting(kServerMagic);
  REQUIRE((c.size() == kGreetingBytes && s.size() == kGreetingBytes));
  const auto meet = [&](const JobKey& rank) {
    const std::string proofs = rank.proofs(c, s);
    REQUIRE(proofs.size() == kProofBytes);
    const Kinship seen = key.judge(proofs, c, s);
    if (seen == Kinship::none) return seen;
    const std::string answer = key.answer(seen, c, s);
    REQUIRE(answer.size() == kAnswerBytes);
    CHECK(rank.read_answer(answer, c, s) == seen);
    CHECK((proofs + answer).find(token) == std::string::npos);
    return seen;
  };
  CHECK(meet(JobKey(token, recipe)) == Kinship::same);
  CHECK(meet(JobKey(token, settings_of_job(2, "seed: 2\n"))) == Kinship::other_recipe);
  CHECK(meet(JobKey(token, settings_of_job(4, "seed: 1\n"))) == Kinship::other_recipe);
  CHECK(meet(JobKey(token, "")) == Kinship::other_recipe);
  CHECK(meet(JobKey("another token", recipe)) == Kinship::none);
  CHECK(meet(JobKey("", recipe)) == Kinship::none);
}

TEST_CASE("a handshake that was overheard, turned around or changed in one bit proves nothing") {
  const JobKey key("token", settings_of_job(2, "seed: 1\n"));
  const std::string c = JobKey::greeting(kClientMagic), s = JobKey::greeting(kServerMagic);
  const std::string proofs = key.proofs(c, s), answer = key.answer(Kinship::same, c, s);
  REQUIRE(key.judge(proofs, c, s) == Kinship::same);
  REQUIRE(key.read_answer(answer, c, s) == Kinship::same);
  // On another connection, whose numbers are others.
  CHECK(key.judge(proofs, c, JobKey::greeting(kServerMagic)) == Kinship::none);
  CHECK(key.read_answer(answer, JobKey::greeting(kClientMagic), s) == Kinship::none);
  // A rank's proof differs from a coordinator's.
  CHECK(key.read_answer("S" + proofs.substr(0, 32), c, s) == Kinship::none);
  CHECK(key.judge(answer.substr(1) + answer.substr(1), c, s) == Kinship::none);
  // "same" does not follow from "same job".
  CHECK(key.read_answer("S" + key.answer(Kinship::other_recipe, c, s).substr(1), c, s) == Kinship::none);
  CHECK(key.judge(proofs.substr(32) + proofs.substr(32), c, s) == Kinship::other_recipe);
  for (size_t bit = 0; bit < 8 * answer.size(); ++bit) {
    std::string changed = answer;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    CHECK(key.read_answer(changed, c, s) == Kinship::none);
  }
  for (size_t bit = 0; bit < 8 * proofs.size(); ++bit) {
    std::string changed = proofs;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    CHECK(key.judge(changed, c, s) == (bit < 256 ? Kinship::other_recipe : Kinship::same));
  }
  for (size_t n : {0, 1, 31, 32, 63, 65}) CHECK(key.judge(std::string(n, 'x'), c, s) == Kinship::none);
  for (size_t n : {0, 1, 32, 34}) CHECK(key.read_answer(std::string(n, 'S'), c, s) == Kinship::none);
}

TEST_CASE("numbers of a handshake are never the same") {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(JobKey::greeting(kClientMagic));
  CHECK(seen.size() == 1000);
}

TEST_CASE("the first difference of two recipes, with both values and whose they are") {
  const std::string a = settings_of_job(2, "seed: 1\noptimizer.lr: 0.001\ndata.train: [{path: a}]\n");
  CHECK(first_difference(a, "A", a, "B").empty());
  CHECK(first_difference(a, "A",
                         settings_of_job(2, "seed: 2\noptimizer.lr: 0.001\ndata.train: [{path: a}]\n"),
                         "B") == "seed: 1 on A, 2 on B");
  CHECK(first_difference(a, "A", settings_of_job(4, "seed: 2\noptimizer.lr: 0.1\ndata.train: [{path: a}]\n"),
                         "B") == "ranks: 2 on A, 4 on B; 2 more keys differ");
  CHECK(first_difference(a, "A", settings_of_job(2, "seed: 1\noptimizer.lr: 0.001\n"), "B") ==
        "data.train: [{path: a}] on A, not there on B");
  CHECK(first_difference(settings_of_job(2, ""), "A", settings_of_job(2, "x: 1\n"), "B") ==
        "x: not there on A, 1 on B");
  // Hostile settings: a line, bounded.
  const std::string evil = first_difference(a, "A", "\x1b[2J" + std::string(200000, 'x') + "\n\n: \n:", "B");
  CHECK(evil.size() < 1500);
  CHECK(evil.find('\x1b') == std::string::npos);
}
