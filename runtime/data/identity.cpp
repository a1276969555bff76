#include "runtime/data/identity.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::data {
namespace {

constexpr int64_t kBlocks = 64, kBlockBytes = 16 << 10;

using Hash = std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)>;

Hash new_hash() {
  Hash hash(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(hash.get());
  return hash;
}

std::string digest(const Hash& hash) {
  const XXH128_hash_t h = XXH3_128bits_digest(hash.get());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

void add_blocks(XXH3_state_t* hash, const InputFile& file, int64_t blocks) {
  const int64_t size = file.size();
  XXH3_128bits_update(hash, &size, sizeof size);
  std::vector<char> block(kBlockBytes);
  const bool whole = size <= blocks * kBlockBytes;
  for (int64_t i = 0; i < blocks; ++i) {
    // 128 bits: size - kBlockBytes is below 2^63 and multiplied by the number of a block.
    const int64_t at =
        whole ? i * kBlockBytes
              : static_cast<int64_t>(static_cast<__int128>(size - kBlockBytes) * i / (blocks - 1));
    const int64_t n = std::min(kBlockBytes, size - at);
    if (n <= 0) return;
    file.read(block.data(), at, n);
    XXH3_128bits_update(hash, block.data(), static_cast<size_t>(n));
  }
}

std::string describe(const SourceIdentity& s) {
  const std::string tokens = s.tokens > 0 ? fmt::format("{} tokens, ", s.tokens) : "";
  return fmt::format("{} ({}content {})", printable(s.path, 200), tokens, s.content.substr(0, 8));
}

std::string describe(const TokenizerIdentity& t) {
  return fmt::format("{} (vocabulary {}, end of document {}{})", printable(t.kind, 40), t.vocab_size, t.eod,
                     t.hash.empty() ? "" : ", hash " + printable(t.hash, 16));
}

/// Fraction of all samples that come from a source.
double share(const std::vector<SourceIdentity>& sources, size_t source) {
  double sum = 0;
  for (const SourceIdentity& s : sources) sum += s.weight;
  return sources[source].weight / sum;
}

/// Adds the differences of two lists of sources. `list`: "data.train", "data.stages.0.train".
void compare_sources(const std::string& list, const std::vector<SourceIdentity>& before,
                     const std::vector<SourceIdentity>& now, std::vector<std::string>& found) {
  const size_t most = std::max(before.size(), now.size());
  for (size_t i = 0; i < most; ++i) {
    const bool was = i < before.size(), is = i < now.size();
    const std::string key = fmt::format("{}.{}", list, i);
    const std::string a = was ? describe(before[i]) : "none", b = is ? describe(now[i]) : "none";
    if (!was || !is || before[i].content != now[i].content) {
      found.push_back(fmt::format("{} {} -> {}", key, a, b));
    } else if (std::abs(share(before, i) - share(now, i)) > 1e-9) {
      found.push_back(fmt::format("{}.weight {} -> {} ({:.4g} -> {:.4g} of all samples)", key,
                                  before[i].weight, now[i].weight, share(before, i), share(now, i)));
    }
  }
}

std::string length_text(int64_t length) { return length > 0 ? std::to_string(length) : "data.seq_length"; }

/// Adds the differences of the stages that begin before sample `cursor`.
void compare_stages(const DataIdentity& before, const DataIdentity& now, int64_t cursor,
                    std::vector<std::string>& found) {
  const auto begun = [&](const DataIdentity& d, size_t i) {
    return i < d.stages.size() && d.stages[i].first_sample < cursor;
  };
  const StageIdentity none{-1, {}, 0};
  for (size_t i = 0; begun(before, i) || begun(now, i); ++i) {
    const StageIdentity& a = begun(before, i) ? before.stages[i] : none;
    const StageIdentity& b = begun(now, i) ? now.stages[i] : none;
    const auto text = [](const StageIdentity& s) {
      return s.first_sample < 0 ? std::string("none") : fmt::format("from sample {}", s.first_sample);
    };
    if (a.first_sample != b.first_sample)
      found.push_back(fmt::format("data.stages.{} {} -> {}", i, text(a), text(b)));
    if (a.seq_length != b.seq_length && a.first_sample >= 0 && b.first_sample >= 0)
      found.push_back(fmt::format("data.stages.{}.seq_length {} -> {}", i, length_text(a.seq_length),
                                  length_text(b.seq_length)));
    compare_sources(fmt::format("data.stages.{}.train", i), a.sources, b.sources, found);
  }
}

}  // namespace

std::string sample_hash(const InputFile& file, int64_t blocks) {
  LT_CHECK(blocks >= 2, "expected at least 2 blocks, got {}", blocks);
  const Hash hash = new_hash();
  add_blocks(hash.get(), file, blocks);
  return digest(hash);
}

std::string content_identity(const std::string& path) {
  const std::string prefix = dataset_prefix(path);
  const Hash hash = new_hash();
  for (const char* end : {".idx", ".bin"}) add_blocks(hash.get(), InputFile(prefix + end), kBlocks);
  for (const char* end : {".mask", ".margins"})
    if (file_exists(prefix + end)) add_blocks(hash.get(), InputFile(prefix + end), kBlocks);
  return digest(hash);
}

std::string content_identity(const std::vector<std::string>& paths, bool by_name) {
  const Hash hash = new_hash();
  for (const std::string& path : paths) {
    const std::string prefix = dataset_prefix(path);
    const std::string one = by_name ? prefix.substr(prefix.rfind('/') + 1) : content_identity(prefix);
    XXH3_128bits_update(hash.get(), one.c_str(), one.size() + 1);  // with the zero, as a separator
  }
  return digest(hash);
}

std::vector<std::string> differences(const DataIdentity& before, const DataIdentity& now, int64_t cursor) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& key, const auto& a, const auto& b) {
    if (a != b) found.push_back(fmt::format("{} {} -> {}", key, a, b));
  };
  add("data.shuffle_window", before.shuffle_window, now.shuffle_window);
  // With a window, a source is one list of files, so that only lists of the same form can be compared.
  if ((before.shuffle_window == 0) == (now.shuffle_window == 0)) {
    compare_sources("data.train", before.sources, now.sources, found);
    compare_stages(before, now, cursor, found);
  }
  TokenizerIdentity a = before.tokenizer, b = now.tokenizer;
  if (a.hash.empty() || b.hash.empty()) a.hash = b.hash = "";
  if (a.vocab_size < 0 || b.vocab_size < 0) a.vocab_size = b.vocab_size = -1;
  const auto packs = [](const DataIdentity& d) {
    return d.reset_attention_mask || d.reset_position_ids || d.eod_mask_loss;
  };
  if (!packs(before) || !packs(now)) a.eod = b.eod = -1;  // no key needs document ends
  a.bos = b.bos = -1;                                     // part of the data, whose content is compared
  if (!(a == b)) found.push_back(fmt::format("data.tokenizer {} -> {}", describe(a), describe(b)));
  add("data.seq_length", before.seq_length, now.seq_length);
  add("data.train_seq_length", length_text(before.train_seq_length), length_text(now.train_seq_length));
  add("data.packing", before.packing, now.packing);
  add("data.reset_attention_mask", before.reset_attention_mask, now.reset_attention_mask);
  add("data.reset_position_ids", before.reset_position_ids, now.reset_position_ids);
  add("data.eod_mask_loss", before.eod_mask_loss, now.eod_mask_loss);
  add("seed", before.seed, now.seed);
  return found;
}

}  // namespace ltrain::data
