// ltrain generate: text from a checkpoint.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "app/device_option.h"
#include "app/from_ignore_option.h"
#include "app/model_layout.h"
#include "app/precision_option.h"
#include "app/print_notes.h"
#include "app/text_begin_option.h"
#include "base/json/json.h"
#include "runtime/generate/session.h"
#include "runtime/generate/stop_text.h"

namespace ltrain::app {

namespace {

struct GenerateOptions {
  std::string where, tokenizer, precision;
  std::vector<std::string> prompts, stops, from_ignore;
  SamplingOptions sampling;
  int64_t batch = 16;
  int threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  bool json = false, ignore_end = false, average = false, tokens_given = false;
  ModelLayout layout;
  TextBegin begin = TextBegin::as_trained;
};

/// Tokens of the longest text that the model reads, which excludes the last token. Reduces `sampling.tokens`
/// if the user gave no number and prompts leave less room. Throws Error (usage) if a prompt with its
/// continuation has more tokens than the model has positions.
int64_t text_length(const std::vector<std::vector<int32_t>>& prompts, int64_t positions,
                    SamplingOptions& sampling, bool tokens_given) {
  size_t longest = 0;
  for (size_t i = 1; i < prompts.size(); ++i)
    if (prompts[i].size() > prompts[longest].size()) longest = i;
  const int64_t prompt = std::max<int64_t>(1, static_cast<int64_t>(prompts[longest].size()));
  const std::string shift =
      "; --context-shift reads the younger half of a text that is longer than the model's positions";
  if (prompt > positions && !sampling.context_shift)
    fail(ExitCode::usage,
         "prompt {} has {} tokens, and the model {} positions (model.max_position_embeddings): expected at "
         "most {} tokens{}",
         longest + 1, prompt, positions, positions, shift);
  const int64_t room = positions - prompt + 1;
  if (!tokens_given && !sampling.context_shift) sampling.tokens = std::min(sampling.tokens, room);
  if (sampling.tokens > room && !sampling.context_shift)
    fail(ExitCode::usage,
         "--tokens {}: prompt {} has {} tokens, and the model {} positions (model.max_position_embeddings): "
         "expected at most --tokens {}{}",
         sampling.tokens, longest + 1, prompt, positions, room, shift);
  return std::min(positions, prompt + sampling.tokens - 1);
}

/// Token ids of the prompts, each behind what begins a text. Returns notes of prompts that begin a text
/// twice.
std::vector<std::string> encode_prompts(Session& s, const GenerateOptions& o,
                                        std::vector<std::vector<int32_t>>& prompts) {
  std::vector<std::string> doubled;
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i] = s.text_begin(o.begin);
    const size_t added = prompts[i].size();
    s.tokenizer().encode(o.prompts[i], prompts[i]);
    if (added > 0 && prompts[i].size() > added && prompts[i][added] == prompts[i][0])
      doubled.push_back(
          fmt::format("prompt {} begins with token {} itself, which is put before it too: --bos no adds none",
                      i + 1, prompts[i][0]));
  }
  return doubled;
}

/// A finished text, and the tokens that it was decoded from.
struct MadeText {
  std::vector<int32_t> tokens;
  std::string shown;
  bool stopped = false;  ///< a --stop text ended it
};

/// Prints a finished text; one that `streams` is on the terminal already.
void print_text(const GenerateOptions& o, const Session& session, size_t i, const MadeText& made,
                bool streams) {
  if (o.json) {
    const nlohmann::ordered_json j{{"schema", "ltrain.generate.v1"}, {"checkpoint", session.path()},
                                   {"step", session.step()},         {"prompt", o.prompts[i]},
                                   {"tokens", made.tokens},          {"text", made.shown},
                                   {"stopped", made.stopped}};
    std::printf("%s\n", j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else if (streams) {
    std::printf("\n");
  } else {
    std::printf("== %zu\n%s%s\n", i + 1, o.prompts[i].c_str(), made.shown.c_str());
  }
}

/// Prints notes, the checkpoint, and the tokens that end a text.
void print_start(const GenerateOptions& o, Session& session, const std::vector<std::string>& doubled) {
  print_notes(session.notes());
  print_notes(doubled);
  std::fprintf(stderr, "%s, step %lld\n", session.path().c_str(), static_cast<long long>(session.step()));
  if (const auto ends = session.end_tokens(); ends.size() > 1 && !o.ignore_end)
    for (const EndToken& t : ends) std::fprintf(stderr, "ends at token %d: %s\n", t.id, t.source.c_str());
}

ExitCode generate(GenerateOptions& o, Job* job) {
  const size_t count = std::max<size_t>(1, o.prompts.size());
  o.prompts.resize(count);
  const int64_t at_once = std::min<int64_t>(o.batch, static_cast<int64_t>(count));
  std::vector<std::vector<int32_t>> prompts(count);
  std::vector<std::string> doubled;  // prompts that begin a text twice
  const auto encode = [&](Session& s) {
    doubled = encode_prompts(s, o, prompts);
    return text_length(prompts, s.recipe().model.max_position_embeddings, o.sampling, o.tokens_given);
  };
  Session session({.where = o.where,
                   .from_ignore = o.from_ignore,
                   .tokenizer = o.tokenizer,
                   .texts = at_once,
                   .text_length = encode,
                   .device = o.device,
                   .average = o.average,
                   .precision = o.precision,
                   .layout = o.layout,
                   .job = job});
  const bool lead = !job || job->info().rank == 0;
  if (lead) print_start(o, session, doubled);
  data::Tokenizer& tokenizer = session.tokenizer();
  o.sampling.stop_at_end = !o.ignore_end;
  std::vector<StopText> texts(count, StopText(o.stops));
  std::vector<MadeText> made(count);
  // Several texts are generated together and printed when complete.
  const bool streams = count == 1 && !o.json;
  const auto show = [&](size_t i, const std::string& part) {
    made[i].shown += part;
    if (!streams) return;
    std::fwrite(part.data(), 1, part.size(), stdout);
    std::fflush(stdout);
  };
  if (streams) std::fputs(o.prompts[0].c_str(), stdout);
  const auto begin = std::chrono::steady_clock::now();
  const bool whole = session.generate(prompts, o.sampling, [&](size_t i, int32_t token) {
    made[i].tokens.push_back(token);
    std::string text;  // the full text, because decoding a token depends on earlier ones
    tokenizer.decode(made[i].tokens.data(), static_cast<int64_t>(made[i].tokens.size()), text,
                     o.prompts[i].empty());
    show(i, texts[i].show(text));
    return !texts[i].stopped();
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  size_t tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    show(i, texts[i].rest());
    made[i].stopped = texts[i].stopped();
    tokens += made[i].tokens.size();
    print_text(o, session, i, made[i], streams);
  }
  std::fflush(stdout);
  if (lead)
    std::fprintf(stderr, "%zu tokens in %.2f s, %.1f tokens/s\n", tokens, seconds,
                 seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
  return whole ? ExitCode::done : ExitCode::preempted;
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "Sample text from a checkpoint");
  auto o = std::make_shared<GenerateOptions>();
  command
      ->add_option("checkpoint", o->where,
                   "A checkpoint, a folder of them, a run's output_dir, or a Hugging Face folder")
      ->required();
  command
      ->add_option("-p,--prompt", o->prompts,
                   "Text to go on from, given again for each of several; default: the start of a document")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--batch", o->batch, "Prompts at once, at most")->check(CLI::Range(1, 512));
  command->add_option("--stop", o->stops, "Text that ends the output, itself not shown; may be given again")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  auto* tokens =
      command
          ->add_option("-n,--tokens", o->sampling.tokens,
                       "Tokens to generate, at most; default: 200, or as many as the model has positions for")
          ->check(CLI::Range(1, 1 << 20));
  command->add_option("--temperature", o->sampling.temperature, "0: always the likeliest")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-k", o->sampling.top_k, "Keep the k likeliest; 0: all")
      ->check(CLI::Range(0, 1 << 24));
  command->add_option("--top-p", o->sampling.top_p, "Keep the likeliest that reach p")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--seed", o->sampling.seed, "The same seed gives the same text");
  command->add_option(
      "--tokenizer,--ranks", o->tokenizer,
      "Rank file of a gpt2 tokenizer, or a tokenizer.json or its folder, when not where the recipe says");
  command->add_option("--threads", o->threads, "CPU threads; default: all")->check(CLI::Range(1, 4096));
  add_from_ignore(*command, o->from_ignore);
  add_text_begin(*command, o->begin);
  command->add_flag("--ignore-end", o->ignore_end, "Go on after the end of a document and other end tokens");
  command->add_flag("--context-shift", o->sampling.context_shift,
                    "Go on from the younger half of a text that is as long as the model has positions");
  add_device(*command, o->device);
  add_precision(*command, o->precision);
  add_layout(*command, o->layout);
  command->add_flag("--ema", o->average, "The average of weights that train.ema_decay keeps");
  command->add_flag("--json", o->json, "For programs");
  command->footer("Example: ltrain generate runs/quickstart --prompt 'The ' --tokens 100");
  command->callback([o, tokens] {
    o->tokens_given = tokens->count() > 0;
    on_ranks({.where = o->where, .from_ignore = o->from_ignore, .device = o->device, .layout = o->layout},
             o->threads, [&](Job* job) { return generate(*o, job); });
  });
}

}  // namespace ltrain::app
