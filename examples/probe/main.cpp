// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// rotoscale-probe: runs the device's matrix instructions on discriminating inputs, compares every bit with the model,
// and writes cases for rotoscale-validate. Options:
//
//  `--gemm`  compares whole GEMMs, also of the vendor's library
//  `--exp2`  compares ex2.approx.ftz.f32, the exponential of attention
//  `--cpu`   probes the processor instead of a GPU
//
// Exit codes: 0 all equal, 1 differences, 2 bad input or a device error, 77 no device.
#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <mutex>

#include "examples/command_line.hpp"
#include "examples/probe/check.hpp"
#include "examples/probe/cpu.hpp"
#include "examples/probe/gemm.hpp"
#include "examples/standard_streams.hpp"
#include "rotoscale/ex2_approx.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/pack.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::probe {
namespace {

namespace fs = std::filesystem;

constexpr const char* program_name = "rotoscale-probe";

struct probe_options {
  std::string filter;
  double outputs = 1e7;
  std::uint64_t seed = 1;
  int threads = 0;
  std::string save;
  int save_tiles = case_kinds;
  bool list = false;
  std::uint32_t exp2_stride = 0;  ///< 0: off
  bool gemm = false;
  bool cpu = false;
  gemm_run gemms;
};

struct difference {
  std::uint64_t count = 0;
  std::string first;
};

std::string hex(std::uint64_t x, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%0*llx", digits, static_cast<unsigned long long>(x));
  return text;
}

/// Compares all results with the model's.
difference compare(const probed_instruction& instruction, const mma_model& m, const probe_cases& cases,
                   thread_pool& pool) {
  const int bytes = element_bytes(instruction.accumulator);
  std::atomic<std::uint64_t> count{0};
  std::mutex mutex;
  std::int64_t first_tile = cases.tiles;
  std::string first;
  pool.for_each(cases.tiles, [&](index_t t) {
    const auto tile = static_cast<std::size_t>(t);
    std::vector<std::uint64_t> want;
    model_tile(m, instruction, cases, tile, want);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::uint64_t got =
          load_little_endian(cases.d, (tile * want.size() + i) * static_cast<std::size_t>(bytes), bytes);
      if (got == want[i]) continue;
      ++count;
      const std::lock_guard lock(mutex);
      if (t >= first_tile) continue;
      first_tile = t;
      first = "tile " + std::to_string(t) + " (" + case_kind_names[t % case_kinds] + ") row " +
              std::to_string(i / static_cast<std::size_t>(instruction.cols)) + " column " +
              std::to_string(i % static_cast<std::size_t>(instruction.cols)) + ": device " + hex(got, 2 * bytes) +
              ", model " + hex(want[i], 2 * bytes);
    }
  });
  return {count, first};
}

/// Packs rows of one-byte codes for storage: FP4 and FP6 codes without gaps.
std::vector<std::uint8_t> packed(const std::vector<std::uint8_t>& codes, const format& f, int rows, int width) {
  const auto row_bytes = static_cast<std::size_t>(packed_bytes(f, width));
  std::vector<std::uint8_t> result(row_bytes * static_cast<std::size_t>(rows));
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < width; ++i) {
      store_code(f, result.data() + row_bytes * static_cast<std::size_t>(r), i,
                 codes[static_cast<std::size_t>(r * width + i)]);
    }
  }
  return result;
}

std::string file_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char ch) { return ch == ' ' || ch == '.' || ch == ':' || ch == ','; }, '_');
  return name + ".safetensors";
}

/// Saves the first eight rows of the first tiles, so that the file stays small. Operands are saved as the instruction
/// multiplies them: negated where it negates, and c is +0 where it ignores C.
void save_cases(const fs::path& folder, const probed_instruction& instruction, const probe_cases& cases, int tiles,
                const std::string& device) {
  const int rows = std::min(8, instruction.rows);
  io::safetensors_writer writer;
  const auto add = [&](const char* name, const std::vector<std::uint8_t>& all, const format& f, int height, int wanted,
                       int width, bool negated = false) {
    const auto row_bytes = static_cast<std::ptrdiff_t>(element_bytes(stored_format(f)) * width);
    std::vector<std::uint8_t> kept;
    for (int tile = 0; tile < tiles; ++tile) {
      const auto from = all.begin() + tile * height * row_bytes;
      kept.insert(kept.end(), from, from + wanted * row_bytes);
    }
    const int bytes = element_bytes(stored_format(f));
    for (std::size_t last = static_cast<std::size_t>(bytes) - 1; negated && last < kept.size();
         last += static_cast<std::size_t>(bytes)) {
      kept[last] ^= 0x80;
    }
    if (storage_bits(f) < 8) kept = packed(kept, f, tiles * wanted, width);
    writer.add(name, io::safetensors_dtype_of(stored_format(f)), {tiles, wanted, width},
               std::as_bytes(std::span(kept)));
  };
  const format acc = instruction.accumulator;
  add("a", cases.a, instruction.a, instruction.rows, rows, stored_k(instruction), instruction.form.negate_a);
  if (instruction.form.sparse) {
    const auto bytes = static_cast<std::ptrdiff_t>(metadata_bytes(instruction));
    std::vector<std::uint8_t> kept;
    for (int tile = 0; tile < tiles; ++tile) {
      const auto from = cases.metadata.begin() + tile * instruction.rows * bytes;
      kept.insert(kept.end(), from, from + rows * bytes);
    }
    writer.add("metadata_a", "U8", {tiles, rows, bytes}, std::as_bytes(std::span(kept)));
  }
  const auto add_scales = [&](const char* name, const std::vector<std::uint8_t>& all, int height, int wanted) {
    const std::ptrdiff_t blocks = instruction.k / scale_block;
    std::vector<std::uint8_t> kept;
    for (int tile = 0; tile < tiles; ++tile) {
      const auto from = all.begin() + tile * height * blocks;
      kept.insert(kept.end(), from, from + wanted * blocks);
    }
    writer.add(name, "F8_E8M0", {tiles, wanted, blocks}, std::as_bytes(std::span(kept)));
  };
  if (instruction.form.scaled) {
    add_scales("scale_a", cases.scales_a, instruction.rows, rows);
    add_scales("scale_b", cases.scales_b, instruction.cols, instruction.cols);
  }
  add("b", cases.b, instruction.b, instruction.cols, instruction.cols, instruction.k, instruction.form.negate_b);
  const std::vector<std::uint8_t> zeros(instruction.form.zero_c ? cases.c.size() : 0);
  add("c", instruction.form.zero_c ? zeros : cases.c, acc, instruction.rows, rows, instruction.cols);
  add("d", cases.d, acc, instruction.rows, rows, instruction.cols);
  writer.metadata["device"] = device;
  writer.metadata["instruction"] = instruction.name;
  writer.metadata["model"] = instruction.unit;
  writer.write(folder / file_name(instruction.name));
}

/// Saves a sample of a GEMM whose order along K is unknown.
void save_gemm(const fs::path& folder, const std::string& name, const probed_gemm& p) {
  io::safetensors_writer writer;
  const auto add = [&](const char* tensor, const format& f, std::int64_t rows, std::int64_t columns,
                       const std::vector<std::uint8_t>& codes) {
    writer.add(tensor, io::safetensors_dtype_of(stored_format(f)), {rows, columns}, std::as_bytes(std::span(codes)));
  };
  add("a", p.a, p.m, p.k, p.codes_a);
  add("b", p.b, p.n, p.k, p.codes_b);
  add("d", p.d, p.m, p.n, p.codes_d);
  writer.write(folder / file_name(name));
}

/// Compares ex2.approx.ftz.f32 of every stride-th FP32 bit pattern; stride 1 compares all. Prints FNV-1a over the
/// results for [1, 2) and (-2, -1], which the test `math` records for stride 1. Returns the exit code.
int compare_exp2(std::uint32_t stride, thread_pool& pool) {
  constexpr std::uint64_t inputs = std::uint64_t{1} << 32, chunk = 1 << 24;
  std::atomic<std::uint64_t> differing{0}, first_differing{inputs};
  std::uint64_t digest = 0xCBF29CE484222325u, compared = 0;
  std::vector<float> got;
  for (std::uint64_t first = 0; first < inputs; first += std::uint64_t{stride} * chunk) {
    got.assign(static_cast<std::size_t>(std::min(chunk, (inputs - first + stride - 1) / stride)), 0.0f);
    const std::string problem = run_exp2_on_device(static_cast<std::uint32_t>(first), stride, got);
    if (!problem.empty()) {
      print_error(program_name, "--exp2: " + problem);
      return 2;
    }
    const auto bits_of = [&](std::size_t i) { return static_cast<std::uint32_t>(first + i * stride); };
    constexpr std::size_t part = 1 << 16;
    pool.for_each(static_cast<index_t>((got.size() + part - 1) / part), [&](index_t task) {
      const std::size_t begin = static_cast<std::size_t>(task) * part;
      for (std::size_t i = begin; i < std::min(begin + part, got.size()); ++i) {
        const std::uint64_t u = bits_of(i);
        if (fp32_bits(got[i]) == fp32_bits(ex2_approx(fp32_from_bits(bits_of(i))))) continue;
        ++differing;
        for (std::uint64_t least = first_differing; u < least && !first_differing.compare_exchange_weak(least, u);) {
        }
      }
    });
    compared += got.size();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if ((bits_of(i) & fp32_magnitude_mask) >> 23 != 127) continue;
      for (int shift = 0; shift < 32; shift += 8) {
        digest = (digest ^ (fp32_bits(got[i]) >> shift & 255)) * 0x100000001B3u;
      }
    }
  }
  std::cout << "ex2.approx.ftz.f32  ex2_approx: " << differing << " of " << compared << " differ"
            << (differing == 0 ? "" : "; first " + hex(first_differing, 8)) << ", digest " << hex(digest, 16) << "\n";
  return differing == 0 ? 0 : 1;
}

int run(const probe_options& o) {
  std::string why;
  const std::string device = o.cpu ? cpu_description(why) : device_description(why);
  if (device.empty()) {
    print_error(program_name, (o.cpu ? "--cpu: " : "no device to probe: ") + why);
    return 77;
  }
  if (o.exp2_stride != 0) {
    std::cout << device << "\n";
    thread_pool pool(o.threads);
    return compare_exp2(o.exp2_stride, pool);
  }
  std::vector<probed_instruction> chosen = o.cpu ? cpu_instructions() : device_instructions();
  std::erase_if(chosen, [&](const probed_instruction& i) {
    return std::string_view(i.name).find(o.filter) == std::string_view::npos;
  });
  if (o.gemm) {
    std::cout << device << "\n";
    thread_pool pool(o.threads);
    gemm_run run = o.gemms;
    run.filter = o.filter;
    run.seed = o.seed;
    if (!o.save.empty()) {
      run.unexplained = [&](const std::string& name, const probed_gemm& p) { save_gemm(o.save, name, p); };
    }
    return compare_gemms(run, pool, std::cout) ? 0 : 1;
  }
  if (chosen.empty()) {
    print_error(program_name, "no instruction's name contains '" + o.filter + "'; try --list");
    return 2;
  }
  std::cout << device << "\n";
  thread_pool pool(o.threads);
  bool equal = true;
  for (const probed_instruction& instruction : chosen) {
    if (o.list) {
      std::cout << instruction.name << "  " << instruction.unit << "\n";
      continue;
    }
    const int results = instruction.rows * instruction.cols;
    const int tiles = std::max(o.save_tiles, static_cast<int>(std::ceil(o.outputs / results)));
    probe_cases cases = make_cases(instruction, tiles, o.seed, pool);
    const std::string problem = o.cpu ? run_on_cpu(instruction, cases, pool) : run_on_device(instruction, cases);
    if (!problem.empty()) {
      print_error(program_name, std::string(instruction.name) + ": " + problem);
      return 2;
    }
    const difference d = compare(instruction, find_unit(instruction.unit)->model, cases, pool);
    std::cout << instruction.name << "  " << instruction.unit << ": " << d.count << " of "
              << std::int64_t{tiles} * results << " differ" << (d.count == 0 ? "" : "; " + d.first) << std::endl;
    equal = equal && d.count == 0;
    if (!o.save.empty()) save_cases(o.save, instruction, cases, o.save_tiles, device);
  }
  return equal ? 0 : 1;
}

}  // namespace
}  // namespace rotoscale::probe

int main(int argc, char** argv) {
  rotoscale::occupy_standard_streams();
  rotoscale::fail_beyond_file_limit();
  rotoscale::probe::probe_options o;
  CLI::App app{"Compares this machine's matrix instructions with their models, bit for bit."};
  app.add_option("--instruction", o.filter, "only instructions whose name contains this");
  app.add_option("--outputs", o.outputs, "results of each instruction")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of the inputs")->capture_default_str();
  app.add_option("--threads", o.threads, "for the models; 0: all")->check(CLI::Range(0, 4096));
  app.add_option("--save", o.save, "folder for one safetensors file of cases an instruction")
      ->check(CLI::ExistingDirectory);
  app.add_option("--save-tiles", o.save_tiles, "cases in such a file")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  auto* const exp2 =
      app.add_option("--exp2", o.exp2_stride, "ex2.approx.ftz.f32 of every N-th FP32 number by its bits; 1: of all")
          ->check(CLI::Range(1, 1 << 30));
  app.add_flag("--gemm", o.gemm, "whole GEMMs: kernels made of each instruction, and the vendor's library");
  app.add_option("--sizes", o.gemms.sizes, "for --gemm: m = n = k, multiples of 64")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 16));
  app.add_option("--algorithms", o.gemms.algorithms, "for --gemm: of the library for each problem")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--list", o.list, "only names the instructions");
  auto* const cpu = app.add_flag("--cpu", o.cpu, "the processor's AMX and AVX512_BF16 instead of a GPU");
  for (const char* other : {"--instruction", "--save", "--gemm", "--list"}) exp2->excludes(other);
  for (const char* other : {"--exp2", "--gemm"}) cpu->excludes(other);
  try {
    rotoscale::explain_checks(app);
    rotoscale::refuse_overflow(app);
    app.parse(argc, argv);
    rotoscale::refuse_empty(app);
    return rotoscale::probe::run(o);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    rotoscale::print_error(rotoscale::probe::program_name, rotoscale::explain_parse_error(app, error));
    return 2;
  } catch (const std::exception& error) {
    rotoscale::print_error(rotoscale::probe::program_name, error.what());
    return 2;
  }
}
