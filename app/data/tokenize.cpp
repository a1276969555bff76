// ltrain tokenize: text to ids and back.
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "app/commands.h"
#include "app/tokenizer_option.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/files/strict_json.h"

namespace ltrain::app {
namespace {

using data::Tokenizer;

struct TokenizeCommand {
  TokenizerOption tokenizer;
  std::vector<std::string> texts;
  std::string cases;
  bool decode = false, json = false, count = false, special = false, split_special = false;

  void run() const {
    const auto t = tokenizer.make();
    t->set_split_special_tokens(split_special);
    if (!cases.empty()) return run_cases(*t);
    if (decode) return texts.empty() ? run_decode(*t) : decode_arguments(*t);
    if (!texts.empty()) return encode_arguments(*t);
    run_encode(*t);
  }

  std::vector<int32_t> encode(Tokenizer& t, std::string_view text) const {
    std::vector<int32_t> ids = t.encode(text);
    if (special) t.add_special_tokens(ids);
    return ids;
  }

  /// Prints one line per text.
  void encode_arguments(Tokenizer& t) const {
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = encode(t, text);
      if (count)
        std::printf("%zu\n", ids.size());
      else
        std::printf("%s\n", (json ? "[" + fmt::format("{}", fmt::join(ids, ",")) + "]"
                                  : fmt::format("{}", fmt::join(ids, " ")))
                                .c_str());
    }
  }

  void decode_arguments(const Tokenizer& t) const {
    Decoding d(t, "arguments");
    for (const std::string& text : texts) {
      for (char c : text) d.put(c);
      d.end_of_word();
    }
    d.finish();
    std::printf("\n");
  }

  /// Encodes in pieces at safe cuts, so that standard input may have any size.
  void run_encode(Tokenizer& t) const {
    std::string text;
    std::vector<char> block(1 << 20);
    std::vector<int32_t> ids, before, after;
    if (special) around(t, before, after);
    int64_t total = 0;
    size_t wanted = 1;
    if (json) std::printf("[");
    const auto put = [&](const std::vector<int32_t>& some) {
      for (int32_t id : some)
        if (!count)
          std::printf("%s%d", total++ ? (json ? "," : " ") : "", id);
        else
          ++total;
    };
    put(before);
    for (bool end = false; !end;) {
      const size_t n = std::fread(block.data(), 1, block.size(), stdin);
      end = n == 0;
      text.append(block.data(), n);
      if (!end && text.size() < wanted) continue;
      const size_t take = end ? text.size() : static_cast<size_t>(t.safe_cut(text));
      wanted = take == 0 ? 2 * text.size() : 1;
      ids.clear();
      t.encode(std::string_view(text).substr(0, take), ids);
      text.erase(0, take);
      put(ids);
    }
    put(after);
    if (count) std::printf("%lld", static_cast<long long>(total));
    std::printf(json ? "]\n" : "\n");
  }

  /// Tokens that add_special_tokens() puts before and after a text.
  static void around(const Tokenizer& t, std::vector<int32_t>& before, std::vector<int32_t>& after) {
    std::vector<int32_t> ids{-1};
    t.add_special_tokens(ids);
    const auto text = std::find(ids.begin(), ids.end(), -1);
    before.assign(ids.begin(), text);
    after.assign(text + 1, ids.end());
  }

  /// Decodes ids given as words to text on standard output.
  class Decoding {
   public:
    Decoding(const Tokenizer& t, const char* where) : t_(t), where_(where) {}
    void put(char c) {
      if (std::isspace(static_cast<unsigned char>(c)) || c == ',' || c == '[' || c == ']')
        end_of_word();
      else
        word_ += c;
    }
    void end_of_word() {
      if (word_.empty()) return;
      char* end = nullptr;
      const long long id = std::strtoll(word_.c_str(), &end, 10);
      if (*end != '\0' || id < 0 || id >= t_.vocab_size())
        fail(ExitCode::data, "{}, id {}: {} is not a token id of {} (0 to {})", where_, position_,
             printable(word_, 40), t_.name(), t_.vocab_size() - 1);
      const int32_t value = static_cast<int32_t>(id);
      t_.decode(&value, 1, text_, position_ == 0);
      ++position_;
      word_.clear();
      if (text_.size() >= 1 << 16) flush();
    }
    void finish() {
      end_of_word();
      flush();
    }

   private:
    void flush() {
      std::fwrite(text_.data(), 1, text_.size(), stdout);
      text_.clear();
    }
    const Tokenizer& t_;
    const char* where_;
    std::string text_, word_;
    int64_t position_ = 0;
  };

  void run_decode(const Tokenizer& t) const {
    Decoding d(t, "standard input");
    for (int c; (c = std::getchar()) != EOF;) d.put(static_cast<char>(c));
    d.finish();
  }

  /// Checks JSONL of {"text": ..., "ids": [...]}, with "decoded" if the ids decode to another text. Throws
  /// Error (data) with the first case that differs.
  void run_cases(Tokenizer& t) const {
    const InputFile file(cases);
    std::string block(1 << 20, '\0'), rest;
    int64_t at = 0, line = 0, passed = 0;
    for (bool end = false; !end;) {
      const int64_t n = file.read_some(block.data(), at, static_cast<int64_t>(block.size()));
      at += n;
      end = n == 0;
      rest.append(block, 0, static_cast<size_t>(n));
      size_t from = 0;
      for (size_t stop; (stop = rest.find('\n', from)) != rest.npos || (end && from < rest.size());
           from = stop + 1) {
        if (stop == rest.npos) stop = rest.size();
        ++line;
        const std::string one = rest.substr(from, stop - from);
        if (one.find_first_not_of(" \t\r") != one.npos) {
          check_case(t, one, line);
          ++passed;
        }
        if (stop == rest.size()) break;
      }
      rest.erase(0, end ? rest.size() : from);
      if (rest.size() > size_t{256} << 20)
        fail(ExitCode::data, "{}:{}: a line of more than 256 MiB", cases, line + 1);
    }
    if (passed == 0) fail(ExitCode::data, "{}: holds no case", cases);
    std::printf("%lld cases agree with %s\n", static_cast<long long>(passed), cases.c_str());
  }

  void check_case(Tokenizer& t, const std::string& text, int64_t line) const {
    std::string error;
    const nlohmann::json j = parse_strict(text, 4, error);
    if (!error.empty()) fail(ExitCode::data, "{}:{}: {}", cases, line, error);
    const auto wrong = [&](const char* why) { fail(ExitCode::data, "{}:{}: {}", cases, line, why); };
    if (!j.is_object() || !j.contains("text") || !j["text"].is_string() || !j.contains("ids") ||
        !j["ids"].is_array())
      wrong("a case is an object with a string \"text\" and a list \"ids\"");
    std::vector<int32_t> want;
    for (const auto& id : j["ids"]) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX)
        wrong("\"ids\" holds something that is no id");
      want.push_back(id.get<int32_t>());
    }
    const std::string given = j["text"].get<std::string>();
    const std::vector<int32_t> got = encode(t, given);
    const auto [a, b] = std::mismatch(want.begin(), want.end(), got.begin(), got.end());
    if (a != want.end() || b != got.end()) {
      const auto shown = [](auto from, auto to) {
        const auto n = std::min<int64_t>(to - from, 8);
        return fmt::format("{}{}", fmt::join(from, from + n, " "),
                           n < to - from ? " ..."
                           : n == 0      ? "(end)"
                                         : "");
      };
      fail(ExitCode::data, "{}:{}: text \"{}\": differs at id {}: the file has {}, {} gives {}", cases, line,
           printable(given, 200), a - want.begin(), shown(a, want.end()), t.name(), shown(b, got.end()));
    }
    if (!j.contains("decoded")) return;
    if (!j["decoded"].is_string()) wrong("\"decoded\" is not a string");
    const std::string back = t.decode(got);
    if (back != j["decoded"].get<std::string>())
      fail(ExitCode::data, "{}:{}: ids of the text \"{}\": the file has \"{}\" for them, {} gives \"{}\"",
           cases, line, printable(given, 200), printable(j["decoded"].get<std::string>(), 200), t.name(),
           printable(back, 200));
  }
};

}  // namespace

void add_tokenize(CLI::App& app) {
  auto c = std::make_shared<TokenizeCommand>();
  CLI::App* s = app.add_subcommand("tokenize",
                                   "text to token ids, or back\n"
                                   "Example: echo Hello | ltrain tokenize | ltrain tokenize --decode");
  s->add_option("text", c->texts, "text, or with --decode ids; else standard input");
  c->tokenizer.add_to(*s);
  CLI::Option* decode = s->add_flag("--decode", c->decode, "ids to text");
  s->add_flag("--json", c->json, "ids as a JSON list")->excludes(decode);
  s->add_flag("--count", c->count, "only how many ids")->excludes(decode);
  s->add_flag("--special-tokens", c->special, "with what the tokenizer's post-processor puts around a text")
      ->excludes(decode);
  add_split_special_tokens(*s, c->split_special);
  s->get_option("--split-special-tokens")->excludes(decode);
  s->add_option("--cases", c->cases,
                "JSONL of {\"text\", \"ids\"}: compare, end with the first difference (exit code 65)")
      ->excludes(decode);
  s->callback([c] { c->run(); });
}

}  // namespace ltrain::app
