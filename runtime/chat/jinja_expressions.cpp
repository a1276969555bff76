#include "runtime/chat/jinja_expressions.h"

#include <algorithm>

#include "base/nearest_word.h"
#include "base/printable.h"
#include "runtime/chat/jinja_filters.h"
#include "runtime/chat/jinja_parser.h"

namespace ltrain::chat {
namespace {

using Type = Token::Type;

constexpr int kMaxExpressionDepth = kMaxJinjaDepth / 2;

std::string shown(const Token& t) {
  switch (t.type) {
    case Type::end:
      return "the end of the template";
    case Type::data:
      return "text";
    case Type::block_begin:
      return "{%";
    case Type::block_end:
      return "%}";
    case Type::print_begin:
      return "{{";
    case Type::print_end:
      return "}}";
    case Type::text:
      return "a string";
    case Type::integer:
    case Type::real:
      return "a number";
    default:
      return fmt::format("\"{}\"", printable(t.text, 40));
  }
}

}  // namespace

TextPtr source_text(std::string_view bytes) {
  auto text = std::make_shared<Text>();
  text->bytes = bytes;
  text->ascii =
      std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (!bytes.empty()) text->runs.push_back({bytes.size(), {}});
  return text;
}

ExpressionParser::Nest::Nest(ExpressionParser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMaxJinjaNesting)
    parser_.fail_at(parser_.now().line, "expressions and blocks are nested deeper than {} levels",
                    kMaxJinjaNesting);
  ++parser_.nesting_;
}

void ExpressionParser::unexpected(const std::string& wanted) const {
  fail_at(now().line, "expected {}, got {}", wanted, shown(now()));
}

void ExpressionParser::unknown(int line, const char* kind, const std::string& word,
                               const std::vector<std::string>& names) const {
  const std::string near = nearest_word(word, names);
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  fail_at(line, "no {} \"{}\"; {}", kind, printable(word, 40),
          near.empty() ? "supported: " + all : fmt::format("nearest: {}", near));
}

bool ExpressionParser::skip_op(std::string_view op) {
  const bool found = now().is(op);
  if (found) skip();
  return found;
}

bool ExpressionParser::skip_name(std::string_view name) {
  const bool found = now().named(name);
  if (found) skip();
  return found;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(fmt::format("\"{}\"", op));
}

void ExpressionParser::expect(Type type, const char* what) {
  if (now().type != type) unexpected(what);
  skip();
}

std::string ExpressionParser::expect_name() {
  if (now().type != Type::name) unexpected("a name");
  std::string name = now().text;
  skip();
  return name;
}

TextPtr ExpressionParser::interned_name(const std::string& name) {
  TextPtr& text = names_[name];
  if (!text) text = source_text(name);
  return text;
}

ExprPtr ExpressionParser::make(ExprKind kind, int line, std::vector<ExprPtr> parts) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = line;
  for (const ExprPtr& part : parts)
    if (part) e->depth = std::max(e->depth, part->depth + 1);
  if (e->depth > kMaxExpressionDepth)
    fail_at(line, "an expression of more than {} levels", kMaxExpressionDepth);
  e->parts = std::move(parts);
  return e;
}

namespace {

template <class... Parts>
std::vector<ExprPtr> parts_of(Parts... parts) {
  std::vector<ExprPtr> all;
  (all.push_back(std::move(parts)), ...);
  return all;
}

}  // namespace

ExprPtr ExpressionParser::expression(bool with_choice) {
  const Nest nest(*this);
  ExprPtr e = logic_or();
  while (with_choice && now().named("if")) {
    const int line = now().line;
    skip();
    ExprPtr condition = logic_or();
    ExprPtr other = skip_name("else") ? expression() : nullptr;
    e = make(ExprKind::choice, line, parts_of(std::move(e), std::move(condition), std::move(other)));
  }
  return e;
}

ExprPtr ExpressionParser::logic_or() {
  ExprPtr e = logic_and();
  for (int line = now().line; skip_name("or"); line = now().line)
    e = make(ExprKind::logic_or, line, parts_of(std::move(e), logic_and()));
  return e;
}

ExprPtr ExpressionParser::logic_and() {
  ExprPtr e = logic_not();
  for (int line = now().line; skip_name("and"); line = now().line)
    e = make(ExprKind::logic_and, line, parts_of(std::move(e), logic_not()));
  return e;
}

ExprPtr ExpressionParser::logic_not() {
  const int line = now().line;
  if (!skip_name("not")) return comparison();
  const Nest nest(*this);
  return make(ExprKind::logic_not, line, parts_of(logic_not()));
}

ExprPtr ExpressionParser::comparison() {
  const int line = now().line;
  ExprPtr first = sum();
  std::vector<ExprPtr> parts = parts_of(std::move(first));
  std::vector<std::string> ops;
  for (;;) {
    std::string op;
    for (const char* known : {"==", "!=", "<=", ">=", "<", ">"})
      if (now().is(known)) op = known;
    if (now().named("in")) op = "in";
    if (now().named("not") && after().named("in")) {
      op = "not in";
      skip();
    }
    if (op.empty()) break;
    skip();
    ops.push_back(op);
    parts.push_back(sum());
  }
  if (ops.empty()) return std::move(parts[0]);
  ExprPtr e = make(ExprKind::comparison, line, std::move(parts));
  e->ops = std::move(ops);
  return e;
}

ExprPtr ExpressionParser::sum() {
  ExprPtr e = concat();
  while (now().is("+") || now().is("-")) {
    const Token op = now();
    skip();
    e = make(ExprKind::binary, op.line, parts_of(std::move(e), concat()));
    e->ops = {op.text};
  }
  return e;
}

ExprPtr ExpressionParser::concat() {
  const int line = now().line;
  std::vector<ExprPtr> parts = parts_of(product());
  while (skip_op("~")) parts.push_back(product());
  return parts.size() == 1 ? std::move(parts[0]) : make(ExprKind::concat, line, std::move(parts));
}

ExprPtr ExpressionParser::product() {
  ExprPtr e = power();
  while (now().is("*") || now().is("/") || now().is("//") || now().is("%")) {
    const Token op = now();
    skip();
    e = make(ExprKind::binary, op.line, parts_of(std::move(e), power()));
    e->ops = {op.text};
  }
  return e;
}

ExprPtr ExpressionParser::power() {
  ExprPtr e = unary(true);
  for (int line = now().line; skip_op("**"); line = now().line) {
    e = make(ExprKind::binary, line, parts_of(std::move(e), unary(true)));
    e->ops = {"**"};
  }
  return e;
}

ExprPtr ExpressionParser::unary(bool with_filter) {
  const int line = now().line;
  ExprPtr e;
  if (now().is("-") || now().is("+")) {
    const Nest nest(*this);
    const ExprKind kind = now().is("-") ? ExprKind::negate : ExprKind::plus;
    skip();
    e = make(kind, line, parts_of(unary(false)));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filter ? filters_and_tests(std::move(e)) : std::move(e);
}

ExprPtr ExpressionParser::name_or_constant() {
  const Token token = now();
  skip();
  ExprPtr e = make(ExprKind::constant, token.line);
  if (token.text == "true" || token.text == "True") {
    e->value = true;
  } else if (token.text == "false" || token.text == "False") {
    e->value = false;
  } else if (token.text == "none" || token.text == "None") {
    e->value = None{};
  } else {
    e->kind = ExprKind::name;
    e->text = interned_name(token.text);
    uses_caller_ = uses_caller_ || token.text == "caller";
    uses_named_ = uses_named_ || token.text == "kwargs";
    uses_positional_ = uses_positional_ || token.text == "varargs";
  }
  return e;
}

ExprPtr ExpressionParser::primary() {
  const Token token = now();
  if (token.type == Type::name) return name_or_constant();
  if (token.type == Type::text) {
    std::string text;
    for (; now().type == Type::text; skip()) text += now().text;
    ExprPtr e = make(ExprKind::constant, token.line);
    e->value = source_text(text);
    return e;
  }
  if (token.type == Type::integer || token.type == Type::real) {
    skip();
    ExprPtr e = make(ExprKind::constant, token.line);
    e->value = token.type == Type::integer ? Value(token.integer) : Value(token.real);
    return e;
  }
  if (skip_op("(")) {
    ExprPtr e = tuple(true, true);
    expect_op(")");
    return e;
  }
  if (token.is("[")) return list_literal();
  if (token.is("{")) return dict_literal();
  unexpected("an expression");
}

template <class Part>
ExprPtr ExpressionParser::literal(ExprKind kind, std::string_view close, Part part) {
  const int line = now().line;
  skip();
  std::vector<ExprPtr> parts;
  while (!now().is(close)) {
    if (!parts.empty()) expect_op(",");
    if (now().is(close)) break;
    part(parts);
  }
  expect_op(close);
  return make(kind, line, std::move(parts));
}

ExprPtr ExpressionParser::list_literal() {
  return literal(ExprKind::list, "]", [&](std::vector<ExprPtr>& parts) { parts.push_back(expression()); });
}

ExprPtr ExpressionParser::dict_literal() {
  return literal(ExprKind::dict, "}", [&](std::vector<ExprPtr>& parts) {
    parts.push_back(expression());
    expect_op(":");
    parts.push_back(expression());
  });
}

bool ExpressionParser::ends_tuple(std::string_view end_name) const {
  return now().type == Type::print_end || now().type == Type::block_end || now().is(")") ||
         (!end_name.empty() && now().named(end_name));
}

template <class Part>
std::vector<ExprPtr> ExpressionParser::tuple_parts(std::string_view end_name, bool& several, Part part) {
  std::vector<ExprPtr> parts;
  for (;;) {
    if (!parts.empty()) expect_op(",");
    if (ends_tuple(end_name)) return parts;
    parts.push_back(part());
    if (!now().is(",")) return parts;
    several = true;
  }
}

ExprPtr ExpressionParser::tuple(bool with_choice, bool parenthesised, std::string_view end_name) {
  const int line = now().line;
  bool several = false;
  std::vector<ExprPtr> parts = tuple_parts(end_name, several, [&] { return expression(with_choice); });
  if (!several && !parts.empty()) return std::move(parts[0]);
  if (parts.empty() && !parenthesised) unexpected("an expression");
  return make(ExprKind::tuple, line, std::move(parts));
}

ExprPtr ExpressionParser::postfix(ExprPtr e) {
  for (;;) {
    if (now().is(".") || now().is("["))
      e = subscript(std::move(e));
    else if (now().is("("))
      e = call(std::move(e));
    else
      return e;
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr e) {
  for (;;) {
    if (now().is("|"))
      e = filter_chain(std::move(e), false);
    else if (now().named("is"))
      e = test(std::move(e));
    else if (now().is("("))
      e = call(std::move(e));
    else
      return e;
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr e) {
  const int line = now().line;
  if (skip_op(".")) {
    if (now().type == Type::integer) {
      ExprPtr key = make(ExprKind::constant, line);
      key->value = now().integer;
      skip();
      return make(ExprKind::item, line, parts_of(std::move(e), std::move(key)));
    }
    const std::string name = expect_name();
    e = make(ExprKind::attribute, line, parts_of(std::move(e)));
    e->text = interned_name(name);
    return e;
  }
  skip();
  std::vector<ExprPtr> keys;
  bool slice = false;
  while (!now().is("]")) {
    if (!keys.empty()) expect_op(",");
    ExprPtr bounds[3];
    if (!now().is(":")) bounds[0] = expression();
    if (!now().is(":")) {
      keys.push_back(std::move(bounds[0]));
      continue;
    }
    slice = true;
    for (int i = 1; i < 3 && skip_op(":"); ++i)
      if (!now().is(":") && !now().is("]") && !now().is(",")) bounds[i] = expression();
    keys.push_back(make(ExprKind::slice, line,
                        parts_of(nullptr, std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2]))));
  }
  expect_op("]");
  if (slice && keys.size() > 1) fail_at(line, "slices with several dimensions are not supported");
  if (slice) {
    std::vector<ExprPtr> parts = std::move(keys[0]->parts);
    parts[0] = std::move(e);
    return make(ExprKind::slice, line, std::move(parts));
  }
  ExprPtr key = keys.size() == 1 ? std::move(keys[0]) : make(ExprKind::tuple, line, std::move(keys));
  return make(ExprKind::item, line, parts_of(std::move(e), std::move(key)));
}

Arguments ExpressionParser::call_arguments() {
  const int line = now().line;
  expect_op("(");
  Arguments a;
  const auto ensure = [&](bool good) {
    if (!good) fail_at(line, "expected arguments without a name first, then those with one, each once");
  };
  bool comma = false;
  while (!now().is(")")) {
    if (comma) {
      expect_op(",");
      if (now().is(")")) break;
    }
    comma = true;
    if (skip_op("*")) {
      ensure(!a.all_positional && !a.all_named);
      a.all_positional = expression();
    } else if (skip_op("**")) {
      ensure(!a.all_named);
      a.all_named = expression();
    } else if (now().type == Type::name && after().is("=")) {
      ensure(!a.all_named);
      std::string name = expect_name();
      skip();
      for (const auto& [other, value] : a.named) ensure(other != name);
      assigned_.insert(name);  // namespace(name=...) can hold a macro
      a.named.emplace_back(std::move(name), expression());
    } else {
      ensure(!a.all_positional && !a.all_named && a.named.empty());
      a.positional.push_back(expression());
    }
  }
  expect_op(")");
  return a;
}

ExprPtr ExpressionParser::call(ExprPtr e) {
  const int line = now().line;
  if (e->kind == ExprKind::attribute && !is_method_name(e->text->bytes))
    called_.emplace_back("." + e->text->bytes, line);
  if (e->kind == ExprKind::name) called_.emplace_back(e->text->bytes, line);
  Arguments arguments = call_arguments();
  e = make(ExprKind::call, line, parts_of(std::move(e)));
  e->arguments = std::move(arguments);
  return e;
}

ExprPtr ExpressionParser::filter_chain(ExprPtr e, bool without_pipe) {
  while (now().is("|") || without_pipe) {
    if (!without_pipe) skip();
    without_pipe = false;
    const int line = now().line;
    const std::string name = expect_name();
    const FilterRow* row = find_filter(name);
    if (!row) unknown(line, "filter", name, filter_names());
    Arguments arguments;
    if (now().is("(")) arguments = call_arguments();
    e = make(ExprKind::filter, line, parts_of(std::move(e)));
    e->filter = row;
    e->arguments = std::move(arguments);
    check_test_argument(*e);
  }
  return e;
}

/// Checks the name of a filter or test that map, select and their like get as text.
void ExpressionParser::check_test_argument(const Expr& e) const {
  const std::string_view name = e.filter->name;
  const bool attribute = name == "selectattr" || name == "rejectattr";
  const size_t at = attribute ? 1 : 0;
  if ((name != "map" && name != "select" && name != "reject" && !attribute) ||
      e.arguments.positional.size() <= at)
    return;
  const Expr& argument = *e.arguments.positional[at];
  if (argument.kind != ExprKind::constant || !argument.value.text()) return;
  const std::string& word = argument.value.as<TextPtr>()->bytes;
  if (name == "map" && !find_filter(word)) unknown(e.line, "filter", word, filter_names());
  if (name != "map" && !find_test(word)) unknown(e.line, "test", word, test_names());
}

ExprPtr ExpressionParser::test(ExprPtr e) {
  const int line = now().line;
  skip();
  const bool negated = skip_name("not");
  const std::string name = expect_name();
  const TestRow* row = find_test(name);
  if (!row) unknown(line, "test", name, test_names());
  Arguments arguments;
  const Type type = now().type;
  const bool literal =
      type == Type::text || type == Type::integer || type == Type::real || now().is("[") || now().is("{");
  if (now().is("(")) {
    arguments = call_arguments();
  } else if (literal ||
             (type == Type::name && !now().named("else") && !now().named("or") && !now().named("and"))) {
    if (now().named("is")) fail_at(line, "tests cannot be chained with \"is\"");
    arguments.positional.push_back(postfix(primary()));
  }
  e = make(ExprKind::test, line, parts_of(std::move(e)));
  e->test = row;
  e->arguments = std::move(arguments);
  return negated ? make(ExprKind::logic_not, line, parts_of(std::move(e))) : std::move(e);
}

TextPtr ExpressionParser::target_name() {
  const int line = now().line;
  const std::string name = expect_name();
  for (const char* reserved : {"true", "false", "none", "True", "False", "None"})
    if (name == reserved) fail_at(line, "\"{}\" cannot be assigned", name);
  if (name == "loop" && loops_ > 0) fail_at(line, "\"loop\" cannot be assigned in a loop");
  assigned_.insert(name);
  return interned_name(name);
}

ExprPtr ExpressionParser::target_part(bool with_space) {
  const Nest nest(*this);
  const int line = now().line;
  if (skip_op("(")) {
    ExprPtr inner = target(with_space);
    expect_op(")");
    return inner;
  }
  ExprPtr e = make(ExprKind::name, line);
  if (with_space && now().type == Type::name && after().is(".")) {
    e->kind = ExprKind::space_attribute;
    e->text = interned_name(expect_name());
    skip();
    const std::string attribute = expect_name();
    assigned_.insert(attribute);
    e->attribute = interned_name(attribute);
    return e;
  }
  e->text = target_name();
  return e;
}

ExprPtr ExpressionParser::target(bool with_space, std::string_view end_name) {
  const int line = now().line;
  bool several = false;
  std::vector<ExprPtr> parts = tuple_parts(end_name, several, [&] { return target_part(with_space); });
  if (parts.empty()) unexpected("a name");
  return several ? make(ExprKind::tuple, line, std::move(parts)) : std::move(parts[0]);
}

void ExpressionParser::check_calls() const {
  for (const auto& [name, line] : called_) {
    if (name[0] == '.') {
      if (!assigned_.contains(std::string_view(name).substr(1)))
        unknown(line, "method", name.substr(1), method_names());
    } else if (!find_global(name) && !assigned_.contains(name) && name != "caller") {
      std::vector<std::string> names = global_names();
      names.insert(names.end(), assigned_.begin(), assigned_.end());
      unknown(line, "function", name, names);
    }
  }
}

}  // namespace ltrain::chat
