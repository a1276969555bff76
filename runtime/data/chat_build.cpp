#include "runtime/data/chat_build.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/file.h"
#include "runtime/tokenizer/formats/huggingface_tokenizer.h"

namespace fs = std::filesystem;

namespace ltrain::data {
namespace {

constexpr int64_t kMaxTemplateBytes = 16 << 20;

}  // namespace

std::string chat_identity(const ChatBuild& o, const std::string& tokenizer_path) {
  std::string text = fmt::format("{}|{}|{}|{}|{}|{}|{}", o.chat_template, fmt::join(o.mask.roles, ","),
                                 o.mask.last_turn, o.mask.stop_token, o.mask.after_stop, o.date, o.pack);
  if (o.preference) text += "|preference, margins";
  if (o.unpaired) text += "|unpaired";
  for (const auto& [standard, name] : o.rows.fields) text += "|" + standard + "=" + name;
  const std::string folder = tokenizer_folder(tokenizer_path);
  for (const std::string& path :
       {o.chat_template, folder + "/chat_template.jinja", folder + "/tokenizer_config.json"}) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) text += "|" + read_whole(path, kMaxTemplateBytes);
  }
  return text;
}

std::shared_ptr<const chat::ChatTemplate> load_template(const ChatBuild& o,
                                                        const std::string& tokenizer_path) {
  const std::string folder = tokenizer_folder(tokenizer_path);
  if (o.chat_template.empty() && folder.empty()) return nullptr;
  return std::make_shared<chat::ChatTemplate>(chat::load_chat_template(o.chat_template, folder));
}

chat::ChatTokens ChatEncoder::encode(const chat::ChatRow& chat, Tokenizer& tokenizer,
                                     const std::string& where) const {
  if (!chat.plain && !template_)
    fail(ExitCode::usage,
         "{}: a conversation needs a chat template, and the tokenizer has no folder with one: name a "
         "built-in one, "
         "such as chatml, with --chat-template (in a recipe: data.chat_template)",
         where);
  return chat.plain ? chat::tokenize_plain(tokenizer, chat, options_.mask, where)
                    : chat::tokenize_chat(tokenizer, *template_, chat, options_.mask, options_.date, where);
}

chat::ChatTokens ChatEncoder::operator()(const std::string& row, Tokenizer& tokenizer,
                                         const std::string& where) const {
  chat::ChatTokens tokens =
      encode(chat::read_chat_row(chat::parse_row(row, where), options_.rows, where), tokenizer, where);
  if (options_.pack > 0 && static_cast<int64_t>(tokens.ids.size()) > options_.pack)
    fail(ExitCode::data,
         "{}: a conversation of {} tokens; samples have {}: raise the sequence length, or leave such rows "
         "out with "
         "on_bad_record: skip",
         where, tokens.ids.size(), options_.pack);
  return tokens;
}

/// Margin of a preference row; 0 without one.
static double margin_of(const chat::Json& row, const std::string& where) {
  const auto margin = row.is_object() ? row.find("margin") : row.end();
  if (margin == row.end()) return 0;
  if (!margin->is_number() || !std::isfinite(margin->get<double>()))
    fail(ExitCode::data, "{}: margin = {}: expected a finite number", where,
         printable(margin->dump(-1, ' ', false, chat::Json::error_handler_t::replace), 60));
  return margin->get<double>();
}

ChatEncoder::Pair ChatEncoder::pair(const std::string& text, Tokenizer& tokenizer,
                                    const std::string& where) const {
  const chat::Json json = chat::parse_row(text, where);
  const chat::PreferenceRow row = chat::read_preference_row(json, options_.rows, where);
  Pair p{encode(row.chosen, tokenizer, where + ": chosen"),
         encode(row.rejected, tokenizer, where + ": rejected"), margin_of(json, where)};
  if (p.chosen.ids == p.rejected.ids)
    fail(ExitCode::data, "{}: chosen and rejected have the same {} tokens, expected different ones", where,
         p.chosen.ids.size());
  const auto prompt = [](const chat::ChatTokens& t) {
    const auto first = std::find(t.trained.begin(), t.trained.end(), true) - t.trained.begin();
    return std::vector<int32_t>(t.ids.begin(), t.ids.begin() + first);
  };
  if (prompt(p.chosen) != prompt(p.rejected))
    fail(ExitCode::data,
         "{}: the tokens before the first trained one differ between chosen ({}) and rejected ({}), expected "
         "the same prompt: give it as the key prompt, up to the end of a word",
         where, prompt(p.chosen).size(), prompt(p.rejected).size());
  if (prompt(p.chosen).empty())
    fail(ExitCode::data, "{}: no token before the texts, expected a prompt or a begin-of-text token", where);
  const size_t tokens = p.chosen.ids.size() + p.rejected.ids.size();
  if (static_cast<int64_t>(tokens) > options_.pack)
    fail(ExitCode::data,
         "{}: a pair of {} + {} tokens; samples have {}: raise the sequence length, or leave such rows out "
         "with on_bad_record: skip",
         where, p.chosen.ids.size(), p.rejected.ids.size(), options_.pack);
  return p;
}

ChatEncoder::Example ChatEncoder::example(const std::string& text, Tokenizer& tokenizer,
                                          const std::string& where) const {
  const chat::UnpairedRow row = chat::read_unpaired_row(chat::parse_row(text, where), options_.rows, where);
  Example e{encode(row.row, tokenizer, where), row.good};
  const auto prompt = std::find(e.text.trained.begin(), e.text.trained.end(), true) - e.text.trained.begin();
  if (prompt == 0)
    fail(ExitCode::data, "{}: no token before the completion, expected a prompt or a begin-of-text token",
         where);
  const auto tokens = static_cast<int64_t>(e.text.ids.size());
  if (tokens + prompt + 1 > options_.pack)
    fail(ExitCode::data,
         "{}: an example of {} tokens, and its prompt of {} with another completion; samples have {}: raise "
         "the sequence length, or leave such rows out with on_bad_record: skip",
         where, tokens, prompt, options_.pack);
  return e;
}

}  // namespace ltrain::data
