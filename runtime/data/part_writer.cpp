#include "runtime/data/part_writer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ltrain::data {
namespace {

constexpr int64_t kWindowTokens = int64_t{8}
                                  << 20;  // bounds the memory of the documents that are packed together

}  // namespace

PartWriter::PartWriter(const std::string& prefix, const BuildOptions& o, const Tokenizer& tokenizer)
    : writer_(prefix, tokenizer, o.append_eot && !o.chat, o.force, o.prepend_bos && !o.chat,
              o.split_special_tokens),
      length_(o.chat ? o.chat->pack : 0),
      padding_(std::max(tokenizer.eot(), 0)),
      packer_(std::max<int64_t>(length_, 1)) {
  if (o.chat) writer_.keep_mask(length_);
  if (o.chat && o.chat->preference) writer_.keep_pairs();
  if (o.chat && o.chat->unpaired) writer_.keep_examples();
}

void PartWriter::add(const int32_t* tokens, int64_t count, const uint8_t* counted) {
  if (counted) counts_.trained += std::count(counted, counted + count, uint8_t{1});
  if (length_ == 0) return writer_.add(tokens, count, counted);
  open_.tokens.insert(open_.tokens.end(), tokens, tokens + count);
  open_.counted.insert(open_.counted.end(), counted, counted + count);
}

void PartWriter::end_document(int64_t chosen, double margin) {
  ++counts_.documents;
  if (length_ == 0) {
    writer_.end_document();
    return;
  }
  open_.chosen = chosen;
  open_.margin = margin;
  // The token before a document's first one would be of another document.
  for (const int64_t first : {int64_t{0}, chosen})
    if (auto& counted = open_.counted[static_cast<size_t>(first)]; counted) --counts_.trained, counted = 0;
  keep(std::exchange(open_, {}));
}

void PartWriter::keep(Document document) {
  const auto size = static_cast<int64_t>(document.tokens.size());
  window_tokens_ += size;
  window_.push_back(std::move(document));
  if (packer_.add(size) || window_tokens_ >= kWindowTokens) write_samples();
}

void PartWriter::end_example(bool desirable) {
  ++counts_.documents;
  Example e{std::exchange(open_, {}), 0, desirable};
  const auto& counted = e.text.counted;
  e.prompt = static_cast<size_t>(std::find(counted.begin(), counted.end(), uint8_t{1}) - counted.begin());
  LT_CHECK(e.prompt > 0 && e.prompt < counted.size(),
           "expected a prompt and a completion in {} tokens, got a prompt of {}", counted.size(), e.prompt);
  if (last_) keep_example(e, *last_);
  if (!first_) first_ = e;
  last_ = std::move(e);
}

void PartWriter::keep_example(const Example& e, const Example& other) {
  Document both = e.text;
  both.chosen = static_cast<int64_t>(both.tokens.size());
  both.counted[0] = e.desirable;
  const size_t room = static_cast<size_t>(length_) - both.tokens.size() - e.prompt;
  const size_t whole = other.text.tokens.size() - other.prompt, count = std::min(room, whole);
  counts_.cut += count < whole;
  const auto append = [&](auto& to, const auto& prompt, const auto& from) {
    to.insert(to.end(), prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(e.prompt));
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(other.prompt);
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  append(both.tokens, e.text.tokens, other.text.tokens);
  append(both.counted, e.text.counted, other.text.counted);
  keep(std::move(both));
}

void PartWriter::write_samples() {
  packer_.flush([&](const std::vector<int64_t>& sample) {
    int64_t left = length_;
    for (const int64_t d : sample) {
      const Document& document = window_[static_cast<size_t>(d)];
      const auto size = static_cast<int64_t>(document.tokens.size());
      if (document.chosen > 0) {
        writer_.add(document.tokens.data(), document.chosen, document.counted.data());
        writer_.end_document();
        writer_.add_margin(document.margin);
      }
      writer_.add(document.tokens.data() + document.chosen, size - document.chosen,
                  document.counted.data() + document.chosen);
      writer_.end_document();
      left -= size;
    }
    write_padding(left);
    ++counts_.samples;
    counts_.padding += left;
  });
  window_.clear();
  window_tokens_ = 0;
}

/// Padding is a document of its own, which does not count in the loss.
void PartWriter::write_padding(int64_t count) {
  if (count == 0) return;
  const std::vector<int32_t> tokens(static_cast<size_t>(count), padding_);
  const std::vector<uint8_t> counted(static_cast<size_t>(count), 0);
  writer_.add(tokens.data(), count, counted.data());
  writer_.end_document();
}

SourceInfo PartWriter::finish(const FilterCounts& filtered) {
  if (first_) {
    if (counts_.documents < 2)
      fail(ExitCode::data,
           "1 labelled example, expected at least 2: the divergence from the reference is estimated on "
           "prompts with the completions of other examples");
    keep_example(*first_, *last_);
  }
  if (length_ > 0) {
    write_samples();
    write_padding(1);  // a sample reads one token beyond its end
  }
  return writer_.finish(filtered);
}

}  // namespace ltrain::data
