// The part of the parser that reads expressions.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/chat/jinja_ast.h"
#include "runtime/chat/jinja_lexer.h"

namespace ltrain::chat {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

 protected:
  /// Counts levels of nesting of the source.
  class Nest {
   public:
    explicit Nest(ExpressionParser& parser);
    ~Nest() { --parser_.nesting_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    ExpressionParser& parser_;
  };

  template <class... Args>
  [[noreturn]] void fail_at(int line, fmt::format_string<Args...> text, Args&&... args) const {
    ltrain::fail(ExitCode::data, "{}:{}: {}", name_, line, fmt::format(text, std::forward<Args>(args)...));
  }
  [[noreturn]] void unexpected(const std::string& wanted) const;
  /// Throws "no KIND "WORD"; nearest: ...".
  [[noreturn]] void unknown(int line, const char* kind, const std::string& word,
                            const std::vector<std::string>& names) const;

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void skip() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect(Token::Type type, const char* what);
  std::string expect_name();
  TextPtr interned_name(const std::string& name);

  ExprPtr expression(bool with_choice = true);
  /// An expression, or several after each other as a tuple. `with_choice`: `x if y` may follow.
  ExprPtr tuple(bool with_choice = true, bool parenthesised = false, std::string_view end_name = "");
  ExprPtr filter_chain(ExprPtr input, bool without_pipe);
  /// Target of an assignment; its names are noted as assigned.
  ExprPtr target(bool with_space, std::string_view end_name = "");
  TextPtr target_name();
  Arguments call_arguments();
  ExprPtr make(ExprKind kind, int line, std::vector<ExprPtr> parts = {});
  /// Checks the names that are called, once all assignments are known.
  void check_calls() const;

  bool uses_caller_ = false, uses_named_ = false,
       uses_positional_ = false;  // names seen since they were reset
  int loops_ = 0;                 // loops around the statement

 private:
  ExprPtr logic_or();
  ExprPtr logic_and();
  ExprPtr logic_not();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter);
  ExprPtr primary();
  ExprPtr name_or_constant();
  ExprPtr postfix(ExprPtr e);
  ExprPtr filters_and_tests(ExprPtr e);
  ExprPtr subscript(ExprPtr e);
  ExprPtr call(ExprPtr e);
  ExprPtr test(ExprPtr e);
  /// A literal up to `close`, a comma between its parts and perhaps behind the last. `part` adds one.
  template <class Part>
  ExprPtr literal(ExprKind kind, std::string_view close, Part part);
  ExprPtr list_literal();
  ExprPtr dict_literal();
  /// Parts between commas up to the end of a tuple. `several`: set if there is a comma.
  template <class Part>
  std::vector<ExprPtr> tuple_parts(std::string_view end_name, bool& several, Part part);
  ExprPtr target_part(bool with_space);
  void check_test_argument(const Expr& e) const;
  bool ends_tuple(std::string_view end_name) const;

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  const std::string& name_;
  int nesting_ = 0;
  std::map<std::string, TextPtr, std::less<>> names_;
  std::set<std::string, std::less<>> assigned_;
  std::vector<std::pair<std::string, int>> called_;
};

}  // namespace ltrain::chat
