// Chat templates with generation blocks, for models whose own template has none.
#include <utility>

#include "runtime/chat/chat_template.h"

namespace ltrain::chat {
namespace {

// A generation block has what the model writes: the text of the assistant and the token that ends its turn.
// The header of the turn and the line feed behind it are outside.

constexpr const char* kChatml = R"jinja({%- macro text(content) -%}
  {%- if content is string -%}{{ content }}{%- else -%}{%- for part in content -%}{{ part.text }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}{{ raise_exception("the built-in template chatml has no form for tools; use the template of the tokenizer") }}{%- endif -%}
{%- for message in messages -%}
  {%- if message.tool_calls or message.role == "tool" -%}
    {{ raise_exception("the built-in template chatml has no form for calls of tools; use the template of the tokenizer") }}
  {%- endif -%}
  {{ "<|im_start|>" + message.role + "\n" }}
  {%- if message.role == "assistant" -%}
    {%- generation -%}{{ text(message.content) + "<|im_end|>" }}{%- endgeneration -%}
  {%- else -%}
    {{ text(message.content) + "<|im_end|>" }}
  {%- endif -%}
  {{ "\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\n" }}{%- endif -%}
)jinja";

constexpr const char* kLlama3 = R"jinja({%- macro text(content) -%}
  {%- if content is string -%}{{ content | trim }}{%- else -%}{%- for part in content -%}{{ part.text | trim }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}{{ raise_exception("the built-in template llama3 has no form for tools; use the template of the tokenizer") }}{%- endif -%}
{{ bos_token | default("<|begin_of_text|>") }}
{%- for message in messages -%}
  {%- if message.tool_calls or message.role == "tool" -%}
    {{ raise_exception("the built-in template llama3 has no form for calls of tools; use the template of the tokenizer") }}
  {%- endif -%}
  {{ "<|start_header_id|>" + message.role + "<|end_header_id|>\n\n" }}
  {%- if message.role == "assistant" -%}
    {%- generation -%}{{ text(message.content) + "<|eot_id|>" }}{%- endgeneration -%}
  {%- else -%}
    {{ text(message.content) + "<|eot_id|>" }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|start_header_id|>assistant<|end_header_id|>\n\n" }}{%- endif -%}
)jinja";

constexpr const char* kGemma = R"jinja({%- macro text(content) -%}
  {%- if content is string -%}{{ content | trim }}{%- else -%}{%- for part in content -%}{{ part.text | trim }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}{{ raise_exception("the built-in template gemma has no form for tools; use the template of the tokenizer") }}{%- endif -%}
{{ bos_token | default("<bos>") }}
{%- set ns = namespace(system="") -%}
{%- for message in messages -%}
  {%- if message.role == "system" or message.role == "developer" -%}
    {#- Gemma has no such role: the text stands before that of the first user. -#}
    {%- set ns.system = (message.content if message.content is string else text(message.content)) + "\n\n" -%}
  {%- elif message.role == "user" -%}
    {{ "<start_of_turn>user\n" + ns.system + text(message.content) + "<end_of_turn>\n" }}
    {%- set ns.system = "" -%}
  {%- elif message.role == "assistant" and not message.tool_calls -%}
    {{ "<start_of_turn>model\n" }}
    {%- generation -%}{{ text(message.content) + "<end_of_turn>" }}{%- endgeneration -%}
    {{ "\n" }}
  {%- else -%}
    {{ raise_exception("the built-in template gemma has no form for calls of tools; use the template of the tokenizer") }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<start_of_turn>model\n" }}{%- endif -%}
)jinja";

constexpr const char* kMistral = R"jinja({%- macro text(content) -%}
  {%- if content is string -%}{{ content }}{%- else -%}{%- for part in content -%}{{ part.text }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}{{ raise_exception("the built-in template mistral has no form for tools; use the template of the tokenizer") }}{%- endif -%}
{{ bos_token | default("<s>") }}
{%- set ns = namespace(system="") -%}
{%- for message in messages -%}
  {%- if message.role == "system" or message.role == "developer" -%}
    {#- Mistral has no such role: the text stands before that of the first user. -#}
    {%- set ns.system = text(message.content) + "\n\n" -%}
  {%- elif message.role == "user" -%}
    {{ "[INST] " + ns.system + text(message.content) + "[/INST]" }}
    {%- set ns.system = "" -%}
  {%- elif message.role == "assistant" and not message.tool_calls -%}
    {%- generation -%}{{ " " + text(message.content) + eos_token | default("</s>") }}{%- endgeneration -%}
  {%- else -%}
    {{ raise_exception("the built-in template mistral has no form for calls of tools; use the template of the tokenizer") }}
  {%- endif -%}
{%- endfor -%}
)jinja";

constexpr const char* kPhi = R"jinja({%- macro text(content) -%}
  {%- if content is string -%}{{ content }}{%- else -%}{%- for part in content -%}{{ part.text }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}{{ raise_exception("the built-in template phi has no form for tools; use the template of the tokenizer") }}{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == "system" or message.role == "developer" -%}
    {{ "<|system|>\n" + text(message.content) + "<|end|>\n" }}
  {%- elif message.role == "user" -%}
    {{ "<|user|>\n" + text(message.content) + "<|end|>\n" }}
  {%- elif message.role == "assistant" and not message.tool_calls -%}
    {{ "<|assistant|>\n" }}
    {%- generation -%}{{ text(message.content) + "<|end|>" }}{%- endgeneration -%}
    {{ "\n" }}
  {%- else -%}
    {{ raise_exception("the built-in template phi has no form for calls of tools; use the template of the tokenizer") }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|assistant|>\n" }}{%- endif -%}
)jinja";

constexpr std::pair<const char*, const char*> kTemplates[] = {
    {"chatml", kChatml}, {"qwen", kChatml},     {"llama3", kLlama3},
    {"gemma", kGemma},   {"mistral", kMistral}, {"phi", kPhi},
};

}  // namespace

std::vector<std::string> builtin_template_names() {
  std::vector<std::string> names;
  for (const auto& [name, source] : kTemplates) names.emplace_back(name);
  return names;
}

const char* builtin_template(const std::string& name) {
  for (const auto& [known, source] : kTemplates)
    if (name == known) return source;
  return nullptr;
}

}  // namespace ltrain::chat
