#include "runtime/chat/jinja_parser.h"

#include "base/printable.h"
#include "runtime/chat/jinja_expressions.h"

namespace ltrain::chat {
namespace {

using Type = Token::Type;

/// Reads statements. Members of an enclosing statement (loops around it, names that a macro uses) are kept
/// and restored around bodies that are functions of their own.
class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  std::shared_ptr<const ParsedTemplate> run() {
    parsed_->body = statements({});
    if (now().type != Type::end) unexpected("the end of the template");
    check_calls();
    return parsed_;
  }

 private:
  /// Statements up to a tag of `ends`, which is not read; or up to the end of the template without `ends`.
  Block statements(const std::vector<std::string_view>& ends) {
    const Nest nest(*this);
    Block block;
    while (now().type != Type::end) {
      const int line = now().line;
      if (now().type == Type::data) {
        StmtPtr s = make_statement(StmtKind::data, line);
        s->text = source_text(now().text);
        skip();
        block.push_back(std::move(s));
      } else if (now().type == Type::print_begin) {
        skip();
        StmtPtr s = make_statement(StmtKind::print, line);
        s->values.push_back(tuple());
        expect(Type::print_end, "}}");
        block.push_back(std::move(s));
      } else {
        expect(Type::block_begin, "{%");
        for (const std::string_view end : ends)
          if (now().named(end)) return block;
        block.push_back(statement(ends));
        expect(Type::block_end, "%}");
      }
    }
    if (!ends.empty()) unexpected(fmt::format("{{% {} %}}", ends.back()));
    return block;
  }

  /// The body of a statement and the word that ends it.
  Block body(const std::vector<std::string_view>& ends, std::string* found = nullptr) {
    skip_op(":");
    expect(Type::block_end, "%}");
    Block block = statements(ends);
    const std::string end = expect_name();
    if (found) *found = end;
    return block;
  }

  /// The body of a function of its own: a macro, a generation block, a call block.
  Block function_body(const std::vector<std::string_view>& ends, Stmt* macro) {
    const int loops = std::exchange(loops_, 0);
    const bool caller = std::exchange(uses_caller_, false), named = std::exchange(uses_named_, false),
               positional = std::exchange(uses_positional_, false);
    Block block = body(ends);
    if (macro) {
      if (uses_caller_) macro->caller_name = interned_name("caller");
      if (uses_named_) macro->named_name = interned_name("kwargs");
      if (uses_positional_) macro->positional_name = interned_name("varargs");
    }
    loops_ = loops;
    uses_caller_ = caller || (!macro && uses_caller_);
    uses_named_ = named || (!macro && uses_named_);
    uses_positional_ = positional || (!macro && uses_positional_);
    return block;
  }

  static StmtPtr make_statement(StmtKind kind, int line) {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = line;
    return s;
  }

  StmtPtr statement(const std::vector<std::string_view>& ends) {
    const int line = now().line;
    const std::string tag = expect_name();
    if (tag == "for") return loop(line);
    if (tag == "if") return branch(line);
    if (tag == "set") return set(line);
    if (tag == "macro") return macro(line);
    if (tag == "with") return with(line);
    if (tag == "call") return call_block(line);
    if (tag == "print") return print(line);
    if (tag == "filter") {
      StmtPtr s = make_statement(StmtKind::filter_block, line);
      s->filters = filter_chain(nullptr, true);
      s->body = body({"endfilter"});
      return s;
    }
    if (tag == "generation") {
      parsed_->generation = true;
      StmtPtr s = make_statement(StmtKind::generation, line);
      s->body = function_body({"endgeneration"}, nullptr);
      return s;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail_at(line, "{} outside of a loop", tag);
      return make_statement(tag == "break" ? StmtKind::leave : StmtKind::next, line);
    }
    for (const char* other : {"include", "import", "from", "extends", "block", "autoescape", "do", "trans"})
      if (tag == other) fail_at(line, "the tag {} is not supported in chat templates", tag);
    std::vector<std::string> names = {"for",   "if",     "set",        "macro", "with",     "call",
                                      "print", "filter", "generation", "break", "continue", "raw"};
    names.insert(names.end(), ends.begin(), ends.end());
    unknown(line, "tag", tag, names);
  }

  StmtPtr print(int line) {
    StmtPtr s = make_statement(StmtKind::print, line);
    while (now().type != Type::block_end) {
      if (!s->values.empty()) expect_op(",");
      s->values.push_back(expression());
    }
    return s;
  }

  StmtPtr loop(int line) {
    StmtPtr s = make_statement(StmtKind::loop, line);
    s->text = interned_name("loop");
    s->target = target(false, "in");
    if (!skip_name("in")) unexpected("\"in\"");
    s->values.push_back(tuple(false, false, "recursive"));
    s->values.push_back(skip_name("if") ? expression() : nullptr);
    if (now().named("recursive")) fail_at(line, "recursive loops are not supported in chat templates");
    ++loops_;
    std::string end;
    s->body = body({"else", "endfor"}, &end);
    --loops_;
    if (end == "else") s->other = body({"endfor"});
    return s;
  }

  StmtPtr branch(int line) {
    StmtPtr s = make_statement(StmtKind::branch, line);
    s->values.push_back(tuple(false));
    std::string end;
    s->body = body({"elif", "else", "endif"}, &end);
    while (end == "elif") {
      StmtPtr other = make_statement(StmtKind::branch, now().line);
      other->values.push_back(tuple(false));
      other->body = body({"elif", "else", "endif"}, &end);
      s->elifs.push_back(std::move(other));
    }
    if (end == "else") s->other = body({"endif"});
    return s;
  }

  StmtPtr set(int line) {
    StmtPtr s = make_statement(StmtKind::set, line);
    s->target = target(true);
    if (skip_op("=")) {
      s->values.push_back(tuple());
      return s;
    }
    s->kind = StmtKind::set_block;
    s->filters = filter_chain(nullptr, false);
    s->body = body({"endset"});
    return s;
  }

  void signature(Stmt& s) {
    expect_op("(");
    while (!now().is(")")) {
      if (!s.parameters.empty()) expect_op(",");
      const int line = now().line;
      TextPtr name = target_name();
      for (const TextPtr& other : s.parameters)
        if (other == name) fail_at(line, "the parameter {} stands twice", printable(name->bytes, 40));
      s.parameters.push_back(std::move(name));
      if (skip_op("="))
        s.defaults.push_back(expression());
      else if (!s.defaults.empty())
        fail_at(line, "a parameter without a default after one with a default");
    }
    expect_op(")");
  }

  StmtPtr macro(int line) {
    StmtPtr s = make_statement(StmtKind::macro, line);
    s->text = target_name();
    signature(*s);
    s->body = function_body({"endmacro"}, s.get());
    return s;
  }

  StmtPtr call_block(int line) {
    StmtPtr s = make_statement(StmtKind::call_block, line);
    s->text = interned_name("caller");
    if (now().is("(")) signature(*s);
    s->values.push_back(expression());
    if (s->values[0]->kind != ExprKind::call) fail_at(line, "expected the call of a macro");
    s->body = function_body({"endcall"}, nullptr);
    return s;
  }

  StmtPtr with(int line) {
    StmtPtr s = make_statement(StmtKind::with, line);
    while (now().type != Type::block_end) {
      if (!s->targets.empty()) expect_op(",");
      s->targets.push_back(target(false));
      expect_op("=");
      s->values.push_back(expression());
    }
    s->body = body({"endwith"});
    return s;
  }

  std::shared_ptr<ParsedTemplate> parsed_ = std::make_shared<ParsedTemplate>();
};

}  // namespace

std::shared_ptr<const ParsedTemplate> parse_jinja(std::string_view source, const std::string& name) {
  return Parser(jinja_tokens(source, name), name).run();
}

}  // namespace ltrain::chat
