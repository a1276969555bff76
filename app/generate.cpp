// ltrain generate: text from a checkpoint.
#include <omp.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/device_option.h"
#include "runtime/generate/session.h"
#include "runtime/launch/cgroup.h"

namespace ltrain::app {

void add_generate(CLI::App& app) {
  struct Options {
    std::string where, prompt, tokenizer;
    SamplingOptions sampling;
    int threads = 0;
    DeviceChoice device = DeviceChoice::automatic;
    bool json = false, ignore_end = false, average = false;
  };
  auto* command = app.add_subcommand("generate", "Sample text from a checkpoint");
  auto o = std::make_shared<Options>();
  command
      ->add_option("checkpoint", o->where,
                   "A checkpoint, a folder of them, a run's output_dir, or a Hugging Face folder")
      ->required();
  command->add_option("-p,--prompt", o->prompt, "Text to go on from; default: the start of a document");
  command->add_option("-n,--tokens", o->sampling.tokens, "Tokens to generate, at most")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--temperature", o->sampling.temperature, "0: always the likeliest")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-k", o->sampling.top_k, "Keep the k likeliest; 0: all")
      ->check(CLI::Range(0, 1 << 24));
  command->add_option("--top-p", o->sampling.top_p, "Keep the likeliest that reach p")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--seed", o->sampling.seed, "The same seed gives the same text");
  command->add_option("--tokenizer,--ranks", o->tokenizer,
                      "Rank file of a gpt2 tokenizer, or a tokenizer.json or its folder, when not where the "
                      "recipe says");
  command->add_option("--threads", o->threads, "CPU threads; default: all")->check(CLI::Range(1, 4096));
  command->add_flag("--ignore-end", o->ignore_end, "Go on after the end of a document");
  add_device(*command, o->device);
  command->add_flag("--ema", o->average, "The average of weights that train.ema_decay keeps");
  command->add_flag("--json", o->json, "For programs");
  command->footer("Example: ltrain generate runs/quickstart --prompt 'The ' --tokens 100");
  command->callback([o] {
    omp_set_num_threads(o->threads > 0 ? o->threads : usable_cores());
    Session session({o->where, o->tokenizer, 1, 0, o->device, o->average});
    std::fprintf(stderr, "%s, step %lld\n", session.path().c_str(), static_cast<long long>(session.step()));
    data::Tokenizer& tokenizer = session.tokenizer();
    std::vector<int32_t> prompt;
    tokenizer.encode(o->prompt, prompt);
    o->sampling.stop_at_end = !o->ignore_end;
    std::vector<int32_t> made;
    const auto begin = std::chrono::steady_clock::now();
    if (!o->json) std::fputs(o->prompt.c_str(), stdout);
    session.generate(prompt, o->sampling, [&](int32_t token) {
      made.push_back(token);
      if (!o->json) {
        std::string piece;
        tokenizer.decode(&token, 1, piece, o->prompt.empty() && made.size() == 1);
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      }
      return true;
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (o->json) {
      std::string text;
      tokenizer.decode(made.data(), static_cast<int64_t>(made.size()), text, o->prompt.empty());
      const nlohmann::ordered_json j{{"schema", "ltrain.generate.v1"},
                                     {"checkpoint", session.path()},
                                     {"step", session.step()},
                                     {"prompt", o->prompt},
                                     {"tokens", made},
                                     {"text", text}};
      std::printf("%s\n", j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    } else {
      std::printf("\n");
    }
    std::fprintf(stderr, "%zu tokens in %.2f s\n", made.size(), seconds);
  });
}

}  // namespace ltrain::app
