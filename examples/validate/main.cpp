// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// rotoscale-validate: compares a kernel's result with the bits of a matrix unit's model. Command line and reports. Exit
// codes: 0 identical, 1 different, 2 bad input (one line on stderr).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>

#include "examples/command_line.hpp"
#include "examples/standard_streams.hpp"
#include "examples/threads.hpp"
#include "input.hpp"
#include "make_case.hpp"
#include "quantizer/command.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/same_file.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/version.hpp"
#include "run.hpp"

namespace rotoscale::validate {
namespace {

constexpr const char* program_name = "rotoscale-validate";
constexpr int exit_identical = 0, exit_different = 1, exit_bad_input = 2;

struct options : gemm_request {
  std::string input, report, make;
  make_options made;
  quantizer_options quantizer;
  std::vector<std::string> tensors;
  bool identify = false, fit = false, list = false;
  std::string nan = "bits", tell_apart;
  std::optional<long long> sample;
  int threads = 0;
};

void list_models() {
  std::cout << "models (K of the instruction, operands, evidence; below, parameters):\n";
  for (const mma_unit& u : models::all) {
    std::string operands;
    constexpr format shown[] = {formats::fp64, formats::fp32,     formats::tf32, formats::bf16, formats::fp16,
                                formats::e4m3, formats::e4m3fnuz, formats::e2m3, formats::e2m1};
    constexpr const char* names[] = {"FP64", "FP32", "TF32", "BF16", "FP16", "FP8", "FP8-FNUZ", "FP6", "FP4"};
    for (std::size_t i = 0; i < std::size(shown); ++i) {
      if (takes(u, shown[i])) operands += (operands.empty() ? "" : "/") + std::string(names[i]);
    }
    std::printf("  %-30s K %-4s %-24s %s%s%s\n      %s\n", u.name,
                u.instruction_k == 0 ? "any" : std::to_string(u.instruction_k).c_str(), operands.c_str(),
                to_text(u.evidence, u.device).c_str(),
                u.block == 0 ? "" : (", a scale for " + std::to_string(u.block)).c_str(),
                u.model.sparse ? ", half of A kept" : "", describe(u.model).c_str());
  }
  std::cout << "kernels:\n";
  for (const gemm_contract_entry& k : gemm_contracts) {
    std::printf("  %-30s %s%s%s (%s)\n", k.name, k.start_from_c ? "starts from c" : "starts from +0, c at the end",
                k.promotion == 0 ? "" : (", promoted every " + std::to_string(k.promotion)).c_str(),
                *k.unit == 0 ? "" : (", on " + std::string(k.unit)).c_str(), to_text(k.evidence, k.device).c_str());
  }
}

void print_notes(const gemm_case& x) {
  for (const std::string& note : notes_on(x)) std::cout << "note: " << note << "\n";
}

void print(const comparison& r, const std::vector<std::string>& steps, const gemm_case& x) {
  std::cout << r.different << " of " << r.elements << " elements differ\n";
  print_notes(x);
  if (r.different == 0) return;
  std::printf("kernel - model: rms %.3g, largest relative error %.3g\n", r.rms, r.relative);
  std::cout << "distance in units in the last place:\n";
  for (const auto& [distances, count] : r.histogram) std::cout << "  " << distances << ": " << count << "\n";
  std::cout << "worst:\n";
  for (const difference& d : r.worst) {
    const output_index at = index_of(x, d.element);
    std::cout << "  [" << at.batch << ", " << at.row << ", " << at.column << "] model " << number(x.output, d.want)
              << ", kernel " << number(x.output, d.got) << "\n";
  }
  std::cout << "first:\n";
  for (const std::string& line : steps) std::cout << "  " << line << "\n";
}

/// Prints the ranking of --identify or --fit, and returns the exit code.
int rank(const options& o, verb v, const io::safetensors_file& file, thread_pool& pool) {
  ranked_gemm found = identify_gemm(o, file, v, o.sample.value_or(default_sample), pool);
  ranking& r = found.r;
  r.told_file = o.tell_apart;
  if (!o.tell_apart.empty() && r.tied > 1 && r.explains_half()) {
    const std::vector<explanation> tied(r.all.begin(), r.all.begin() + static_cast<std::ptrdiff_t>(r.tied));
    r.told = tell_apart(o.tell_apart, found.x, tied, o.made.seed, o.made.with_d, pool);
    if (r.told.size() == 1) r.told.clear();
  }
  print_notes(found.x);
  print(r);
  if (!o.report.empty()) write_report(o.report, report_of(o.input, o, found));
  return r.is_identical() ? exit_identical : exit_different;
}

/// Throws io::error if a file cannot be written, before anything is computed. Refuses names such as "-", which would
/// create a file, since standard output is for text.
void require_place(const char* flag, const std::string& path) {
  if (path.empty()) return;
  if (path == "-")
    throw io::error(flag, "'-' is not a file: standard output carries the text. A file of that name is './-'");
  const io::atomic_file none(path);
}

/// A list takes no other option, except --threads, which never changes a result.
void refuse_beside_list(const char* list, const option_names& given) {
  constexpr std::string_view others[] = {"--list-models", "--list-quantizers", "--threads"};
  for (const std::string& name : given) {
    if (std::find(std::begin(others), std::end(others), name) == std::end(others))
      throw io::error(name, std::string("excludes ") + list);
  }
}

/// Rejects values that no computation can have, and files that cannot be written.
void check_options(const options& o) {
  for (const auto& [flag, given] :
       {std::pair{"--input", !o.input.empty()}, std::pair{"--identify", o.identify}, std::pair{"--fit", o.fit}}) {
    if (!o.make.empty() && given) throw io::error("--make-case", std::string("excludes ") + flag);
  }
  if (o.identify && o.fit) throw io::error("--fit", "excludes --identify");
  if (!std::isfinite(o.alpha)) throw io::error("--alpha", "not a finite number of FP32");
  if (!std::isfinite(o.beta)) throw io::error("--beta", "not a finite number of FP32");
  std::error_code none;
  const auto place_of = [&](const std::string& path) {  // resolves a file that need not exist
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, none), none);
  };
  std::vector<std::filesystem::path> inputs{o.input == "-" ? "/dev/stdin" : o.input};
  for (const std::string& tensor : o.tensors) inputs.emplace_back(tensor.substr(tensor.find('=') + 1));
  if (!o.report.empty() && !o.tell_apart.empty() && place_of(o.report) == place_of(o.tell_apart))
    throw io::error("--tell-apart", "'" + o.tell_apart + "' is the report");
  io::require_no_input({o.report, o.tell_apart, o.make}, inputs);
  require_place("--report", o.report);
  require_place("--tell-apart", o.tell_apart);
  require_place("--make-case", o.make);
}

/// Runs on a quantizer's dump: --quantizer was given, or the tensors are not a GEMM's.
int run_quantizer(const options& o, const io::safetensors_file& file, thread_pool& pool) {
  return o.identify ? run_identify(o.quantizer, file, o.sample.value_or(default_dump_sample), o.report, pool)
                    : run_check(o.quantizer, file, o.report, pool);
}

/// Runs on a GEMM's tensors.
int run_gemm(const options& o, verb v, const io::safetensors_file& file, thread_pool& pool) {
  if (v != verb::compare) return rank(o, v, file, pool);
  const checked_gemm found = check_gemm(o, file, pool);
  print(found.result, found.steps, found.x);
  if (!o.report.empty()) write_report(o.report, report_of(o.input, o, found));
  return found.result.different == 0 ? exit_identical : exit_different;
}

int run(const options& o) {
  if (o.list || o.quantizer.list) {
    refuse_beside_list(o.list ? "--list-models" : "--list-quantizers", o.quantizer.given);
    if (o.list) list_models();
    if (o.quantizer.list) list_quantizers();
    return exit_identical;
  }
  check_options(o);
  thread_pool pool = naming_threads([&] { return thread_pool(o.threads); });
  bool quantizer = !o.quantizer.preset.empty();
  const verb v = !o.make.empty() ? verb::make : o.identify ? verb::identify : o.fit ? verb::fit : verb::compare;
  const auto refuse_idle = [&] { refuse_idle_options(o.quantizer.given, quantizer, v); };
  if (!o.make.empty()) refuse_idle();
  if (!o.make.empty() && quantizer) {
    const index_t cols = o.made.k == 0 ? 256 : static_cast<index_t>(o.made.k);
    make_quantizer_case(o.quantizer, static_cast<index_t>(o.made.m), cols, o.made.seed, o.made.with_d, pool)
        .write(o.make);
    return exit_identical;
  }
  if (!o.make.empty()) {
    make_options made = o.made;
    if (!o.model.empty()) made.model = o.model;
    made.a_format = o.files.a_format;
    made.b_format = o.files.b_format;
    made.with_c = std::find(o.files.ignored.begin(), o.files.ignored.end(), "c") == o.files.ignored.end();
    make_case(made, pool).write(o.make);
    return exit_identical;
  }
  const io::safetensors_file file = read_tensors(o.input, o.tensors);
  quantizer = quantizer || file.find("x") != nullptr;
  refuse_idle();
  if (quantizer && o.quantizer.preset.empty() && v == verb::compare)
    throw io::error("--quantizer", "needed (or --identify); --list-quantizers shows all");
  if (quantizer) return run_quantizer(o, file, pool);
  return run_gemm(o, v, file, pool);
}

/// Options of the epilogue between the unit's sums and d.
void add_epilogue_options(CLI::App& app, options& o) {
  app.add_option("--output-rounding", o.output_rounding, "rounding of the accumulator to d's type")
      ->check(CLI::IsMember({"nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd"}))
      ->capture_default_str();
  app.add_flag("--epilogue-c", o.epilogue_c, "add c at the end: alpha * acc + beta * c");
  app.add_option("--alpha", o.alpha, "multiplies the sum")->capture_default_str();
  app.add_option("--beta", o.beta, "multiplies c if it is added at the end")->capture_default_str();
  app.add_option("--output", o.output, "format of results if d stores them in a wider type")
      ->transform(CLI::Validator(one_format_of(float_formats), ""));
  app.add_flag("--add-after-rounding", o.add_after_rounding,
               "round alpha * acc, then add c and the bias and round again");
  app.add_flag("--transposed-d", o.transposed_d, "d holds the transpose of each (square) result");
  app.add_option("--ignore", o.files.ignored,
                 "a tensor that the kernel does not read, or that --make-case leaves out: c or bias; may be repeated")
      ->check(CLI::IsMember({"c", "bias"}));
}

void add_options(CLI::App& app, options& o) {
  app.set_version_flag("--version", ROTOSCALE_VERSION);
  app.add_option("--model", o.model, "the matrix unit (see --list-models)");
  app.add_option("--kernel", o.kernel, "the kernel's order of additions (see --list-models)")->capture_default_str();
  app.add_option("--input", o.input, "the case; - for a safetensors file on standard input, at most 1 GiB");
  app.add_option("--tensor", o.tensors, "a tensor of the case, NAME=FILE.npy; may be repeated");
  app.add_option("--report", o.report, "also write the outcome as JSON");
  app.add_option("--nan", o.nan, "bits: a NaN must have the model's bits; any: every NaN matches")
      ->check(CLI::IsMember({"bits", "any"}))
      ->capture_default_str();
  app.add_option("--a-format", o.files.a_format,
                 "element format of a if its type is U8 or I8, or for --make-case: e2m1, e4m3 ...");
  app.add_option("--b-format", o.files.b_format, "the same for b");
  app.add_option("--scale-format", o.files.scale_format, "format of scales whose type is U8 or I8: e8m0 or ue4m3")
      ->transform(CLI::Validator(one_format_of(scale_formats), ""));
  app.add_option("--scale-layout", o.files.scale_layout, "plain, nvidia, hipblaslt or aiter")->capture_default_str();
  app.add_option("--promotion", o.promotion, "add accumulators to an FP32 sum every N k; 0: never")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--split-k", o.split_k, "parts of K")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--split-grain", o.split_grain, "parts are multiples of this")->check(CLI::Range(1, 1 << 20));
  app.add_option("--split-run", o.split_run, "parts take runs of N k in turn; 0: consecutive k")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--split-order", o.split_order, "order of adding parts: ascending, descending or pairwise")
      ->check(CLI::IsMember(names(split_order{})))
      ->capture_default_str();
  app.add_option("--split-sum", o.split_sum, "format of parts and their sums: fp32, fp16 or bf16")
      ->transform(CLI::Validator(one_format_of(float_formats), ""))
      ->capture_default_str();
  add_epilogue_options(app, o);
  app.add_flag("--identify", o.identify, "rank all models by the number of elements that each explains");
  app.add_option("--tell-apart", o.tell_apart,
                 "for --identify and --fit: write inputs to this file on which tied results differ");
  app.add_flag("--fit", o.fit, "rank parameters near those of --model in the same way");
  app.add_option("--sample", o.sample,
                 "elements that --identify and --fit test [20000]; for a dump, runs of elements [512]")
      ->check(CLI::Range(1, 100000000));
  app.add_flag("--list-models", o.list, "name all models and kernels, with their evidence");
  app.add_option("--make-case", o.make, "write inputs that tell models apart to this file");
  app.add_option("--m", o.made.m, "for --make-case")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--n", o.made.n, "for --make-case")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--k", o.made.k, "for --make-case; 0: four instructions")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option(
         "--kind", o.made.kind,
         "for --make-case: all, normal, raw_bits, edges, many_zeros, tiny, outliers, wide, cancelling or properties")
      ->capture_default_str();
  app.add_option("--seed", o.made.seed, "for --make-case")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_flag("--with-d", o.made.with_d, "for --make-case and --tell-apart: add the (first) model's own d");
  app.add_option("--threads", o.threads, "0: all")->check(CLI::Range(0, 4096));
}

/// Parses the command line and runs the task; prints help and version.
int run_program(CLI::App& app, options& o, int argc, char** argv) {
  explain_checks(app);
  refuse_overflow(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    print_error(program_name, explain_parse_error(app, error));
    return exit_bad_input;
  }
  refuse_empty(app);
  for (const CLI::Option* given : app.parse_order()) o.given.push_back(given->get_name());
  o.quantizer.given = o.given;
  o.any_nan = o.nan == "any";
  return run(o);
}

}  // namespace
}  // namespace rotoscale::validate

int main(int argc, char** argv) {
  rotoscale::occupy_standard_streams();
  rotoscale::fail_beyond_file_limit();
  rotoscale::validate::options o;
  CLI::App app{
      "Checks a GEMM kernel's result against a model of its matrix unit, or a quantizer's result against its\n"
      "definition, bit for bit. The input is a safetensors file with a [B,M,K], b [B,N,K] (or without B), d [B,M,N],\n"
      "and optionally c, bias, scale_a and scale_b. A sparse A is either dense with +0 for pruned elements, or\n"
      "a [B,M,K/2] with the instruction's metadata_a [B,M,K/8] (F32: K/4).\n"
      "Exit codes: 0 identical, 1 different, 2 bad input."};
  rotoscale::validate::add_options(app, o);
  rotoscale::validate::add_quantizer_options(app, o.quantizer);
  try {
    const int code = rotoscale::validate::run_program(app, o, argc, argv);
    rotoscale::finish_standard_output();
    return code;
  } catch (const std::bad_alloc&) {
    rotoscale::print_error(rotoscale::validate::program_name, "not enough memory for tensors of this size");
  } catch (const std::exception& error) {
    rotoscale::print_error(rotoscale::validate::program_name, error.what());
  }
  return rotoscale::validate::exit_bad_input;
}
