#include "runtime/checkpoint/data_identity.h"

#include "base/printable.h"
#include "runtime/recipe/data_lists.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/raw_values.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain {
namespace {

/// Returns whether the tokenizer is available: built in, or its file exists.
bool tokenizer_here(const Recipe& r) {
  return !r.data.tokenizer.kind->takes_file() ||
         (r.data.tokenizer.path && data::file_exists(*r.data.tokenizer.path));
}

data::TokenizerIdentity identity_of(const data::SourceInfo& s) {
  return {s.tokenizer, s.tokenizer_hash, s.vocab_size, s.eot, s.bos};
}

data::TokenizerIdentity recipe_tokenizer(const Recipe& r) {
  data::TokenizerIdentity t;
  t.kind = r.data.tokenizer.kind->name;
  if (tokenizer_here(r)) {
    const auto tokenizer = load_tokenizer(r);
    t = {tokenizer->name(), tokenizer->hash(), tokenizer->vocab_size(), tokenizer->eot(), -1};
  }
  if (r.data.tokenizer.eod) t.eod = *r.data.tokenizer.eod;
  return t;
}

bool is_given(const Recipe& r, const char* key) { return r.origins && r.origins->has(key); }

std::string place(const Recipe& r, const char* key) {
  return r.origins ? r.origins->place(key).text() + ": " : "";
}

/// A key as written in the recipe: an alias, or "data.tokenizer.kind (of model.from)".
std::string written(const Recipe& r, const std::string& key) {
  if (!r.origins || !r.origins->values) return key;
  const auto& values = r.origins->values->values;
  const auto it = values.find(key);
  return it == values.end() ? key : it->second.written_as;
}

/// The lines of a recipe that name the tokenizer of a sidecar.
std::string tokenizer_to_write(const std::string& name) {
  const data::TokenizerKind* kind = data::find_tokenizer_kind(name);
  if (!kind) return "This version of ltrain does not have that tokenizer";
  if (!kind->takes_file()) return fmt::format("Write\n  data: {{tokenizer: {{kind: {}}}}}", name);
  return fmt::format("Write\n  data: {{tokenizer: {{kind: {}, path: {}}}}}\nwith the {}", name,
                     kind->file_example, kind->file);
}

/// Checks that the recipe's tokenizer is the one named in the sidecar of a source.
void check_kind(const Recipe& r, const data::SourceInfo& s) {
  const std::string& kind = r.data.tokenizer.kind->name;
  if (s.tokenizer != kind)
    fail(ExitCode::usage,
         "{}{} = {}{}: the tokens of {} are of tokenizer {} (vocabulary {}, end of document {}). {}",
         place(r, "data.tokenizer.kind"), written(r, "data.tokenizer.kind"), kind,
         is_given(r, "data.tokenizer.kind") ? "" : " (default)", printable(s.prefix), s.tokenizer,
         s.vocab_size, s.eot, tokenizer_to_write(s.tokenizer));
}

void check_tokenizer(const Recipe& r, const data::Tokenizer& tokenizer, const data::SourceInfo& s) {
  if (tokenizer.hash() != s.tokenizer_hash)
    fail(ExitCode::usage,
         "{}{} = {}: is a {} tokenizer of {} ids and hash {}, and the tokens of {} are of one of {} ids and "
         "hash {}. Name the {} that the data was built with, or build the data again",
         place(r, "data.tokenizer.path"), written(r, "data.tokenizer.path"),
         printable(r.data.tokenizer.path.value_or("null")), r.data.tokenizer.kind->name,
         tokenizer.vocab_size(), tokenizer.hash(), printable(s.prefix), s.vocab_size, s.tokenizer_hash,
         r.data.tokenizer.kind->file);
  if (r.data.tokenizer.eod && s.eot >= 0 && *r.data.tokenizer.eod != s.eot)
    fail(ExitCode::usage, "{}data.tokenizer.eod = {}: the sidecar of {} says {}; leave the key out",
         place(r, "data.tokenizer.eod"),
         *r.data.tokenizer.eod < 0 ? "none" : std::to_string(*r.data.tokenizer.eod), printable(s.prefix),
         s.eot < 0 ? "none" : std::to_string(s.eot));
}

/// Checks that the end of documents is known if a key needs it.
void check_end_of_document(const Recipe& r, const data::SourceInfo& s) {
  const Data& d = r.data;
  const char* asks = d.reset_attention_mask ? "data.reset_attention_mask"
                     : d.reset_position_ids ? "data.reset_position_ids"
                     : d.eod_mask_loss      ? "data.eod_mask_loss"
                                            : nullptr;
  if (!asks) return;
  if (!d.tokenizer.eod && !is_given(r, "data.tokenizer.kind"))
    fail(ExitCode::usage,
         "{}{} = true: needs the token that ends documents, and {} has no sidecar that says it. Write\n  "
         "data: {{tokenizer: {{eod: ID}}}}\nwith its id (GPT-2: 50256), or eod: none where documents end by "
         "the index alone, or data.tokenizer.kind if the data is of that tokenizer",
         place(r, asks), asks, printable(s.prefix));
  if (d.tokenizer.eod && *d.tokenizer.eod >= r.model.vocab_size)
    fail(ExitCode::usage, "{}data.tokenizer.eod = {}: model.vocab_size is {}; ids are 0 to {}",
         place(r, "data.tokenizer.eod"), *d.tokenizer.eod, r.model.vocab_size, r.model.vocab_size - 1);
  if (d.tokenizer.eod) return;
  if (const auto tokenizer = load_tokenizer(r); tokenizer->eot() < 0)
    fail(ExitCode::usage,
         "{}{} = true: needs the token that ends documents: {} has no sidecar that says it, and no "
         "tokenizer_config.json beside {} says eos_token. Write\n  data: {{tokenizer: {{eod: ID}}}}\nor eod: "
         "none where documents end by the index alone",
         place(r, asks), asks, printable(s.prefix), printable(r.data.tokenizer.path.value_or("null")));
}

/// Refuses token files whose documents have another form than the task reads.
void check_form(const Recipe& r, const DataSource& s, const data::SourceInfo& info) {
  if (r.task == Task::sft && !info.loss_mask)
    fail(ExitCode::usage,
         "{}task = sft: {} has no loss mask, so every token would count. Name the files of the conversations "
         "themselves, or build them with ltrain data build --chat",
         place(r, "task"), printable(s.path));
  const bool pairs = reads_pairs(r.task), examples = r.task == Task::kto;
  if (r.task == Task::pretrain || (pairs == info.preference && examples == info.unpaired)) return;
  const std::string_view expected = pairs      ? "preference pairs"
                                    : examples ? "labelled examples"
                                               : "conversations";
  const std::string_view got = info.preference ? "preference pairs" : "labelled examples";
  fail(ExitCode::usage,
       "{}task = {}: {} has {}. Name the files of the {} themselves, or build them with ltrain data build "
       "--chat{}",
       place(r, "task"), to_string(r.task), printable(s.path),
       info.preference || info.unpaired ? fmt::format("{}, expected {}", got, expected)
                                        : fmt::format("no {}", expected),
       pairs ? "pairs" : expected,
       pairs      ? " --preference"
       : examples ? " --unpaired"
                  : "");
}

}  // namespace

std::unique_ptr<data::Tokenizer> load_tokenizer(const Recipe& r) {
  const data::TokenizerKind& kind = *r.data.tokenizer.kind;
  return data::make_tokenizer(kind.name, kind.takes_file() ? r.data.tokenizer.path.value_or("") : "");
}

int64_t end_of_document(const Recipe& r) {
  if (r.data.tokenizer.eod) return *r.data.tokenizer.eod;
  return tokenizer_here(r) ? load_tokenizer(r)->eot() : -1;
}

data::DataIdentity data_identity(const Recipe& r) {
  data::DataIdentity d;
  bool recorded = false;
  const auto identities = [&](const std::vector<DataSource>& list) {
    std::vector<data::SourceIdentity> sources;
    for (const DataSource& s : list) {
      const data::SourceInfo info = data::inspect_source(s.token_files()[0]);
      data::SourceIdentity one{.path = s.path, .weight = s.weight, .content = {}};
      if (s.files.empty())
        one.content = data::content_identity(s.path), one.tokens = info.tokens,
        one.documents = info.documents;
      else
        one.content = data::content_identity(s.files, s.named_by_content);
      sources.push_back(std::move(one));
      if (info.has_sidecar) d.tokenizer = identity_of(info), recorded = true;
    }
    return sources;
  };
  d.sources = identities(r.data.train);
  const auto shorter = [&](int64_t length) { return length == r.data.seq_length ? 0 : length; };
  for (const DataStage& stage : r.data.stages)
    d.stages.push_back(
        {samples_before_step(r, first_step(r, stage)), identities(stage.train), shorter(stage.seq_length)});
  d.train_seq_length = shorter(r.data.train_seq_length.value_or(0));
  if (!recorded) d.tokenizer = recipe_tokenizer(r);
  d.seq_length = r.data.seq_length;
  d.seed = r.seed;
  d.packing = to_string(r.data.packing);
  d.shuffle_window = r.data.shuffle_window;
  d.reset_attention_mask = r.data.reset_attention_mask;
  d.reset_position_ids = r.data.reset_position_ids;
  d.eod_mask_loss = r.data.eod_mask_loss;
  return d;
}

void check_data(const Recipe& r) {
  std::unique_ptr<data::Tokenizer> tokenizer;
  const auto tokenizer_of_recipe = [&]() -> const data::Tokenizer& {
    if (!tokenizer) tokenizer = load_tokenizer(r);
    return *tokenizer;
  };
  for (const ListedSource& listed : all_sources(r)) {
    const DataSource& s = *listed.source;
    if (s.pending) continue;  // checked when its token files are there
    for (const std::string& file : s.token_files()) {
      // Files that the run makes later have its tokenizer, and the loader checks them when it opens them.
      if (s.named_by_content && !data::file_exists(file + ".idx")) continue;
      const data::SourceInfo info = data::inspect_source(file);
      check_form(r, s, info);
      if (info.has_sidecar) {
        check_kind(r, info);
        check_tokenizer(r, tokenizer_of_recipe(), info);
      } else {
        check_end_of_document(r, info);
      }
      if (info.max_token >= 0) check_vocabulary(r, file, info.max_token + 1);
      // A file of a window may have no sample; a source must have one.
      if (s.files.empty()) data::check_source(info, r.model.vocab_size, r.data.seq_length, r.data.packing);
    }
  }
  if (r.data.tokenizer.kind->vocab_size == 0)  // rules check the vocabulary of the other kinds
    check_vocabulary(r, "the tokenizer " + printable(*r.data.tokenizer.path),
                     tokenizer_of_recipe().vocab_size());
}

}  // namespace ltrain
