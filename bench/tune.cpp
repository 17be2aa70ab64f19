// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Measures the MXFP4 and MXFP8 GEMMs of the current device and prints gpu/gemm/tuned/ARCH.csv.
//
// A row has the fastest tile, stages, split-K and raster order of a shape and kernel. Comments have the times of the
// quantizers. Each combination is timed once, then the best ones in turn, by medians of batches. Operands are N(0, 1),
// MXFP4 rotated by H16. The error is the relative Frobenius norm over 64 outputs, against FP64.
// Exit codes: 0 measured, 1 a launch or the runtime failed, 2 bad usage or a bad file, 77 no device.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <random>
#include <set>

#include "examples/command_line.hpp"
#include "examples/standard_streams.hpp"
#include "gpu/api/quantize.hpp"
#include "gpu/gemm/tuned.hpp"
#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/models/llama/config_json.hpp"

namespace {

using namespace rotoscale;
using namespace rotoscale::gpu;
using bytes = std::vector<std::uint8_t>;

/// A [m, k] · Bᵀ [n, k] in MXFP8, else MXFP4.
struct gemm_shape {
  bool fp8 = false;
  int m = 0, n = 0, k = 0;

  bool operator==(const gemm_shape&) const = default;
};
const char* format_name(const gemm_shape& s) { return s.fp8 ? "mxfp8" : "mxfp4"; }

/// Forward GEMMs of Llama 3.1 8B and 70B: 4096 and 8192 tokens, and few tokens.
const gemm_shape default_shapes[] = {
    {false, 4096, 4096, 4096},  {false, 8192, 8192, 8192},  {false, 8192, 6144, 4096},  {false, 8192, 4096, 4096},
    {false, 8192, 28672, 4096}, {false, 8192, 4096, 14336}, {false, 8192, 10240, 8192}, {false, 8192, 57344, 8192},
    {false, 8192, 8192, 28672}, {false, 4096, 14336, 8192}, {false, 14336, 4096, 8192}, {false, 1024, 8192, 8192},
    {false, 256, 8192, 8192},   {false, 128, 8192, 8192},   {false, 64, 8192, 8192},    {false, 16, 8192, 8192},
    {false, 16, 4096, 14336},   {false, 8192, 64, 4096},    {false, 8192, 16, 4096},    {false, 2048, 2048, 2048}};

/// fprop, dgrad and wgrad of a decoder layer's four linear layers.
std::vector<gemm_shape> shapes_of(const llama::model_config& c, int tokens) {
  const auto whole = [](long long x) { return static_cast<int>(x); };
  const int hidden = whole(c.hidden_size), mlp = whole(c.intermediate_size), head = whole(c.head_size());
  const int queries = whole(c.num_attention_heads) * head, pairs = whole(c.num_key_value_heads) * head;
  std::vector<gemm_shape> shapes;
  for (const auto& [out, in] :
       {std::pair{queries + 2 * pairs, hidden}, {hidden, queries}, {2 * mlp, hidden}, {hidden, mlp}}) {
    shapes.insert(shapes.end(), {{false, tokens, out, in}, {false, tokens, in, out}, {false, out, in, tokens}});
  }
  return shapes;
}

void check(const status& s) {
  if (s.ok()) return;
  print_error("tune", s.message());
  std::exit(1);
}

/// Owns device memory of `n` elements.
template <class T>
struct device_memory {
  explicit device_memory(std::size_t n) : size(n) { check(allocate(data, n)); }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  ~device_memory() { check(release(data)); }
  std::vector<T> read() const {
    std::vector<T> x(size);
    check(download(x.data(), data, size * sizeof(T)));
    check(synchronize());
    return x;
  }
  std::size_t size;
  T* data = nullptr;
};

/// Mean microseconds of a launch, over `count` launches.
template <class Launch>
double batch_us(const Launch& launch, int count) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) check(launch());
  check(synchronize());
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / count;
}

/// Median time of a launch, in batches of some milliseconds.
template <class Launch>
double median_us(const Launch& launch) {
  batch_us(launch, 1);  // warm-up
  const int count = std::clamp(static_cast<int>(3000 / batch_us(launch, 1)), 1, 50);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(batch_us(launch, count));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// MXFP4 is rotated, as in training.
block_options options_for(block_format f) { return f.element == formats::e2m1 ? presets::te_rocm : block_options{}; }

/// N(0, 1) in BF16, quantized in the orders that the device's kernels read.
class operand_data {
 public:
  operand_data(const device_info& device, block_format f, index_t rows, index_t k, bool is_b, unsigned seed)
      : f_(f),
        rows_(rows),
        k_(k),
        is_placed_(device.arch == arch::gfx950),
        source_(static_cast<std::size_t>(rows * k)),
        codes_(static_cast<std::size_t>(rows * packed_bytes(f.element, k))),
        scales_(static_cast<std::size_t>(scale_layout(scale_order(), f, rows, k).size_bytes())) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<bf16> pool(65536), x(source_.size);
    for (bf16& p : pool) store_value(normal(random), p);
    std::uint64_t state = seed;
    for (bf16& value : x) {  // fast: a billion values are needed
      state = state * 6364136223846793005u + 1442695040888963407u;
      value = pool[state >> 48];
    }
    check(upload(source_.data, x.data(), 2 * x.size()));
    to_ = {codes_.data, scales_.data, options_for(f)};
    to_.code_order = is_placed_ && is_b ? placement::aiter_data_16x16 : placement::row_major;
    to_.scale_order = scale_order();
    check(launch_quantizer({}));
    check(synchronize());
  }

  /// Quantizes along rows and, if requested, along columns.
  status launch_quantizer(const quantized_output& columns) const {
    return quantize(f_, row_major<const bf16>(source_.data, rows_, k_), to_, columns, {});
  }
  gemm_operand view() const { return gpu::make_operand(f_, to_, rows_, k_); }
  index_t rows() const { return rows_; }
  index_t k() const { return k_; }
  const block_format& blocks() const { return f_; }

  /// Values of some rows: (rows, k).
  std::vector<std::vector<double>> values(const std::vector<index_t>& rows) const {
    const bytes codes = codes_.read(), scales = scales_.read();
    const layout code_place{to_.code_order, rows_, packed_bytes(f_.element, k_)},
        scale_place = scale_layout(to_.scale_order, f_, rows_, k_);
    std::vector<std::vector<double>> all;
    for (const index_t r : rows) {
      bytes row(static_cast<std::size_t>(packed_bytes(f_.element, k_)));
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = codes[static_cast<std::size_t>(code_place.offset(r, static_cast<index_t>(i)))];
      }
      std::vector<double>& x = all.emplace_back();
      for (index_t c = 0; c < k_; ++c) {
        const std::uint8_t scale = scales[static_cast<std::size_t>(scale_place.offset(r, c / f_.length))];
        x.push_back(static_cast<double>(decode_scaled(f_, load_code(f_.element, row.data(), c), scale)));
      }
    }
    return all;
  }

 private:
  placement scale_order() const { return is_placed_ ? placement::aiter_scale : placement::row_major; }

  block_format f_;
  index_t rows_, k_;
  bool is_placed_;
  device_memory<bf16> source_;
  device_memory<std::uint8_t> codes_, scales_;
  quantized_output to_;
};

/// Error of 8 × 8 outputs, relative to their norm.
double relative_error(const operand_data& a, const operand_data& b, const device_memory<bf16>& out) {
  std::mt19937 random(7);
  std::vector<index_t> rows, columns;
  for (int i = 0; i < 8; ++i) {
    rows.push_back(static_cast<index_t>(random()) % a.rows());
    columns.push_back(static_cast<index_t>(random()) % b.rows());
  }
  const auto x = a.values(rows), y = b.values(columns);
  const std::vector<bf16> found = out.read();
  double wrong = 0, norm = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < columns.size(); ++j) {
      double sum = 0;
      for (std::size_t c = 0; c < x[i].size(); ++c) sum += x[i][c] * y[j][c];
      const bf16 rounded = found[static_cast<std::size_t>(rows[i] * b.rows() + columns[j])];
      const double difference = static_cast<double>(static_cast<float>(rounded)) - sum;
      wrong += difference * difference;
      norm += sum * sum;
    }
  }
  return std::sqrt(wrong / norm);
}

/// Times the quantizer of both orientations, as training launches it.
void time_quantizer(const operand_data& x) {
  const block_format& f = x.blocks();
  if (x.rows() % f.length != 0) return;  // no blocks along columns
  device_memory<std::uint8_t> codes(static_cast<std::size_t>(x.k() * packed_bytes(f.element, x.rows()))),
      scales(static_cast<std::size_t>(x.k() * x.rows() / f.length));
  quantized_output columns{codes.data, scales.data, options_for(f)};
  const double us = median_us([&] { return x.launch_quantizer(columns); });
  const double moved = static_cast<double>(x.rows() * x.k()) * 2 + 2 * static_cast<double>(codes.size + scales.size);
  std::printf("# quantize %s, rows and columns of %td x %td BF16: %.1f us, %.0f GB/s\n",
              f.element == formats::e2m1 ? "H16 + MXFP4" : "MXFP8 E4M3", x.rows(), x.k(), us, moved / us / 1e3);
}

/// Parts of K and schedule of a launch.
struct candidate {
  int split_k;
  gemm_schedule schedule;

  bool operator==(const candidate&) const = default;
  gemm_call of(gemm_call c) const {
    c.contract.split_k = split_k;
    c.schedule = schedule;
    return c;
  }
};

/// Candidates of a kernel: tiles and split-K that nearly fill the device, and the two largest numbers of stages.
/// Raster bands with equal effect count once.
std::vector<candidate> candidates(const gemm_shape& s, const gemm_kernel& kernel, const device_info& device,
                                  const gemm_call& call) {
  std::vector<candidate> all;
  for (const tile_shape& tile : kernel.tiles) {
    const int rows = (s.m + tile.m - 1) / tile.m, columns = (s.n + tile.n - 1) / tile.n;
    for (const int parts : {1, 2, 3, 4, 6, 8, 12, 16}) {
      if (parts > 1 && (s.k / parts < 512 || filling_parts(device, tile, s.m, s.n, s.k) * 2 < parts)) break;
      for (int stages = tile.max_stages; stages >= std::max(tile.min_stages, tile.max_stages - 1); --stages) {
        for (const bool by_columns : {false, true}) {
          for (const int band : {4, 8, 16, 32}) {
            if (band > 4 && band / 2 >= (by_columns ? columns : rows)) continue;  // the same order as the band before
            candidate c{parts, {tile.m, tile.n, stages, band, by_columns}};
            if (!walks_bands(kernel)) c.schedule.band = 0, c.schedule.bands_of_columns = false;
            // Host mode's times mean nothing: each tile once.
            const bool repeats =
                device.arch == arch::host && !all.empty() && tile_text(all.back().schedule) == tile_text(c.schedule);
            const bool known = repeats || std::find(all.begin(), all.end(), c) != all.end();
            if (!known && check_gemm(c.of(call), device).ok()) all.push_back(c);
          }
        }
      }
    }
  }
  return all;
}

/// A choice and the time of its launch.
struct timed_choice {
  candidate choice;
  double us;  ///< microseconds
};

/// Medians of `rounds` rounds. All choices take turns: heat would slow the later ones.
template <class Launch>
void time_in_turn(std::vector<timed_choice>& all, int rounds, const Launch& launch) {
  std::vector<std::vector<double>> times(all.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const int count = std::clamp(static_cast<int>(2000 / all[i].us), 1, 20);
      times[i].push_back(batch_us(launch(all[i].choice), count));
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    all[i].us = times[i][times[i].size() / 2];
  }
}

/// Prints the best choice under a mode's contract.
void tune_mode(const gemm_shape& s, gemm_mode mode, const device_info& device, gemm_call call, const operand_data& a,
               const operand_data& b, const device_memory<bf16>& out) {
  std::vector<timed_choice> all;
  std::size_t bytes = 0;
  const gemm_kernel* kernel = nullptr;
  if (mode_contract(mode, device, s.fp8) != nullptr) {
    call.contract = contract_options(mode, device, 1, s.fp8);
    if (!find_kernel(call, device, kernel).ok()) kernel = nullptr;
  }
  for (const candidate& c : kernel == nullptr ? std::vector<candidate>{} : candidates(s, *kernel, device, call)) {
    all.push_back({c, 0});
    bytes = std::max(bytes, gemm_workspace_bytes(c.of(call), device));
  }
  if (all.empty()) {
    std::fprintf(stderr, "%s %dx%dx%d: no kernel with tiles takes it\n", format_name(s), s.m, s.n, s.k);
    return;
  }
  const device_memory<std::uint8_t> workspace(bytes);
  const auto launch = [&](const candidate& c) {
    return [&, one = c.of(call)] { return gemm(one, workspace.data, workspace.size, {}); };
  };
  const auto sort = [&] {
    std::stable_sort(all.begin(), all.end(), [](const timed_choice& x, const timed_choice& y) { return x.us < y.us; });
  };
  for (timed_choice& c : all) {
    const int count = std::clamp(static_cast<int>(1000 / batch_us(launch(c.choice), 1)), 1, 20);
    c.us = batch_us(launch(c.choice), count);
  }
  sort();
  const std::size_t tried = all.size();
  // The best few and the best of each tile, so that the log compares tiles.
  std::vector<timed_choice> few;
  for (const timed_choice& c : all) {
    const bool new_tile = std::none_of(few.begin(), few.end(), [&](const timed_choice& x) {
      return tile_text(x.choice.schedule) == tile_text(c.choice.schedule);
    });
    if (few.size() < 6 || new_tile) few.push_back(c);
  }
  all = few;
  time_in_turn(all, device.arch == arch::host ? 1 : 7, launch);
  for (const timed_choice& c : all) {
    std::fprintf(stderr, "%s %dx%dx%d/%d/%s/%d/%s %.1f us of %zu\n", kernel->name, s.m, s.n, s.k, c.choice.split_k,
                 tile_text(c.choice.schedule).c_str(), c.choice.schedule.stages, raster_text(c.choice.schedule).c_str(),
                 c.us, tried);
  }
  sort();
  const candidate& best = all[0].choice;
  check(launch(best)());
  check(synchronize());
  std::printf("%s,%d,%s,%d,%d,%d,%s,%d,%d,%s,%.1f,%.0f,%.2e\n", to_text(device.arch), device.processors, kernel->name,
              s.m, s.n, s.k, tile_text(best.schedule).c_str(), best.schedule.stages, best.split_k,
              raster_text(best.schedule).c_str(), all[0].us, 2e-6 * s.m * s.n * s.k / all[0].us,
              relative_error(a, b, out));
  finish_standard_output();  // end at once if the table cannot be written
}

/// Prints the rows of a shape. `timed` has the operands whose quantizers are timed already.
void tune(const gemm_shape& s, const device_info& device, std::set<std::array<index_t, 3>>& timed) {
  const block_format f = s.fp8 ? mxfp8_e4m3 : mxfp4;
  const operand_data a(device, f, s.m, s.k, false, 1), b(device, f, s.n, s.k, true, 2);
  for (const operand_data* x : {&a, &b}) {
    if (timed.insert({s.fp8, x->rows(), x->k()}).second) time_quantizer(*x);
  }
  const device_memory<bf16> out(static_cast<std::size_t>(s.m) * static_cast<std::size_t>(s.n));
  const gemm_call call{{out.data}, a.view(), b.view()};
  for (const gemm_mode mode : {gemm_mode::fast, gemm_mode::accurate}) {
    const bool same = mode_contract(mode, device, s.fp8) == mode_contract(gemm_mode::accurate, device, s.fp8);
    if (!same || mode == gemm_mode::accurate) tune_mode(s, mode, device, call, a, b, out);
  }
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

/// Arguments of the command line.
struct arguments {
  std::vector<std::string> shapes, formats{"mxfp4"};
  std::string config;
  std::vector<int> tokens{4096, 8192};
};

/// Parses "MxNxK". Throws CLI::ValidationError.
gemm_shape parse_shape(const std::string& text) {
  const auto parts = parts_of(text, 'x');
  gemm_shape s;
  int* const extents[] = {&s.m, &s.n, &s.k};
  if (parts.size() != 3) throw CLI::ValidationError(text, "is no shape MxNxK");
  for (std::size_t i = 0; i < 3; ++i) {
    if (!parse_count(parts[i], *extents[i]) || *extents[i] > max_gemm_extent) {
      throw CLI::ValidationError(text, "M, N and K must be 1 to 2^20");
    }
  }
  if (s.k % 32 != 0) throw CLI::ValidationError(text, "K must be a multiple of 32");
  return s;
}

/// Checks that every extent is a multiple of the block length, since each is K of some GEMM. Throws io::error.
void check_model(const llama::model_config& c, const std::string& file) {
  const long long head = c.head_size(), queries = c.num_attention_heads * head, pairs = c.num_key_value_heads * head;
  const struct {
    const char* name;
    long long extent, largest;
  } checked[] = {{"hidden_size", c.hidden_size, c.hidden_size},
                 {"intermediate_size", c.intermediate_size, 2 * c.intermediate_size},
                 {"num_attention_heads heads", queries, queries + 2 * pairs},
                 {"num_key_value_heads keys and values", 2 * pairs, queries + 2 * pairs}};
  for (const auto& x : checked) {
    if (x.extent % 32 == 0 && x.largest <= max_gemm_extent) continue;
    throw io::error(file, std::string(x.name) + ", " + std::to_string(x.extent) +
                              " features: GEMMs need multiples of 32, up to 2^20 for layers that are one GEMM");
  }
}

/// Shapes of the arguments, each once, in every format. Throws CLI::ValidationError and io::error.
std::vector<gemm_shape> wanted_shapes(const arguments& a) {
  std::vector<gemm_shape> all;
  for (const std::string& text : a.shapes) all.push_back(parse_shape(text));
  if (!a.config.empty()) {
    const auto model = llama::read_model_config(io::read_json(a.config), a.config);
    check_model(model, a.config);
    for (const int n : a.tokens) {
      if (n % 32 != 0)
        throw CLI::ValidationError("--tokens", std::to_string(n) + " is no multiple of 32, as wgrad's K");
      for (const gemm_shape& s : shapes_of(model, n)) all.push_back(s);
    }
  }
  if (all.empty()) all.assign(std::begin(default_shapes), std::end(default_shapes));
  std::vector<gemm_shape> each;
  for (const std::string& format : a.formats) {
    for (gemm_shape s : all) {
      s.fp8 = format == "mxfp8";
      if (std::find(each.begin(), each.end(), s) == each.end()) each.push_back(s);
    }
  }
  return each;
}

int run(int argc, char** argv) {
  CLI::App app("Measures the GEMMs of the current device and prints its table of tuned kernels.");
  arguments a;
  app.add_option("shapes", a.shapes, "MxNxK ...; without shapes and --config: forward GEMMs of Llama 3.1 8B and 70B");
  app.footer(
      "The table goes to standard output, times of all candidates to standard error. A program reads it where\n"
      "ROTOSCALE_GPU_TUNED names it; in gpu/gemm/tuned/ARCH.csv it is built into the library.");
  auto* const config =
      app.add_option("--config", a.config, "a config.json: fprop, dgrad and wgrad of its layers' GEMMs");
  app.add_option("--tokens", a.tokens, "of a step, for --config")
      ->check(CLI::Range(1, max_gemm_extent))
      ->needs(config)
      ->capture_default_str();
  app.add_option("--formats", a.formats, "of the operands")
      ->check(CLI::IsMember({"mxfp4", "mxfp8"}))
      ->capture_default_str();
  std::vector<gemm_shape> shapes;
  try {
    explain_checks(app);
    refuse_overflow(app);
    app.parse(argc, argv);
    refuse_empty(app);
    shapes = wanted_shapes(a);
  } catch (const CLI::Success& help) {
    const int code = app.exit(help);
    finish_standard_output();
    return code;
  } catch (const CLI::ParseError& e) {
    print_error("tune", explain_parse_error(app, e));
    return 2;
  } catch (const std::exception& e) {
    print_error("tune", e.what());
    return 2;
  }
  device_info device;
  const status found = current_device(device);
  if (found.code == error_code::no_device) {
    print_error("tune", std::string("no device: ") + found.reason);
    return 77;
  }
  check(found);
  std::string name, driver;
  check(device_name(name));
  check(driver_version(driver));
  std::printf("# %s, %s, %s, written by bench/tune. Expansion of both operands included.\n%s\n", name.c_str(),
              driver.c_str(), today().c_str(), tuned_header);
  std::set<std::array<index_t, 3>> timed;
  finish_standard_output();
  for (const gemm_shape& s : shapes) tune(s, device, timed);
  finish_standard_output();  // comments after the last row
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  try {
    return run(argc, argv);
  } catch (const io::error& e) {
    print_error("tune", e.what());
    return 2;
  }
}
