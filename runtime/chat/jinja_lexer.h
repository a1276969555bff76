// Tokens of a Jinja template, with trim_blocks and lstrip_blocks, and without the last line feed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::chat {

struct Token {
  enum class Type : uint8_t {
    data,
    block_begin,
    block_end,
    print_begin,
    print_end,
    name,
    text,
    integer,
    real,
    op,
    end
  };
  Type type = Type::end;
  std::string text;  ///< data, name, operator, or a string without quotes and escapes
  int64_t integer = 0;
  double real = 0;
  int line = 1;
  bool is(std::string_view op) const { return type == Type::op && text == op; }
  bool named(std::string_view name) const { return type == Type::name && text == name; }
};

/// Splits a template into tokens; the last has the type `end`. `name` is of the template, for errors. Throws
/// Error (data) with the line.
std::vector<Token> jinja_tokens(std::string_view source, const std::string& name);

}  // namespace ltrain::chat
