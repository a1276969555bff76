// Multiple-choice questions: the model should give the right answer the highest likelihood. Accuracies are
// those of EleutherAI's lm-evaluation-harness (`acc`, `acc_norm`) for tasks of type multiple_choice.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/program/train_program.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain {

struct Question {
  std::string text;                  ///< may be empty
  std::vector<std::string> choices;  ///< possible continuations, at least two
  size_t answer = 0;                 ///< index of the right choice
  int64_t line = 0;                  ///< line in the file, from 1
};

/// Reads a JSONL file with lines {"question": TEXT, "choices": [TEXT, ...], "answer": INDEX}. Other keys are
/// ignored. Throws Error (data) with file, line, key and rule.
std::vector<Question> read_questions(const std::string& path);

struct MultipleChoiceResult {
  int64_t questions = 0;
  int64_t right = 0;  ///< questions whose right choice has the largest log-likelihood
  /// Questions whose right choice has the largest log-likelihood per character.
  int64_t right_by_length = 0;
  int64_t shortened = 0;  ///< questions whose beginning did not fit into a sequence
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(questions); }
  double accuracy_by_length() const {
    return static_cast<double>(right_by_length) / static_cast<double>(questions);
  }
  /// Standard error of the mean of an accuracy.
  double standard_error(double accuracy) const;
};

/// A question as tokens. `context` is the input and has at least one token. Each of `choices` is scored after
/// it and has at least one token.
struct QuestionTokens {
  std::vector<int32_t> context;
  std::vector<std::vector<int32_t>> choices;
};

/// Tokenizes a question. A space is inserted between question and choice if there is no white space. `begin`:
/// tokens before the question; if empty, the token that begins or ends documents is used.
QuestionTokens question_tokens(const Question& question, data::Tokenizer& tokenizer,
                               const std::vector<int32_t>& begin);

/// Result of one question.
struct AnsweredQuestion {
  const Question& question;
  std::vector<double> log_likelihoods;  ///< per choice: sum over its tokens, natural logarithm
  size_t chosen = 0, chosen_by_length = 0;
};

/// Scores questions in one process. Calls `each` for every question, in order.
MultipleChoiceResult answer_questions(const std::vector<Question>& questions, const std::string& path,
                                      TrainProgram& program, KeyValueCache& cache, data::Tokenizer& tokenizer,
                                      const std::vector<int32_t>& begin,
                                      const std::function<void(const AnsweredQuestion&)>& each);

}  // namespace ltrain
