// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <iostream>

#include "begin_run.hpp"
#include "commands.hpp"
#include "device_failure.hpp"
#include "examples/standard_streams.hpp"
#include "front.hpp"
#include "read_arguments.hpp"

namespace rotoscale::program {
namespace {

int profile_run(arguments& a) {
  const trainer_state state = begin(a, given_files::none);
  if (a.device.wait_for_each) {
    throw io::error("--wait-for-each", "a profile waits for the operations that it times anyway");
  }
  if (a.gpus > 0) return profile_ranks(a, state, std::cout);
  return profile(state, a.device, {a.profile_operations, a.session.memory_limit}, std::cout);
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
  if (command == "convert") return convert(a.convert);
  if (command == "tokenizer") return run_tokenizer(a.tokens, std::cout);
  if (command == "recipes") return list_recipes(std::cout);
  if (command == "study") return run_study(a.study, std::cout);
  if (command == "report") return write_report(a.report, std::cout);
  throw io::error(command, "is a command that nothing runs");
}

}  // namespace

int run_program(int argc, char** argv) {
  occupy_standard_streams();
  fail_beyond_file_limit();
  fail_at_closed_pipe();
  try {
    const int code = run(argc, argv);
    finish_standard_output();
    return code;
  } catch (const io::error& e) {
    print_error(program_name, e.what());
  } catch (const train::over_budget& e) {
    print_error(program_name, std::string("--memory-limit: ") + e.what() + ", by category:");
    std::cerr << memory_table(e.plan());
  } catch (const std::bad_alloc&) {
    print_error(program_name,
                "out of memory; plan says what a run takes, and --memory-limit refuses one that takes more");
    return exit_device;
  } catch (const device_failure& e) {
    print_error(program_name, std::string(e.what()) + "; no file is written; its memory, by category:");
    std::cerr << memory_table(e.plan());
    return exit_device;
  } catch (const nn::backend_error& e) {
    print_error(program_name, e.what());
    if (e.of_device()) return exit_device;
  } catch (const std::exception& e) {
    print_error(program_name, e.what());
  }
  return exit_bad_input;
}

}  // namespace rotoscale::program
