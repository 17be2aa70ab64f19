// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama: trains, evaluates and samples small Llamas under low-precision recipes, and compares runs.
// Exit codes: exit_codes.hpp.

#include <unistd.h>

#include <iostream>
#include <optional>

#include "arguments.hpp"
#include "checkpoint_commands.hpp"
#include "exit_codes.hpp"
#include "profile.hpp"
#include "rotoscale/llama/checkpoint.hpp"

namespace rotoscale::llama_program {
namespace {

namespace fs = std::filesystem;

/// Statistics only where the device computes them; throws io::error where they were asked for and it does not.
void restrict_statistics(arguments& a, const nn::backend& ops) {
  if (ops.has_statistics()) return;
  if (a.statistics_every.value_or(0) > 0) {
    throw io::error("--statistics-every", ops.description() + " computes no statistics; --device cpu does, or say 0");
  }
  a.session.statistics_every = 0;
}

int train(int argc, char** argv, arguments& a) {
  const auto device = make_backend(a.device);
  nn::digest_backend watched(*device);
  nn::backend& ops = a.digest_steps.empty() ? *device : watched;
  std::optional<digest_recorder> recorder;
  const auto record = [&] {
    if (a.digest_steps.empty()) return;
    recorder.emplace(watched, parse_steps(a.digest_steps, "--digest-steps"), fs::path(a.session.out) / "digests.jsonl");
    a.session.watcher = &*recorder;
  };
  a.session.threads = ops.threads();
  a.session.progress = !a.no_progress && isatty(STDERR_FILENO) != 0;
  if (a.resume.empty()) {
    if (!a.schedule_override.empty()) a.run.schedule = a.schedule_override;
    if (a.session.out.empty()) throw io::error("--out", "is required");
    if (a.statistics_every) a.session.statistics_every = *a.statistics_every;
    restrict_statistics(a, ops);
    const std::string where = a.config.empty() ? "arguments" : a.config;
    record();
    return trainer(ops, new_run(a.run, where), a.session).run();
  }
  check_resume_flags(argc, argv);
  const fs::path checkpoint = llama::find_checkpoint(a.resume);
  trainer_state state = read_trainer_state(checkpoint);
  if (!a.run.data.empty()) state.run.data = a.run.data;
  if (!a.run.tokenizer.empty()) state.run.tokenizer = a.run.tokenizer;
  if (!a.run.init.empty()) state.run.init = a.run.init;
  a.session.resume = true;
  // A checkpoint lies in RUN/checkpoints/.
  a.session.resumed_run = fs::weakly_canonical(checkpoint).parent_path().parent_path().string();
  if (a.session.out.empty()) a.session.out = a.session.resumed_run;
  a.session.statistics_every =
      a.statistics_every ? *a.statistics_every : statistics_interval(run_directory(a.session.resumed_run).statistics());
  restrict_statistics(a, ops);
  record();
  trainer t(ops, std::move(state), a.session);
  t.restore(checkpoint);
  return t.run();
}

/// What train would take, in the same words as its log; nothing is allocated.
int plan(const arguments& a) {
  run_options options = a.run;
  if (!a.schedule_override.empty()) options.schedule = a.schedule_override;
  const trainer_state state = new_run(options, a.config.empty() ? "arguments" : a.config);
  const auto ops = make_backend(a.device);
  std::cout << memory_table(llama::plan_session(*ops, state.run.model,
                                                session_options_for(state.run, 0, a.statistics_every.value_or(1) > 0),
                                                recipes_of(state.phases)));
  return exit_ok;
}

int profile_run(const arguments& a) {
  run_options options = a.run;
  if (!a.schedule_override.empty()) options.schedule = a.schedule_override;
  return profile(new_run(options, a.config.empty() ? "arguments" : a.config), a.device, std::cout);
}

int run(int argc, char** argv) {
  arguments a;
  parse_arguments(argc, argv, a);
  const std::string command = argv[1];
  if (command == "train") return train(argc, argv, a);
  if (command == "plan") return plan(a);
  if (command == "eval") return evaluate_checkpoint(a);
  if (command == "profile") return profile_run(a);
  if (command == "replay") return replay(a.replay, std::cout);
  if (command == "sample") return sample_checkpoint(a);
  if (command == "merge") return merge(a.merge);
  if (command == "tokenizer") return run_tokenizer(a.tokens, std::cout);
  if (command == "report") return write_report(a.report, std::cout);
  throw io::error(command, "is a command that nothing runs");
}

}  // namespace
}  // namespace rotoscale::llama_program

int main(int argc, char** argv) {
  using namespace rotoscale;
  try {
    const int code = llama_program::run(argc, argv);
    if (!std::cout.flush()) throw io::error("standard output", "cannot write");
    return code;
  } catch (const io::error& e) {
    std::cerr << "mini-llama: " << e.what() << "\n";
  } catch (const llama::over_budget& e) {
    std::cerr << llama_program::memory_table(e.plan()) << "mini-llama: --memory-limit: " << e.what() << "\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "mini-llama: out of memory\n";
  } catch (const std::exception& e) {
    std::cerr << "mini-llama: " << e.what() << "\n";
  }
  return llama_program::exit_bad_input;
}
