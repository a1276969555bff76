// Files of questions, what of them is scored, and the accuracies; scripts/compare/compare_lm_eval.py has
// those of EleutherAI's lm-evaluation-harness.
#include "runtime/eval/multiple_choice.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

std::vector<Question> read(const std::string& text) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/questions.jsonl";
  std::ofstream(path) << text;
  return read_questions(path);
}

/// Text of the refusal of a file, without its folder.
std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::data);
    const std::string what = e.what();
    return what.substr(what.find("questions.jsonl"));
  }
  return "none";
}

const std::string kGood = R"({"question": "1 + 1 is", "choices": ["2", "3"], "answer": 0, "source": "x"})"
                          "\n";

std::string text_of(const std::vector<int32_t>& ids) { return data::make_byte_tokenizer()->decode(ids); }

}  // namespace

TEST_CASE("a file of questions is read line by line, and what is none is refused by line, key and rule") {
  const auto all = read(kGood + "\n" + R"({"answer":2,"choices":["a"," b","c d"],"question":""})");
  REQUIRE(all.size() == 2);
  CHECK((all[0].text == "1 + 1 is" && all[0].choices.size() == 2 && all[0].answer == 0 && all[0].line == 1));
  CHECK((all[1].text.empty() && all[1].choices[1] == " b" && all[1].answer == 2 && all[1].line == 3));

  CHECK(refusal("") == "questions.jsonl: has no question");
  CHECK(refusal("\n \n") == "questions.jsonl: has no question");
  CHECK(refusal(kGood + "[]\n") == "questions.jsonl:2: is no JSON object");
  CHECK(refusal(kGood + "{\"question\": \n").find("questions.jsonl:2: is no JSON object: ") == 0);
  for (const auto& [line, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"choices": ["a", "b"], "answer": 0})", "question must be a text"},
           {R"({"question": 1, "choices": ["a", "b"], "answer": 0})", "question must be a text"},
           {R"({"question": "", "answer": 0})", "choices must be a list of two texts or more"},
           {R"({"question": "", "choices": ["a"], "answer": 0})",
            "choices must be a list of two texts or more"},
           {R"({"question": "", "choices": ["a", 2], "answer": 0})", "choices must be texts"},
           {R"({"question": "", "choices": ["a", " "], "answer": 0})",
            "choices must not be empty or white space alone"},
           {R"({"question": "", "choices": ["a", "b"]})", "answer must be a whole number, 0 to 1, "},
           {R"({"question": "", "choices": ["a", "b"], "answer": 2})",
            "answer must be a whole number, 0 to 1, "},
           {R"({"question": "", "choices": ["a", "b"], "answer": -1})",
            "answer must be a whole number, 0 to 1, "},
           {R"({"question": "", "choices": ["a", "b"], "answer": "0"})",
            "answer must be a whole number, 0 to 1, "},
           {R"({"question": "", "choices": ["a", "b"], "answer": 8171e4001})", "is no JSON object: "}}) {
    INFO(line);
    CHECK(refusal(kGood + line).find("questions.jsonl:2: " + what) == 0);
  }
  std::string deep = "{\"question\": \"\", \"choices\": ";
  for (int i = 0; i < 100000; ++i) deep += '[';
  CHECK(refusal(deep).find("questions.jsonl:1: is no JSON object: ") == 0);
}

TEST_CASE("random damage of a file of questions is an error or harmless") {
  std::string good;
  for (int i = 0; i < 4; ++i)
    good += R"({"question": "été \u00e9", "choices": ["ß", "\ud83d\ude00 b", "c"], "answer": 1})"
            "\n";
  uint64_t state = 1;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (int k = 0; k < 1 + i % 3; ++k) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      bad[(state >> 33) % bad.size()] = static_cast<char>(i % 2 ? state >> 25 : 32 + (state >> 25) % 95);
    }
    try {
      for (const Question& q : read(bad)) {
        CHECK(q.answer < q.choices.size());
        question_tokens(q, *data::make_byte_tokenizer(), {});
      }
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::data);
      ++refused;
    }
  }
  CHECK(refused > 500);
  CHECK(refused < 3000);
}

TEST_CASE("a choice follows its question behind one space, or the white space that is there") {
  const auto tokenizer = data::make_byte_tokenizer();
  const auto texts = [&](const Question& q, const std::vector<int32_t>& begin = {}) {
    const QuestionTokens t = question_tokens(q, *tokenizer, begin);
    std::string all = text_of(t.context);
    for (const auto& c : t.choices) all += "|" + text_of(c);
    return all;
  };
  CHECK(texts({"The sky is", {"blue", " red"}}) == "The sky is| blue| red");
  CHECK(texts({"The sky is \n", {"blue", " red"}}) == "The sky is| \nblue| \n red");
  CHECK(texts({"The sky is", {"blue", "red"}}, {256}) == "<|endoftext|>The sky is| blue| red");
  CHECK(texts({"", {"a", "b"}}, {1, 2}) == "<|endoftext|>| a| b");
  CHECK(texts({"", {"blue", "red"}}) == "<|endoftext|>| blue| red");
  CHECK(texts({" ", {"blue", "red"}}) == "<|endoftext|>| blue| red");
}

TEST_CASE("scores of choices are the losses of an evaluation, and the greatest is chosen") {
  TinyOptions o;
  o.seq = 24;
  o.vocab = 257;
  o.global_batch = o.micro_batch = 1;
  ProgramOptions options = tiny_program(o);
  options.for_training = false;
  const auto compute = make_inline_stream("compute");
  CpuArena arena(64 << 20);
  GroupSet alone;
  TrainProgram program(options, {*compute, arena, alone.groups()});
  program.initialize();
  KeyValueCache cache = program.make_cache();
  const auto tokenizer = data::make_byte_tokenizer();
  const std::vector<Question> questions{{"one two", {"three", "a much longer", "4"}, 1, 1},
                                        {"a question that is far too long for it", {"yes", "no"}, 0, 2},
                                        {"", {"yes", "no"}, 1, 3}};
  // The whole text in an evaluation in which the targets of the choice alone count.
  const auto evaluated = [&](const QuestionTokens& q, const std::vector<int32_t>& choice) {
    std::vector<int32_t> text = q.context;
    text.insert(text.end(), choice.begin(), choice.end());
    if (text.size() > 25) text.erase(text.begin(), text.end() - 25);
    HostBatch batch;
    batch.tokens.assign(24, 0);
    batch.targets.assign(24, -1);
    batch.sample_index = {0};
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      batch.tokens[i] = text[i];
      if (i + 1 >= text.size() - choice.size()) batch.targets[i] = text[i + 1];
    }
    bool once = false;
    const EvalResult r = *program.evaluate(
        [&]() -> const HostBatch* { return std::exchange(once, true) ? nullptr : &batch; }, {});
    CHECK(r.tokens == static_cast<int64_t>(choice.size()));
    return -r.loss * static_cast<double>(r.tokens);
  };
  std::vector<size_t> chosen, by_length;
  double most = 0;
  const auto result = answer_questions(
      questions, "questions.jsonl", program, cache, *tokenizer, {}, [&](const AnsweredQuestion& a) {
        const QuestionTokens q = question_tokens(a.question, *tokenizer, {});
        REQUIRE(a.log_likelihoods.size() == q.choices.size());
        size_t best = 0, best_by_length = 0;
        const auto per = [&](size_t i) {
          return a.log_likelihoods[i] / static_cast<double>(a.question.choices[i].size());
        };
        for (size_t i = 0; i < q.choices.size(); ++i) {
          most = std::max(most, std::abs(evaluated(q, q.choices[i]) - a.log_likelihoods[i]));
          if (a.log_likelihoods[i] > a.log_likelihoods[best]) best = i;
          if (per(i) > per(best_by_length)) best_by_length = i;
        }
        CHECK(a.chosen == best);
        CHECK(a.chosen_by_length == best_by_length);
        chosen.push_back(a.chosen), by_length.push_back(a.chosen_by_length);
      });
  CHECK(most < 1e-6);  // bound for fp32 logits
  CHECK(result.questions == 3);
  CHECK(result.shortened == 1);
  int64_t right = 0, right_by_length = 0;
  for (size_t i = 0; i < 3; ++i)
    right += chosen[i] == questions[i].answer, right_by_length += by_length[i] == questions[i].answer;
  CHECK(result.right == right);
  CHECK(result.right_by_length == right_by_length);
  // The longest choice has the least sum of all, and a text of many tokens is scored in parts.
  CHECK(chosen[0] == 2);
  CHECK_THROWS_WITH(
      answer_questions({{"q", {"yes", std::string(40, 'x')}, 0, 7}}, "questions.jsonl", program, cache,
                       *tokenizer, {}, [](const AnsweredQuestion&) {}),
      Catch::Contains("questions.jsonl:7: a choice has 41 tokens, and the model's sequences 24"));
}

TEST_CASE("the standard error of an accuracy is that of a mean of zeros and ones") {
  MultipleChoiceResult r;
  r.questions = 5, r.right = 2;
  CHECK(r.accuracy() == 0.4);
  // Sample standard deviation of (1, 1, 0, 0, 0) over the root of 5.
  CHECK(r.standard_error(0.4) == Approx(std::sqrt((2 * 0.36 + 3 * 0.16) / 4 / 5)));
  r.questions = r.right = 1;
  CHECK(r.standard_error(1) == 0);
}
