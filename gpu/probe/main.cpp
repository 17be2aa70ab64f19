// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// rotoscale-probe: runs matrix instructions of the device at hand on discriminating inputs, compares every bit with the
// model, and writes cases for rotoscale-validate.
// Exit codes: 0 all equal, 1 some differ, 2 bad input, 77 no device.
#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <mutex>

#include "gpu/probe/check.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/pack.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::gpu {
namespace {

namespace fs = std::filesystem;

struct probe_options {
  std::string filter;
  double outputs = 1e7;
  std::uint64_t seed = 1;
  int threads = 0;
  std::string save;
  int save_tiles = case_kinds;
  bool list = false;
};

struct difference {
  std::uint64_t count = 0;
  std::string first;
};

std::string hex(std::uint32_t x) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", x);
  return text;
}

/// Compares all results with the model's.
difference compare(const probed_instruction& instruction, const mma_model& m, const probe_cases& cases,
                   thread_pool& pool) {
  const int bytes = instruction.fp16_accumulator ? 2 : 4;
  std::atomic<std::uint64_t> count{0};
  std::mutex mutex;
  std::int64_t first_tile = cases.tiles;
  std::string first;
  pool.for_each(cases.tiles, [&](index_t t) {
    const auto tile = static_cast<std::size_t>(t);
    std::vector<std::uint32_t> want;
    model_tile(m, instruction, cases, tile, want);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::uint32_t got =
          load_little_endian(cases.d, (tile * want.size() + i) * static_cast<std::size_t>(bytes), bytes);
      if (got == want[i]) continue;
      ++count;
      const std::lock_guard lock(mutex);
      if (t >= first_tile) continue;
      first_tile = t;
      first = "tile " + std::to_string(t) + " (" + case_kind_names[t % case_kinds] + ") row " +
              std::to_string(i / static_cast<std::size_t>(instruction.cols)) + " column " +
              std::to_string(i % static_cast<std::size_t>(instruction.cols)) + ": device " + hex(got) + ", model " +
              hex(want[i]);
    }
  });
  return {count, first};
}

/// Rows of codes of a byte each as they are stored: FP4 and FP6 codes without gaps.
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

/// The safetensors type of a format.
std::string dtype_of(const format& f) {
  constexpr std::pair<format, const char*> types[] = {{formats::fp16, "F16"},
                                                      {formats::bf16, "BF16"},
                                                      {formats::fp32, "F32"},
                                                      {formats::e4m3, "F8_E4M3"},
                                                      {formats::e5m2, "F8_E5M2"},
                                                      {formats::e4m3fnuz, "F8_E4M3FNUZ"},
                                                      {formats::e5m2fnuz, "F8_E5M2FNUZ"},
                                                      {formats::e2m3, "F6_E2M3"},
                                                      {formats::e3m2, "F6_E3M2"},
                                                      {formats::e2m1, "F4"}};
  for (const auto& [value, name] : types) {
    if (value == f) return name;
  }
  return "U8";
}

/// The first eight rows of the first tiles, for a file small enough to be kept.
void save_cases(const fs::path& folder, const probed_instruction& instruction, const probe_cases& cases, int tiles,
                const std::string& device) {
  const int rows = std::min(8, instruction.rows);
  io::safetensors_writer writer;
  const auto add = [&](const char* name, const std::vector<std::uint8_t>& all, const format& f, int height, int wanted,
                       int width) {
    const auto row_bytes = static_cast<std::ptrdiff_t>(element_bytes(stored_format(f)) * width);
    std::vector<std::uint8_t> kept;
    for (int tile = 0; tile < tiles; ++tile) {
      const auto from = all.begin() + tile * height * row_bytes;
      kept.insert(kept.end(), from, from + wanted * row_bytes);
    }
    if (storage_bits(f) < 8) kept = packed(kept, f, tiles * wanted, width);
    writer.add(name, dtype_of(stored_format(f)), {tiles, wanted, width}, std::as_bytes(std::span(kept)));
  };
  const format acc = instruction.fp16_accumulator ? formats::fp16 : formats::fp32;
  add("a", cases.a, instruction.a, instruction.rows, rows, instruction.k);
  add("b", cases.b, instruction.b, instruction.cols, instruction.cols, instruction.k);
  add("c", cases.c, acc, instruction.rows, rows, instruction.cols);
  add("d", cases.d, acc, instruction.rows, rows, instruction.cols);
  writer.metadata["device"] = device;
  writer.metadata["instruction"] = instruction.name;
  writer.metadata["model"] = instruction.unit;
  std::string name = instruction.name;
  std::replace_if(
      name.begin(), name.end(), [](char ch) { return ch == ' ' || ch == '.' || ch == ':'; }, '_');
  writer.write(folder / (name + ".safetensors"));
}

int probe(const probe_options& o) {
  std::string why;
  const std::string device = device_description(why);
  if (device.empty()) {
    std::cerr << "rotoscale-probe: no device to probe: " << why << "\n";
    return 77;
  }
  std::vector<probed_instruction> chosen = device_instructions();
  std::erase_if(chosen, [&](const probed_instruction& i) {
    return std::string_view(i.name).find(o.filter) == std::string_view::npos;
  });
  if (chosen.empty()) {
    std::cerr << "rotoscale-probe: no instruction's name contains '" << o.filter << "'; try --list\n";
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
    const std::string problem = run_on_device(instruction, cases);
    if (!problem.empty()) {
      std::cerr << "rotoscale-probe: " << instruction.name << ": " << problem << "\n";
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
}  // namespace rotoscale::gpu

int main(int argc, char** argv) {
  rotoscale::gpu::probe_options o;
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
  app.add_flag("--list", o.list, "only names the instructions");
  try {
    app.parse(argc, argv);
    return rotoscale::gpu::probe(o);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << "rotoscale-probe: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "rotoscale-probe: " << error.what() << "\n";
    return 2;
  }
}
