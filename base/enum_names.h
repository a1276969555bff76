// Names of the values of an enum: one table for parsers, printers, pages and suggestions.
#pragma once
#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

namespace ltrain {

/// Has a table for enums declared with LT_ENUM_NAMES.
template <class Enum>
struct EnumNames;

/// Used after an enum, in namespace ltrain: LT_ENUM_NAMES(Drop, {Drop::least_weight, "probability"}, ...), in
/// the order of pages and messages.
#define LT_ENUM_NAMES(Enum, ...)                                                \
  template <>                                                                   \
  struct EnumNames<Enum> {                                                      \
    static constexpr std::pair<Enum, std::string_view> table[] = {__VA_ARGS__}; \
  }

template <class Enum>
concept NamedEnum = requires {
  EnumNames<Enum>::table;
};

template <NamedEnum Enum>
constexpr std::string_view to_string(Enum value) {
  for (const auto& [v, name] : EnumNames<Enum>::table)
    if (v == value) return name;
  return "?";
}

/// Value with that name, or nothing.
template <NamedEnum Enum>
constexpr std::optional<Enum> enum_value(std::string_view name) {
  for (const auto& [v, n] : EnumNames<Enum>::table)
    if (n == name) return v;
  return std::nullopt;
}

}  // namespace ltrain

template <ltrain::NamedEnum Enum>
struct fmt::formatter<Enum> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(Enum value, Context& context) const {
    return fmt::formatter<std::string_view>::format(ltrain::to_string(value), context);
  }
};
