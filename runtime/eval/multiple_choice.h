// Questions with several answers, of which the model should find the right one the likeliest. Accuracies are
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
  std::vector<std::string> choices;  ///< what may follow it, at least two
  size_t answer = 0;                 ///< the right one
  int64_t line = 0;                  ///< of the file, from 1
};

/// Of a JSONL file whose lines are {"question": TEXT, "choices": [TEXT, ...], "answer": INDEX}; other keys
/// are not looked at. Error (data) that names file, line, key and rule.
std::vector<Question> read_questions(const std::string& path);

struct MultipleChoiceResult {
  int64_t questions = 0;
  int64_t right = 0;            ///< the right choice has the greatest log-likelihood
  int64_t right_by_length = 0;  ///< the same of log-likelihood over characters of the choice
  int64_t shortened = 0;        ///< questions whose beginning did not fit into a sequence
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(questions); }
  double accuracy_by_length() const {
    return static_cast<double>(right_by_length) / static_cast<double>(questions);
  }
  /// Of an accuracy: standard error of the mean.
  double standard_error(double accuracy) const;
};

/// A question as tokens: `context` is seen, at least one, and each of `choices` scored behind it, at least
/// one each.
struct QuestionTokens {
  std::vector<int32_t> context;
  std::vector<std::vector<int32_t>> choices;
};

/// One space stands between a question and a choice, where neither has white space there. `begin` comes
/// before a question; an empty one is the token that begins or ends documents.
QuestionTokens question_tokens(const Question& question, data::Tokenizer& tokenizer,
                               const std::vector<int32_t>& begin);

/// What the model says of one question.
struct AnsweredQuestion {
  const Question& question;
  std::vector<double> log_likelihoods;  ///< of each choice: sums over its tokens, natural logarithms
  size_t chosen = 0, chosen_by_length = 0;
};

/// Scores questions on one process; `each` sees every one, in their order.
MultipleChoiceResult answer_questions(const std::vector<Question>& questions, const std::string& path,
                                      TrainProgram& program, KeyValueCache& cache, data::Tokenizer& tokenizer,
                                      const std::vector<int32_t>& begin,
                                      const std::function<void(const AnsweredQuestion&)>& each);

}  // namespace ltrain
