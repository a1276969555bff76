#include "runtime/eval/multiple_choice.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/file.h"
#include "runtime/files/strict_json.h"

namespace ltrain {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";
constexpr int64_t kMostBytes = 256 << 20;  // maximum file size; the file is held in memory

bool is_white(char c) { return kWhiteSpace.find(c) != kWhiteSpace.npos; }

[[noreturn]] void wrong(const std::string& path, int64_t line, const std::string& what) {
  fail(ExitCode::data, "{}:{}: {}", printable(path), line, what);
}

Question read_question(const std::string& path, int64_t line, const std::string& text) {
  std::string error;
  const nlohmann::json j = data::parse_strict(text, 16, error);
  if (!error.empty()) wrong(path, line, "is no JSON object: " + error);
  const auto needs = [&](const char* key, const char* what) {
    wrong(path, line,
          fmt::format("{} {}; a line is {{\"question\": TEXT, \"choices\": [TEXT, ...], \"answer\": INDEX}}",
                      key, what));
  };
  if (!j.is_object()) wrong(path, line, "is no JSON object");
  Question q;
  q.line = line;
  const auto question = j.find("question"), choices = j.find("choices"), answer = j.find("answer");
  if (question == j.end() || !question->is_string()) needs("question", "must be a text");
  q.text = question->get<std::string>();
  if (choices == j.end() || !choices->is_array() || choices->size() < 2)
    needs("choices", "must be a list of two texts or more");
  for (const auto& c : *choices) {
    if (!c.is_string()) needs("choices", "must be texts");
    q.choices.push_back(c.get<std::string>());
    if (q.choices.back().find_first_not_of(kWhiteSpace) == std::string::npos)
      needs("choices", "must not be empty or white space alone");
  }
  if (answer == j.end() || !answer->is_number_unsigned() || answer->get<uint64_t>() >= q.choices.size())
    needs("answer",
          fmt::format("must be a whole number, 0 to {}, the index of the right choice", q.choices.size() - 1)
              .c_str());
  q.answer = answer->get<size_t>();
  return q;
}

/// Number of code points of a UTF-8 text.
int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

size_t index_of_most(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

std::vector<Question> read_questions(const std::string& path) {
  const data::InputFile file(path);
  if (file.size() > kMostBytes)
    fail(ExitCode::data, "{}: has {} bytes; a file of questions has {} MiB at most, divide it",
         printable(path), file.size(), kMostBytes >> 20);
  std::string all(static_cast<size_t>(file.size()), '\0');
  file.read(all.data(), 0, file.size());
  std::vector<Question> questions;
  int64_t line = 0;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    const std::string text = all.substr(at, end - at);
    at = end + 1;
    ++line;
    if (text.find_first_not_of(kWhiteSpace) != std::string::npos)
      questions.push_back(read_question(path, line, text));
  }
  if (questions.empty()) fail(ExitCode::data, "{}: has no question", printable(path));
  return questions;
}

double MultipleChoiceResult::standard_error(double accuracy) const {
  return questions > 1 ? std::sqrt(accuracy * (1 - accuracy) / static_cast<double>(questions - 1)) : 0;
}

QuestionTokens question_tokens(const Question& question, data::Tokenizer& tokenizer,
                               const std::vector<int32_t>& begin) {
  // White space at the end goes to the choices, because most tokenizers join it with the following word.
  const size_t words = question.text.find_last_not_of(kWhiteSpace) + 1;  // npos + 1 is 0
  const std::string context = question.text.substr(0, words), white = question.text.substr(words);
  QuestionTokens q;
  std::vector<int32_t> alone;
  tokenizer.encode(context, alone);
  if (alone.empty()) {
    const int32_t mark = tokenizer.bos() >= 0 ? tokenizer.bos() : tokenizer.eot();
    if (mark < 0)
      fail(ExitCode::usage,
           "a question is empty, and the tokenizer's files name no token that begins or ends documents, "
           "which a choice "
           "could follow");
    q.context.push_back(mark);
  } else {
    q.context = begin;
    q.context.insert(q.context.end(), alone.begin(), alone.end());
  }
  for (const std::string& choice : question.choices) {
    const std::string joint = white.empty() && !is_white(choice[0]) ? " " : white;
    std::vector<int32_t> whole;
    tokenizer.encode(context + joint + choice, whole);
    // A tokenizer may join the last word of a question with the following text. The choice then has fewer
    // tokens.
    const size_t from = std::min(alone.size(), whole.size() - 1);
    q.choices.emplace_back(whole.begin() + static_cast<int64_t>(from), whole.end());
  }
  return q;
}

/// Fails for a choice that does not fit, and for a token outside the vocabulary.
static void check_tokens(const Question& question, const QuestionTokens& q, size_t room, int64_t vocab,
                         const std::string& path) {
  for (const auto& c : q.choices)
    if (c.size() > room)
      wrong(path, question.line,
            fmt::format("a choice has {} tokens, and the model's sequences {}; --seq-length may give more",
                        c.size(), room));
  const auto check = [&](const std::vector<int32_t>& tokens) {
    for (const int32_t t : tokens)
      if (t >= vocab)
        wrong(path, question.line, fmt::format("token {} is outside the model's vocabulary of {}", t, vocab));
  };
  check(q.context);
  std::for_each(q.choices.begin(), q.choices.end(), check);
}

MultipleChoiceResult answer_questions(const std::vector<Question>& questions, const std::string& path,
                                      TrainProgram& program, KeyValueCache& cache, data::Tokenizer& tokenizer,
                                      const std::vector<int32_t>& begin,
                                      const std::function<void(const AnsweredQuestion&)>& each) {
  MultipleChoiceResult result;
  const int64_t vocab = program.options().model.vocab_size;
  for (const Question& question : questions) {
    QuestionTokens q = question_tokens(question, tokenizer, begin);
    const size_t room = static_cast<size_t>(cache.capacity);
    check_tokens(question, q, room, vocab, path);
    std::vector<double> sums, by_length;
    bool shortened = false;
    size_t dropped = 0, seen = 0;  // context tokens that do not fit, and context tokens in the cache
    for (size_t i = 0; i < q.choices.size(); ++i) {
      const std::vector<int32_t>& choice = q.choices[i];
      // The last token of a choice is not an input.
      const size_t all = q.context.size() + choice.size() - 1, drop = all - std::min(all, room);
      const auto first_seen = q.context.begin() + static_cast<int64_t>(drop);
      const int64_t length = static_cast<int64_t>(all - drop);
      const Decoder& decoder = program.decoder();
      if (i == 0 || drop != dropped || decoder.rope_row(length) != decoder.rope_row(cache.text_length)) {
        cache.clear();
        // Length of the full text, which determines the rotation of the context.
        cache.text_length = length;
        dropped = drop;
        if (q.context.end() - first_seen > 1) program.extend({{&cache, {first_seen, q.context.end() - 1}}});
        seen = static_cast<size_t>(cache.length);
      }
      shortened = shortened || drop > 0;
      cache.length = static_cast<int64_t>(seen);  // drops the previous choice
      cache.text_length = length;
      std::vector<int32_t> rows{q.context.back()};
      rows.insert(rows.end(), choice.begin(), choice.end() - 1);
      double sum = 0;
      for (const TokenScore& s : program.score(cache, rows, choice)) sum += s.log_probability;
      sums.push_back(sum);
      by_length.push_back(sum / static_cast<double>(characters(question.choices[i])));
    }
    const AnsweredQuestion answered{.question = question,
                                    .log_likelihoods = sums,
                                    .chosen = index_of_most(sums),
                                    .chosen_by_length = index_of_most(by_length)};
    ++result.questions;
    result.shortened += shortened;
    result.right += answered.chosen == question.answer;
    result.right_by_length += answered.chosen_by_length == question.answer;
    each(answered);
  }
  return result;
}

}  // namespace ltrain
