// nlohmann::json with its largest templates declared extern: base/json/json.cpp alone instantiates them.
// Files include this header instead of <nlohmann/json.hpp>; scripts/checks/check-includes.py refuses the
// latter.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#ifndef LTRAIN_JSON_TEMPLATE
#define LTRAIN_JSON_TEMPLATE extern template  // base/json/json.cpp defines it as `template`
#endif

LTRAIN_JSON_TEMPLATE class nlohmann::basic_json<>;
LTRAIN_JSON_TEMPLATE class std::vector<nlohmann::json>;
LTRAIN_JSON_TEMPLATE class std::vector<nlohmann::json*>;
LTRAIN_JSON_TEMPLATE class nlohmann::detail::serializer<nlohmann::json>;

// The parser of a std::string. Other releases have other parameters of these templates.
#if NLOHMANN_JSON_VERSION_MAJOR == 3 && NLOHMANN_JSON_VERSION_MINOR == 11
namespace ltrain::json_templates {
using Adapter = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
using Parser = nlohmann::detail::parser<nlohmann::json, Adapter>;
using Values = nlohmann::detail::json_sax_dom_parser<nlohmann::json>;
using FilteredValues = nlohmann::detail::json_sax_dom_callback_parser<nlohmann::json>;
}  // namespace ltrain::json_templates
LTRAIN_JSON_TEMPLATE class nlohmann::detail::lexer<nlohmann::json, ltrain::json_templates::Adapter>;
LTRAIN_JSON_TEMPLATE class nlohmann::detail::json_sax_dom_parser<nlohmann::json>;
LTRAIN_JSON_TEMPLATE class nlohmann::detail::json_sax_dom_callback_parser<nlohmann::json>;
LTRAIN_JSON_TEMPLATE class nlohmann::detail::parser<nlohmann::json, ltrain::json_templates::Adapter>;
LTRAIN_JSON_TEMPLATE bool ltrain::json_templates::Parser::sax_parse_internal(ltrain::json_templates::Values*);
LTRAIN_JSON_TEMPLATE bool ltrain::json_templates::Parser::sax_parse_internal(
    ltrain::json_templates::FilteredValues*);
#endif
