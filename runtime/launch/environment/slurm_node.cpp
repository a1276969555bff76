#include "runtime/launch/environment/slurm_node.h"

#include <cstdio>

namespace ltrain {

std::string parse_node_address(const std::string& text) {
  const std::string key = " NodeAddr=";
  const size_t at = (" " + text).find(key);
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() - 1;
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

std::string slurm_node_address(const std::string& node) {
  // parse_hostlist accepts only letters, digits and -._ in names; a leading - would be an option.
  if (node.empty() || node[0] == '-' ||
      node.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") !=
          std::string::npos)
    return "";
  std::FILE* pipe = ::popen(("scontrol --oneliner show node " + node + " 2>/dev/null").c_str(), "re");
  if (!pipe) return "";
  std::string text;
  char buffer[1024];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    text.append(buffer, n);
    if (text.size() > 65536) break;
  }
  ::pclose(pipe);
  return parse_node_address(text);
}

}  // namespace ltrain
