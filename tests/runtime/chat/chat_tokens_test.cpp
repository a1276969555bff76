#include "runtime/chat/chat_tokens.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "runtime/tokenizer/formats/huggingface_tokenizer.h"
#include "runtime/tokenizer/formats/tokenizer_json.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::chat;
using Catch::Matchers::Contains;

namespace {

/// A golden tokenizer with special tokens of chat templates, and one added token that is not special.
std::unique_ptr<data::Tokenizer> tokenizer_with_chat_tokens(const std::string& name = "llama3") {
  static std::map<std::string, std::unique_ptr<data::Tokenizer>> made;
  if (const auto it = made.find(name); it != made.end()) return it->second->clone();
  std::ifstream file(LTRAIN_SOURCE_DIR "/tests/golden/tokenizers/" + name + ".tokenizer.json");
  Json json = Json::parse(file);
  auto id = static_cast<int64_t>(json["model"]["vocab"].size());
  for (const Json& token : json["added_tokens"]) id = std::max(id, token["id"].get<int64_t>() + 1);
  for (const char* token : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                            "<|end_header_id|>", "<|eot_id|>", "<bos>", "<start_of_turn>", "<end_of_turn>",
                            "</s>", "<|user|>", "<|assistant|>", "<|system|>", "</think>"})
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", token},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", std::string(token) != "</think>"}});
  auto tables = data::read_tokenizer_json(json.dump(), "t.json");
  const auto find = [&](const char* token) {
    const auto it = std::find(tables->contents.begin(), tables->contents.end(), token);
    return static_cast<int32_t>(it - tables->contents.begin());
  };
  tables->bos = find("<|begin_of_text|>");
  tables->eot = find("</s>");
  return (made[name] = std::make_unique<data::HuggingfaceTokenizer>(tables))->clone();
}

ChatTemplate source(const std::string& text) {
  return {JinjaTemplate(text, "t.jinja"),
          std::nullopt,
          {{"bos_token", "<|begin_of_text|>"}, {"eos_token", "</s>"}}};
}
ChatTemplate builtin(const std::string& name) { return source(builtin_template(name)); }

ChatRow row(const std::string& messages) {
  return read_chat_row({{"messages", Json::parse(messages)}}, {}, "d:1");
}
const std::string kChat =
    R"([{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hello you"},
  {"role": "assistant", "content": "Hi there"}, {"role": "user", "content": "And now"}, {"role": "assistant", "content": "the end"}])";

ChatTokens tokens(const ChatTemplate& t, const ChatRow& r, const MaskOptions& options = {},
                  const std::string& tokenizer = "llama3") {
  return tokenize_chat(*tokenizer_with_chat_tokens(tokenizer), t, r, options, kTemplateDate, "d:1");
}

std::string error(const ChatTemplate& t, const ChatRow& r, const MaskOptions& options = {}) {
  try {
    tokens(t, r, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// The text with its trained tokens in braces: "a{b}".
std::string marked(const ChatTokens& t) {
  std::string out;
  bool in = false;
  size_t begin = 0;
  for (size_t i = 0; i < t.ids.size(); ++i) {
    if (t.trained[i] != in) out += (in = t.trained[i]) ? "{" : "}";
    out += t.text.substr(begin, t.ends[i] - begin);
    begin = t.ends[i];
  }
  return out + (in ? "}" : "");
}

/// A template like chatml without generation blocks.
const std::string kPlain =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor "
    "%}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

}  // namespace

TEST_CASE("each built-in template trains the assistant's text and its stop token, and nothing else") {
  const ChatRow chat = row(kChat);
  CHECK(marked(tokens(builtin("chatml"), chat)) ==
        "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHello "
        "you<|im_end|>\n<|im_start|>assistant\n{Hi there<|im_end|>}\n"
        "<|im_start|>user\nAnd now<|im_end|>\n<|im_start|>assistant\n{the end<|im_end|>}\n");
  CHECK(marked(tokens(builtin("llama3"), chat)) ==
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe "
        "kind<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHello you<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{Hi "
        "there<|eot_id|>}<|start_header_id|>user<|end_header_id|>\n\nAnd now<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{the end<|eot_id|>}");
  CHECK(marked(tokens(builtin("gemma"), chat)) ==
        "<|begin_of_text|><start_of_turn>user\nBe kind\n\nHello you<end_of_turn>\n<start_of_turn>model\n{Hi "
        "there<end_of_turn>}\n"
        "<start_of_turn>user\nAnd now<end_of_turn>\n<start_of_turn>model\n{the end<end_of_turn>}\n");
  CHECK(marked(tokens(builtin("mistral"), chat)) ==
        "<|begin_of_text|>[INST] Be kind\n\nHello you[/INST]{ Hi there</s>}[INST] And now[/INST]{ the "
        "end</s>}");
  CHECK(marked(tokens(builtin("phi"), chat)) ==
        "<|system|>\nBe kind<|end|>\n<|user|>\nHello you<|end|>\n<|assistant|>\n{Hi "
        "there<|end|>}\n<|user|>\nAnd now<|end|>\n<|assistant|>\n{the end<|end|>}\n");
  for (const std::string& name : builtin_template_names()) {
    INFO(name);
    CHECK(tokens(builtin(name), chat).by_generation);
    CHECK(
        marked(
            tokens(
                builtin(name),
                row(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": "c"}])")))
            .find("ab") != std::string::npos);
    CHECK_THAT(
        error(
            builtin(name),
            read_chat_row(
                Json::parse(
                    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": [{"name": "f"}]})"),
                {}, "d:1")),
        Contains("has no form for tools"));
  }
}

TEST_CASE("a template without generation blocks has the mask of one with them") {
  const ChatTokens with = tokens(builtin("chatml"), row(kChat)), without = tokens(source(kPlain), row(kChat));
  CHECK((with.by_generation && !without.by_generation));
  CHECK(with.ids == without.ids);
  CHECK(with.trained == without.trained);
  for (const bool after : {false, true})
    for (const bool stop : {false, true})
      for (const bool last : {false, true}) {
        MaskOptions options;
        options.after_stop = after, options.stop_token = stop, options.last_turn = last;
        CHECK(tokens(builtin("chatml"), row(kChat), options).trained ==
              tokens(source(kPlain), row(kChat), options).trained);
      }
}

TEST_CASE("mask options choose roles, turns, and the end of a turn") {
  const ChatRow chat = row(
      R"([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "you"}, {"role": "assistant", "content": "end"}])");
  const auto of = [&](const std::string& text, MaskOptions options) {
    return marked(tokens(source(text), chat, options));
  };
  const auto options = [](bool last, bool stop, bool after) {
    MaskOptions o;
    o.last_turn = last, o.stop_token = stop, o.after_stop = after;
    return o;
  };
  const std::string q1 = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
                    q2 = "<|im_start|>user\nyou<|im_end|>\n<|im_start|>assistant\n";
  for (const std::string& text : {std::string(builtin_template("chatml")), kPlain}) {
    CHECK(of(text, options(false, true, true)) == q1 + "{Hi<|im_end|>\n}" + q2 + "{end<|im_end|>\n}");
    CHECK(of(text, options(false, false, false)) == q1 + "{Hi}<|im_end|>\n" + q2 + "{end}<|im_end|>\n");
    CHECK(of(text, options(true, true, false)) == q1 + "Hi<|im_end|>\n" + q2 + "{end<|im_end|>}\n");
    MaskOptions both;
    both.roles = {"assistant", "user"};
    CHECK(of(text, both) ==
          "<|im_start|>user\n{Hello<|im_end|>}\n<|im_start|>assistant\n{Hi<|im_end|>}\n<|im_start|>user\n{"
          "you<|im_end|>}\n<|im_start|>assistant\n{end<|im_end|>}\n");
  }
}

TEST_CASE("only the completion of a row is trained") {
  const ChatRow completion = read_chat_row(
      Json::parse(
          R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    "completion": [{"role": "assistant", "content": "d"}]})"),
      {}, "d:1");
  for (const std::string& text : {std::string(builtin_template("chatml")), kPlain})
    CHECK_THAT(marked(tokens(source(text), completion)),
               Contains("\nb<|im_end|>") && Contains("{d<|im_end|>}"));
}

TEST_CASE("special tokens that a user writes are ordinary text") {
  const ChatRow chat = row(
      R"([{"role": "user", "content": "x<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>"}, {"role": "assistant", "content": "<|im_end|></think>no"}])");
  for (const std::string& text : {std::string(builtin_template("chatml")), kPlain}) {
    const ChatTokens out = tokens(source(text), chat);
    const auto tokenizer = tokenizer_with_chat_tokens();
    CHECK(std::count(out.ids.begin(), out.ids.end(), tokenizer->find("<|im_end|>")) == 2);
    CHECK(std::count(out.ids.begin(), out.ids.end(), tokenizer->find("<|im_start|>")) == 2);
    CHECK(std::count(out.ids.begin(), out.ids.end(), tokenizer->find("</think>")) ==
          1);  // added, but not special
    CHECK(out.refused_specials == 4);
    CHECK(tokenizer->decode(out.ids) == out.text);
    CHECK_THAT(marked(out), Contains("<|im_start|>assistant\n{<|im_end|></think>no<|im_end|>}\n"));
  }
  // A special token may not be joined of template and data.
  const ChatTokens joined =
      tokens(source("{% for m in messages %}<|im_{{ m.content }}<|im_end|>{% endfor %}"),
             row(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "end|>"}])"));
  CHECK(joined.text == "<|im_a<|im_end|><|im_end|><|im_end|>");
  CHECK(joined.refused_specials == 1);
}

TEST_CASE("text between special tokens is encoded in one piece, as if nobody had marked it") {
  for (const char* name : {"llama3", "qwen2", "gpt2", "llama2"}) {
    INFO(name);
    const ChatTokens out = tokens(source(kPlain), row(kChat), {}, name);
    CHECK(out.ids == tokenizer_with_chat_tokens(name)->encode(out.text));
    CHECK(std::set<size_t>(out.ends.begin(), out.ends.end()).size() * 10 >=
          out.ids.size() * 8);  // each has its own bytes
  }
}

TEST_CASE("tokens of a tokenizer that normalizes its text keep their bytes") {
  // qwen2 composes "e" and an accent; llama2 puts U+2581 before each text.
  for (const char* name : {"qwen2", "llama2", "lowercase-added"}) {
    INFO(name);
    const ChatTokens out = tokens(
        builtin("chatml"),
        row(R"([{"role": "user", "content": "e\u0301 a\u0308 A"}, {"role": "assistant", "content": "O\u0308l e\u0301"}])"),
        {}, name);
    CHECK_THAT(marked(out), Contains("assistant\n{O\u0308l e\u0301<|im_end|>}\n"));
  }
}

TEST_CASE("a token with trained and other text is not trained, and counted") {
  const std::string glued =
      "{% for m in messages %}{{ m.role }} th{% if m.role == 'assistant' %}{% generation %}{{ m.content "
      "}}<|im_end|>{% endgeneration %}{% endif %}{% endfor %}";
  const ChatTokens out = tokens(
      source(glued), row(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "e end"}])"));
  CHECK(out.split_tokens == 1);
  CHECK_THAT(marked(out), Contains("the{ end<|im_end|>}"));
}

TEST_CASE("a mask that would train nothing, or no stop token, is refused") {
  const ChatRow chat = row(kChat);
  CHECK_THAT(error(builtin("chatml"), row(R"([{"role": "user", "content": "q"}])")),
             Contains("d:1: no trained token: expected a message of role assistant, got user"));
  CHECK_THAT(
      error(source("{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration "
                   "%}<|im_end|>\n{% endfor %}"),
            chat),
      Contains("the stop token \"<|im_end|>\" is not trained, since it stands behind the generation block"));
  CHECK_THAT(error(source("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if "
                          "add_generation_prompt %}assistant: {% endif %}"),
                   chat),
             Contains("messages[2] of role assistant: no special token ends the turn"));
  CHECK_THAT(error(source("<|begin_of_text|>" + std::string(builtin_template("llama3"))), chat),
             Contains("two BOS tokens at the start"));
  CHECK_THAT(error(source("{{ raise_exception('only pairs') }}"), chat),
             Contains("d:1: t.jinja:1: only pairs"));
  const std::string last =
      "{% for m in messages %}{{ m.role }}\n{{ m.content }}{% if m.role == 'assistant' and loop.last "
      "%}<|im_end|>{% else %}\n{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}assistant\n{% endif %}";
  CHECK_THAT(
      error(source(last), chat),
      Contains(
          "messages[2] of role assistant: the text up to it differs from the beginning of the full text"));
  // The reasoning of earlier turns is dropped: the text of a turn depends on later ones.
  const std::string drops =
      "{% for m in messages %}{{ m.role }}\n{% if loop.last %}<think>\n{% endif %}{{ m.content "
      "}}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}";
  CHECK_THAT(
      error(source(drops), chat),
      Contains(
          "messages[2] of role assistant: the text before it differs from the beginning of the full text"));
}

TEST_CASE("a plain row trains its completion and the end of the text") {
  const auto tokenizer = tokenizer_with_chat_tokens();
  const auto of = [&](const std::string& json, const MaskOptions& options = {}) {
    return tokenize_plain(*tokenizer, read_chat_row(Json::parse(json), {}, "d:1"), options, "d:1");
  };
  const ChatTokens out = of(R"({"prompt": "Hello", "completion": " you"})");
  CHECK(marked(out) == "Hello{ you}");
  CHECK((out.ids.back() == tokenizer->eot() && out.trained.back()));
  const auto encoded = [&](const char* text) {
    std::vector<int32_t> ids = tokenizer->before_text();
    tokenizer->encode(text, ids);
    return ids;
  };
  MaskOptions no_stop;
  no_stop.stop_token = false;
  CHECK(of(R"({"text": "Hello"})", no_stop).ids == encoded("Hello"));
  const ChatTokens user = of(R"({"text": "Hello</s>"})");
  CHECK((user.refused_specials == 1 && std::count(user.ids.begin(), user.ids.end(), tokenizer->eot()) == 1));
  MaskOptions specials;
  specials.specials_in_text = true;
  CHECK(of(R"({"text": "Hello</s>"})", specials).ids == encoded("Hello</s>"));
  const auto byte = data::make_byte_tokenizer();
  CHECK(tokenize_plain(*byte, read_chat_row(Json::parse(R"({"prompt": "a", "completion": "b"})"), {}, "d:1"),
                       {}, "d:1")
            .ids == std::vector<int32_t>{'a', 'b', 256});
}

TEST_CASE("a byte tokenizer knows the end of text of a template alone") {
  const auto byte = data::make_byte_tokenizer();
  const ChatTemplate t = source(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}<|endoftext|>{% endfor %}{% if "
      "add_generation_prompt %}assistant:{% endif %}");
  const ChatTokens out = tokenize_chat(
      *byte, t,
      row(R"([{"role": "user", "content": "<|endoftext|>"}, {"role": "assistant", "content": "b"}])"), {},
      kTemplateDate, "d:1");
  CHECK(std::count(out.ids.begin(), out.ids.end(), 256) == 2);
  CHECK(marked(out) == "user:<|endoftext|><|endoftext|>assistant:{b<|endoftext|>}");
}

TEST_CASE("the chat template of a folder is found in its files") {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder.path() + "/" + name).parent_path());
    std::ofstream(folder.path() + "/" + name) << text;
  };
  const auto error_of = [&](const std::string& wanted) {
    try {
      load_chat_template(wanted, folder.path());
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto text = [&](const std::string& wanted, bool tools) {
    ChatRow r = row(R"([{"role": "user", "content": "q"}])");
    if (tools) r.tools = Json::array({Json::object()});
    return load_chat_template(wanted, folder.path()).render(r, r.messages, false, kTemplateDate).text;
  };
  CHECK_THAT(error_of(""),
             Contains("expected chat_template.jinja, or chat_template in tokenizer_config.json"));
  write(
      "tokenizer_config.json",
      R"({"chat_template": "one {{ bos_token }}", "bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": null})");
  CHECK(text("", false) == "one <b>");
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "two"}]})");
  CHECK(text("", false) == "two");
  CHECK(text("", true) == "tools");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  CHECK_THAT(error_of(""), Contains("expected a template named default, got rag"));
  write("tokenizer_config.json", R"({"chat_template": 5})");
  CHECK_THAT(error_of(""), Contains("expected a text or a list of templates, got number"));
  write("tokenizer_config.json", R"({"bos_token": "<b>"})");
  write("chat_template.jinja", "three {{ bos_token }}\n");
  CHECK(text("", true) == "three <b>");
  write("additional_chat_templates/tool_use.jinja", "four");
  CHECK(text("", true) == "four");
  CHECK(text("", false) == "three <b>");
  CHECK(text(folder.path() + "/chat_template.jinja", true) == "three <b>");
  CHECK(text("chatml", false) == "<|im_start|>user\nq<|im_end|>\n");
  CHECK_THAT(
      error_of("chatlm"),
      Contains("expected a file or one of chatml, qwen, llama3, gemma, mistral, phi; nearest: chatml"));
  write("chat_template.jinja", "\n{{ x | uper }}");
  CHECK_THAT(error_of(""), Contains("chat_template.jinja:2: no filter \"uper\"; nearest: upper"));
  CHECK_THROWS_WITH(load_chat_template("", ""), Contains("this tokenizer has no folder"));
}
