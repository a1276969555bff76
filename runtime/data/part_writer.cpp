#include "runtime/data/part_writer.h"

#include <algorithm>
#include <utility>

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
}

void PartWriter::add(const int32_t* tokens, int64_t count, const uint8_t* counted) {
  if (counted) counts_.trained += std::count(counted, counted + count, uint8_t{1});
  if (length_ == 0) return writer_.add(tokens, count, counted);
  open_.tokens.insert(open_.tokens.end(), tokens, tokens + count);
  open_.counted.insert(open_.counted.end(), counted, counted + count);
}

void PartWriter::end_document(int64_t chosen) {
  ++counts_.documents;
  if (length_ == 0) {
    writer_.end_document();
    return;
  }
  open_.chosen = chosen;
  // The token before a document's first one would be of another document.
  for (const int64_t first : {int64_t{0}, chosen})
    if (auto& counted = open_.counted[static_cast<size_t>(first)]; counted) --counts_.trained, counted = 0;
  const auto size = static_cast<int64_t>(open_.tokens.size());
  window_tokens_ += size;
  window_.push_back(std::exchange(open_, {}));
  if (packer_.add(size) || window_tokens_ >= kWindowTokens) write_samples();
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
  if (length_ > 0) {
    write_samples();
    write_padding(1);  // a sample reads one token beyond its end
  }
  return writer_.finish(filtered);
}

}  // namespace ltrain::data
