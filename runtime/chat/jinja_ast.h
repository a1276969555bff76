// The syntax tree of a template. Immutable after parsing and shared by threads.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/chat/jinja_value.h"

namespace ltrain::chat {

struct FilterRow;
struct TestRow;
struct GlobalRow;

enum class ExprKind : uint8_t {
  constant,   ///< value
  name,       ///< text
  list,       ///< parts
  tuple,      ///< parts
  dict,       ///< parts: key, value, key, value ...
  attribute,  ///< parts[0].text
  item,       ///< parts[0][parts[1]]
  slice,      ///< parts[0][parts[1]:parts[2]:parts[3]], null where missing
  call,       ///< parts[0](arguments)
  filter,     ///< parts[0] | filter(arguments); parts[0] null in a filter block
  test,       ///< parts[0] is test(arguments)
  negate,     ///< - parts[0]
  plus,       ///< + parts[0]
  logic_not,  ///< not parts[0]
  logic_and,  ///< parts[0] and parts[1]
  logic_or,
  binary,           ///< parts[0] op parts[1], op in text: + - * / // % **
  concat,           ///< parts[0] ~ parts[1] ~ ...
  comparison,       ///< parts[0] op parts[1] op parts[2] ..., ops in `ops`
  choice,           ///< parts[0] if parts[1] else parts[2] (null: without else)
  space_attribute,  ///< target of set: text.name
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr all_positional, all_named;  ///< *x and **x
};

struct Expr {
  ExprKind kind = ExprKind::constant;
  int line = 1;
  int depth = 1;  ///< levels of expressions in it, with itself
  Value value;
  TextPtr text;
  TextPtr attribute;  ///< space_attribute
  std::vector<ExprPtr> parts;
  std::vector<std::string> ops;
  Arguments arguments;
  const FilterRow* filter = nullptr;
  const TestRow* test = nullptr;
};

enum class StmtKind : uint8_t {
  data,          ///< text
  print,         ///< values
  set,           ///< target = values[0]
  set_block,     ///< target = body, through filters
  loop,          ///< for target in values[0] if values[1]: body, else other
  branch,        ///< if values[0]: body, else other
  macro,         ///< text(parameters): body
  with,          ///< targets = values: body
  call_block,    ///< call(parameters) values[0]: body
  filter_block,  ///< filters: body
  generation,    ///< body
  leave,         ///< break
  next,          ///< continue
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

struct Stmt {
  StmtKind kind = StmtKind::data;
  int line = 1;
  TextPtr text;  ///< data; name of a macro; loop: the name "loop"
  ExprPtr target;
  std::vector<ExprPtr> targets, values;
  ExprPtr filters;  ///< chain of filters whose innermost input is null
  std::vector<TextPtr> parameters;
  std::vector<ExprPtr> defaults;  ///< values of the last parameters
  TextPtr caller_name, named_name,
      positional_name;  ///< "caller", "kwargs", "varargs"; null: the body does not use it
  Block body, other;
  Block elifs;  ///< branch: values[0] and body of each
};

struct Scope;

/// A function: a global, a macro with the variables around it, or a method of a value.
struct Callable {
  const GlobalRow* global = nullptr;
  const Stmt* macro = nullptr;
  std::shared_ptr<Scope> scope;
  Value self;
  TextPtr name;
};

}  // namespace ltrain::chat
