#include "runtime/chat/chat_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/chat/jinja_text.h"
#include "runtime/chat/text_tokens.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::chat {
namespace {

/// Bytes [begin, end) of the text that are trained: one turn.
struct Region {
  size_t begin, end;
  size_t message;  ///< number of the message; npos: unknown
};
constexpr size_t kUnknown = static_cast<size_t>(-1);

/// Computes the mask of one row.
class Masker {
 public:
  Masker(const ChatTemplate& chat_template, const ChatRow& row, const MaskOptions& options,
         const std::string& date, const std::string& where)
      : template_(chat_template), row_(row), options_(options), date_(date), where_(where) {}

  ChatTokens run(data::Tokenizer& tokenizer) {
    full_ = render(row_.messages, false);
    for (size_t i = row_.prompt_messages; i < row_.messages.size(); ++i)
      if (std::find(options_.roles.begin(), options_.roles.end(), role(i)) != options_.roles.end())
        trained_.push_back(i);
    if (trained_.empty())
      fail_row("no trained token: expected a message of role {}{}, got {}", joined(options_.roles),
               row_.prompt_messages > 0 ? " in the completion" : "", roles_of_row());
    const bool assistant_only = options_.roles.size() == 1 && options_.roles[0] == "assistant";
    const bool blocks = assistant_only && std::any_of(full_.spans.begin(), full_.spans.end(),
                                                      [](const Span& s) { return s.generation != 0; });
    std::vector<Region> regions = blocks ? by_blocks() : by_difference();
    ChatTokens out;
    out.by_generation = blocks;
    encode(tokenizer, regions, out);
    return out;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail_row(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ExitCode::data, "{}: {}", where_, fmt::format(text, std::forward<Args>(args)...));
  }

  static std::string joined(const std::vector<std::string>& words) {
    std::string all;
    for (const std::string& w : words) all += (all.empty() ? "" : " or ") + printable(w, 40);
    return all;
  }

  std::string role(size_t i) const { return row_.messages[i].at("role").get<std::string>(); }

  std::string roles_of_row() const {
    std::string all;
    for (size_t i = row_.prompt_messages; i < std::min(row_.messages.size(), row_.prompt_messages + 8); ++i)
      all += (all.empty() ? "" : ", ") + role(i);
    return all.empty() ? "no message" : all;
  }

  Rendered render(const Json& messages, bool prompt) const {
    try {
      return template_.render(row_, messages, prompt, date_);
    } catch (const Error& e) {
      throw Error(e.code(), where_ + ": " + e.what());
    }
  }

  Json first_messages(size_t count) const {
    return Json(
        Json::array_t(row_.messages.begin(), row_.messages.begin() + static_cast<std::ptrdiff_t>(count)));
  }

  /// Regions of generation blocks. Blocks that follow each other without other text are one region.
  std::vector<Region> by_blocks() const {
    std::vector<Region> regions;
    std::vector<uint32_t> numbers;
    for (const Span& s : full_.spans) {
      if (s.generation == 0) continue;
      if (!regions.empty() && regions.back().end == s.begin)
        regions.back().end = s.end;
      else
        regions.push_back({s.begin, s.end, kUnknown});
      if (numbers.empty() || numbers.back() != s.generation) numbers.push_back(s.generation);
    }
    size_t assistants = 0;
    for (size_t i = 0; i < row_.messages.size(); ++i) assistants += role(i) == "assistant";
    if (numbers.size() == assistants && regions.size() == assistants)
      for (size_t i = 0, k = 0; i < row_.messages.size(); ++i)
        if (role(i) == "assistant") regions[k++].message = i;
    if (!options_.last_turn && row_.prompt_messages == 0) return regions;
    // The first message whose blocks count.
    const size_t from = options_.last_turn ? trained_.back() : trained_.front();
    if (!regions.empty() && regions[0].message != kUnknown) {
      std::erase_if(regions, [&](const Region& r) { return r.message < from; });
      return regions;
    }
    const std::string before = render(first_messages(from), false).text;
    if (!full_.text.starts_with(before))
      fail_row(
          "messages[{}]: the messages before it render differently with it, so its generation blocks are "
          "unknown",
          from);
    std::erase_if(regions, [&](const Region& r) { return r.begin < before.size(); });
    return regions;
  }

  /// Regions from rendering the messages before each trained one, and with it.
  std::vector<Region> by_difference() const {
    std::vector<Region> regions;
    for (size_t k = options_.last_turn ? trained_.size() - 1 : 0; k < trained_.size(); ++k) {
      const size_t i = trained_[k];
      const bool assistant = role(i) == "assistant";
      const std::string before = render(first_messages(i), assistant).text;
      const std::string with =
          i + 1 == row_.messages.size() ? full_.text : render(first_messages(i + 1), false).text;
      if (!with.starts_with(before) || !full_.text.starts_with(with))
        fail_row(
            "messages[{}] of role {}: the text {} differs from the beginning of the full text, so its "
            "trained part is unknown; "
            "expected a template with generation blocks, such as a built-in one",
            i, role(i), !with.starts_with(before) ? "before it" : "up to it");
      Region region{before.size(), with.size(), i};
      if (!assistant)  // without a prompt of its own: the header of the turn is the template's
        for (const Span& s : full_.spans)
          if (s.from_data && s.end > region.begin) {
            region.begin = std::max(region.begin, s.begin);
            break;
          }
      if (region.begin >= region.end)
        fail_row("messages[{}] of role {}: the template renders nothing for it", i, role(i));
      regions.push_back(region);
    }
    return regions;
  }

  bool from_data(size_t begin, size_t end) const {
    auto span = std::upper_bound(full_.spans.begin(), full_.spans.end(), begin,
                                 [](size_t at, const Span& s) { return at < s.end; });
    for (; span != full_.spans.end() && span->begin < end; ++span)
      if (span->from_data) return true;
    return false;
  }

  /// Position behind white space of the template at `at`, at most `most`.
  size_t after_space(size_t at, size_t most) const {
    while (at < most && !from_data(at, at + 1) &&
           std::string_view(" \n\r\t").find(full_.text[at]) != std::string_view::npos)
      ++at;
    return at;
  }

  std::string name_of(const Region& region) const {
    if (region.message != kUnknown)
      return fmt::format("messages[{}] of role {}", region.message, role(region.message));
    return fmt::format(
        "the turn \"{}\"",
        printable(std::string_view(full_.text).substr(region.begin, region.end - region.begin), 40));
  }

  /// Moves the end of a region to that of its stop token, or before or behind it as the options say.
  void end_at_stop(Region& region, const TextTokens& tokens) const {
    size_t end = region.end;
    while (end > region.begin && !from_data(end - 1, end) &&
           std::string_view(" \n\r\t").find(full_.text[end - 1]) != std::string_view::npos)
      --end;
    const auto ends_at = [&](size_t at) {
      const auto it = std::lower_bound(tokens.ends.begin(), tokens.ends.end(), at);
      return it != tokens.ends.end() && *it == at ? static_cast<size_t>(it - tokens.ends.begin()) : kUnknown;
    };
    const size_t last = ends_at(end);
    const bool stops = last != kUnknown && tokens.special[last] && tokens.begins[last] >= region.begin;
    if (!stops) {
      if (!options_.stop_token) {
        if (!options_.after_stop) region.end = end;
        return;
      }
      const size_t next = after_space(region.end, full_.text.size());
      const auto it = std::lower_bound(tokens.begins.begin(), tokens.begins.end(), next);
      const bool behind = it != tokens.begins.end() && *it == next &&
                          tokens.special[static_cast<size_t>(it - tokens.begins.begin())];
      if (behind)
        fail_row(
            "{}: the stop token \"{}\" is not trained, since it stands behind the generation block; expected "
            "a template with it inside",
            name_of(region),
            printable(std::string_view(full_.text)
                          .substr(next, tokens.ends[static_cast<size_t>(it - tokens.begins.begin())] - next),
                      40));
      fail_row(
          "{}: no special token ends the turn, so no stop token would be trained; expected a template whose "
          "turns end with one of the tokenizer's special tokens",
          name_of(region));
    }
    if (!options_.stop_token)
      region.end = tokens.begins[last];
    else
      region.end = options_.after_stop ? after_space(std::max(end, region.end), full_.text.size()) : end;
  }

  void encode(data::Tokenizer& tokenizer, std::vector<Region>& regions, ChatTokens& out) {
    std::vector<size_t> bounds;
    for (const Region& r : regions)
      bounds.insert(bounds.end(), {r.begin, r.end, after_space(r.end, full_.text.size())});
    std::sort(bounds.begin(), bounds.end());
    std::vector<std::string> named = {std::string(data::kEndOfText)};
    for (const auto& [key, value] : template_.special_tokens().items())
      named.push_back(value.get<std::string>());
    const auto allowed = [&](size_t begin, size_t end) {
      const bool user = from_data(begin, end);
      out.refused_specials += user;
      return !user;
    };
    TextTokens tokens = encode_text(tokenizer, full_.text, allowed, bounds, named, where_);
    const int32_t bos = tokenizer.bos();
    if (bos >= 0 && tokens.ids.size() > 1 && tokens.ids[0] == bos && tokens.ids[1] == bos)
      fail_row("two BOS tokens at the start; expected one: the template and the first message both have it");
    for (Region& region : regions) end_at_stop(region, tokens);
    mark(regions, tokens, out);
    if (std::find(out.trained.begin(), out.trained.end(), true) == out.trained.end())
      fail_row("no trained token: each of the {} turns shares its tokens with other text", regions.size());
    out.ids = std::move(tokens.ids);
    out.ends = std::move(tokens.ends);
    out.text = std::move(full_.text);
  }

  static void mark(const std::vector<Region>& regions, const TextTokens& tokens, ChatTokens& out) {
    out.trained.assign(tokens.ids.size(), false);
    for (const Region& r : regions) {
      auto i = static_cast<size_t>(std::lower_bound(tokens.ends.begin(), tokens.ends.end(), r.begin) -
                                   tokens.ends.begin());
      for (; i < tokens.ids.size() && tokens.begins[i] < r.end; ++i) {
        const size_t begin = tokens.begins[i], end = tokens.ends[i];
        if (begin >= r.begin && end <= r.end)
          out.trained[i] = true;
        else if (end > r.begin)
          ++out.split_tokens;
      }
    }
  }

  const ChatTemplate& template_;
  const ChatRow& row_;
  const MaskOptions& options_;
  const std::string& date_;
  const std::string& where_;
  Rendered full_;
  std::vector<size_t> trained_;  // numbers of the messages that are trained
};

}  // namespace

ChatTokens tokenize_chat(data::Tokenizer& tokenizer, const ChatTemplate& chat_template, const ChatRow& row,
                         const MaskOptions& options, const std::string& date, const std::string& where) {
  if (row.plain) fail(ExitCode::data, "{}: expected messages, got a plain text", where);
  return Masker(chat_template, row, options, date, where).run(tokenizer);
}

ChatTokens tokenize_plain(data::Tokenizer& tokenizer, const ChatRow& row, const MaskOptions& options,
                          const std::string& where) {
  if (!row.plain) fail(ExitCode::data, "{}: expected a plain text, got messages", where);
  ChatTokens out;
  out.text = row.prompt + row.completion;
  const size_t begin = row.prompt.size();
  const auto allowed = [&](size_t, size_t) {
    out.refused_specials += !options.specials_in_text;
    return options.specials_in_text;
  };
  const TextTokens tokens = encode_text(tokenizer, out.text, allowed, {begin}, {}, where);
  for (const int32_t id : tokenizer.before_text()) {
    out.ids.push_back(id);
    out.trained.push_back(false);
    out.ends.push_back(0);
  }
  bool any = false;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    const bool trained = tokens.begins[i] >= begin && tokens.ends[i] > begin;
    if (!trained && tokens.ends[i] > begin) ++out.split_tokens;
    any = any || trained;
    out.ids.push_back(tokens.ids[i]);
    out.trained.push_back(trained);
    out.ends.push_back(tokens.ends[i]);
  }
  if (!any)
    fail(ExitCode::data, "{}: no trained token: the completion shares its only token with the prompt", where);
  if (!options.stop_token) return out;
  if (tokenizer.eot() < 0)
    fail(ExitCode::data,
         "{}: the tokenizer names no end-of-text token to train; expected eos_token in "
         "tokenizer_config.json",
         where);
  if (tokens.special.back() && out.ids.back() == tokenizer.eot()) return out;
  out.ids.push_back(tokenizer.eot());
  out.trained.push_back(true);
  out.ends.push_back(out.text.size());
  return out;
}

}  // namespace ltrain::chat
