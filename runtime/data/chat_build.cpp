#include "runtime/data/chat_build.h"

#include <filesystem>

#include "base/error.h"
#include "runtime/files/file.h"
#include "runtime/tokenizer/huggingface_tokenizer.h"

namespace fs = std::filesystem;

namespace ltrain::data {
namespace {

constexpr int64_t kMaxTemplateBytes = 16 << 20;

}  // namespace

std::string chat_identity(const ChatBuild& o, const std::string& tokenizer_path) {
  std::string text = fmt::format("{}|{}|{}|{}|{}|{}|{}", o.chat_template, fmt::join(o.mask.roles, ","),
                                 o.mask.last_turn, o.mask.stop_token, o.mask.after_stop, o.date, o.pack);
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

chat::ChatTokens ChatEncoder::operator()(const std::string& row, Tokenizer& tokenizer,
                                         const std::string& where) const {
  const chat::ChatRow chat = chat::read_chat_row(chat::parse_row(row, where), options_.rows, where);
  if (!chat.plain && !template_)
    fail(ExitCode::usage,
         "{}: a conversation needs a chat template, and the tokenizer has no folder with one: name a "
         "built-in one, "
         "such as chatml, with --chat-template (in a recipe: data.chat_template)",
         where);
  chat::ChatTokens tokens =
      chat.plain ? chat::tokenize_plain(tokenizer, chat, options_.mask, where)
                 : chat::tokenize_chat(tokenizer, *template_, chat, options_.mask, options_.date, where);
  if (options_.pack > 0 && static_cast<int64_t>(tokens.ids.size()) > options_.pack)
    fail(ExitCode::data,
         "{}: a conversation of {} tokens; samples have {}: raise the sequence length, or leave such rows "
         "out with "
         "on_bad_record: skip",
         where, tokens.ids.size(), options_.pack);
  return tokens;
}

}  // namespace ltrain::data
