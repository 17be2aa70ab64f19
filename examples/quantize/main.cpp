// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// rotoscale-quantize: quantizes an array of NumPy or safetensors into the tensors that rotoscale-validate reads, and
// back. Exit codes: 0 done, 2 bad input (one line on stderr).
#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>

#include "array.hpp"
#include "examples/command_line.hpp"
#include "examples/standard_streams.hpp"
#include "examples/threads.hpp"
#include "examples/validate/format_names.hpp"
#include "examples/validate/quantizer/presets.hpp"
#include "examples/validate/quantizer/write.hpp"
#include "rotoscale/io/npy.hpp"
#include "rotoscale/io/same_file.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/version.hpp"

namespace rotoscale::quantize_program {
namespace {

constexpr const char* program_name = "rotoscale-quantize";

struct options {
  std::string input, out, tensor, pad;
  quantizer_options quantizer;
  bool dequantize = false, with_source = false;
  int threads = 0;
};

std::string number(index_t n) { return std::to_string(n); }

/// Pads the source, or throws io::error if its extents are not whole blocks and rotations.
void make_whole(const options& o, const quantizer& q, bool by_row, bool by_column, quantizer_dump& dump) {
  const auto [rows, cols] = whole_extents(q, by_row, by_column);
  const auto up = [](index_t extent, index_t unit) { return (extent + unit - 1) / unit * unit; };
  const index_t whole_rows = up(dump.rows, rows), whole_cols = up(dump.cols, cols);
  if (whole_rows == dump.rows && whole_cols == dump.cols) return;
  if (o.pad != "zero") {
    const bool wide = whole_cols != dump.cols;
    throw io::error(o.input, number(dump.rows) + " x " + number(dump.cols) + ": " +
                                 number(wide ? dump.cols : dump.rows) + (wide ? " columns" : " rows") +
                                 " are no multiple of " + number(wide ? cols : rows) + "; --pad zero adds zeros");
  }
  pad_with_zeros(dump, whole_rows, whole_cols);
  std::cout << "padded with zeros to " << dump.rows << " x " << dump.cols << "\n";
}

/// Sets the factor of NVFP4 or FP8 from the source's amax, unless it is given.
void set_factor(const options& o, quantizer& q, const quantizer_dump& dump, thread_pool& pool) {
  if (!o.quantizer.factor) take_own_factor(q, dump, pool);
  if (!o.quantizer.factor && q.is_per_tensor())
    q.options.encode_factor = fp8_factor(q.blocks.element, source_amax(q, dump));
  check_defined(q, dump);
}

void print(const dump_side& side, const side_loss& loss) {
  const auto share = [](index_t n, index_t of) {
    return of == 0 ? 0.0 : 100 * static_cast<double>(n) / static_cast<double>(of);
  };
  std::printf("%s: SQNR %.2f dB, saturated %.3f %% of %lld elements, flushed to 0 %.3f %% of %lld that are not 0\n",
              side.code_name(), loss.sqnr, share(loss.saturated, loss.elements), static_cast<long long>(loss.elements),
              share(loss.flushed, loss.nonzero), static_cast<long long>(loss.nonzero));
}

/// Metadata of the file: read by --dequantize, and passed as options to rotoscale-validate.
void describe(io::safetensors_writer& writer, const options& o, const quantizer& q, index_t rows, index_t cols) {
  auto& m = writer.metadata;
  m["quantizer"] = q.name;
  m["options"] = format_options(q.blocks);
  const quantizer_options& given = o.quantizer;
  for (const auto& [flag, text] : {std::pair{"--rotation", &given.rotation}, std::pair{"--signs", &given.signs},
                                   std::pair{"--scale-rule", &given.rule}, std::pair{"--policy", &given.policy},
                                   std::pair{"--rounding", &given.rounding}, std::pair{"--source", &given.source}}) {
    if (!text->empty()) m["options"] += std::string(" ") + flag + " " + *text;
  }
  if (q.code_order != placement::row_major) m["options"] += " --code-placement " + given.code_order;
  if (q.scale_order != placement::row_major) m["options"] += " --scale-placement " + given.scale_order;
  if (q.nibbles != nibble_order::low) m["options"] += " --nibbles " + given.nibbles;
  for (const std::string& detail : given.details) m["options"] += " --detail " + detail;
  m["rows"] = number(rows);
  m["columns"] = number(cols);
}

void quantize_file(const options& o, thread_pool& pool) {
  const bool by_row = o.quantizer.axis != "column", by_column = o.quantizer.axis != "row";
  quantizer q = quantizer_of(o.quantizer, find_blocks(o.quantizer.format, o.quantizer.block_rows));
  if (q.has_unknown_words()) throw io::error("--rounding", "stochastic needs --random-seed");
  quantizer_dump dump = read_array(o.input, o.tensor);
  check_defined(q, dump);
  const index_t rows = dump.rows, cols = dump.cols;
  make_whole(o, q, by_row, by_column, dump);
  if (by_row) dump.sides.push_back({block_axis::row, dump.rows, dump.cols, {}, {}});
  if (by_column) dump.sides.push_back({block_axis::column, dump.cols, dump.rows, {}, {}});
  set_factor(o, q, dump, pool);
  io::safetensors_writer writer;
  describe(writer, o, q, rows, cols);
  if (o.with_source) add_source(writer, dump);
  for (const dump_side& side : dump.sides) {
    const dense_side result = quantize_side(q, dump, side, pool);
    print(side, loss_of(q, dump, side, result, rows, cols, pool));
    add_side(writer, q, side, result);
  }
  if (q.is_per_tensor() || !q.blocks.has_e8m0_scale())
    writer.add("factor", "F32", {1}, std::as_bytes(std::span(&q.options.encode_factor, 1)));
  writer.write(o.out);
}

/// Options of this program, from the command line or from a file's metadata.
void add_quantizer_flags(CLI::App& app, quantizer_options& o) {
  app.add_option("--format", o.format, "mxfp4, mxfp6_e2m3, mxfp8_e4m3, nvfp4, fp8_e4m3 ...")->capture_default_str();
  app.add_option("--axis", o.axis, "direction of the blocks: row, column or both")
      ->check(CLI::IsMember({"row", "column", "both"}))
      ->capture_default_str();
  app.add_option("--rotation", o.rotation, "points of the rotation; 0: none");
  app.add_option("--signs", o.signs, "its signs: words of 32 elements in hexadecimal");
  app.add_option("--scale-rule", o.rule, "floor, ceil, even or rceil");
  app.add_option("--policy", o.policy, "blocks of zeros, NaN and Inf, by the implementation's name");
  app.add_option("--rounding", o.rounding, "of elements; stochastic needs --random-seed");
  app.add_option("--source", o.source, "format that the array is rounded to first: fp32 (as it is), bf16 or fp16")
      ->transform(CLI::Validator(one_format_of(float_formats), ""));
  app.add_option("--factor", o.factor, "factor of the tensor (NVFP4, FP8); default: from its amax");
  app.add_option("--block-rows", o.block_rows, "rows that share a scale: 1, or 32 for square blocks")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--code-placement", o.code_order, "order of the codes' bytes")->capture_default_str();
  app.add_option("--scale-placement", o.scale_order, "order of the scales' bytes")->capture_default_str();
  app.add_option("--nibbles", o.nibbles, "half of a byte that holds the even element")
      ->check(CLI::IsMember({"low", "high", "halves"}))
      ->capture_default_str();
  app.add_option("--detail", o.details, "arithmetic beyond presets (docs/reference/validate.md)")->delimiter(',');
  app.add_option("--random-seed", o.seed, "Philox seed of stochastic rounding");
  app.add_option("--random-stream", o.stream, "its stream");
  app.add_option("--random-bits", o.random_count, "bits of a word that are used")->check(CLI::Range(1, 32));
}

/// The stored side: codes along rows, unless there are none or --axis column asks for the others.
dump_side stored_side(const options& o, const io::safetensors_file& file) {
  const bool column = o.quantizer.axis == "column" || file.find("codes") == nullptr;
  dump_side side;
  side.axis = column ? block_axis::column : block_axis::row;
  const io::tensor_info* codes = file.find(side.code_name());
  if (codes == nullptr) throw io::error(file.name(), std::string("no tensor '") + side.code_name() + "'");
  const auto bytes_of = [&](const io::tensor_info* t) {
    if (t == nullptr) return std::vector<std::uint8_t>();
    const auto bytes = file.bytes(*t);
    const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
    return std::vector<std::uint8_t>(first, first + bytes.size());
  };
  side.codes = bytes_of(codes);
  side.scales = bytes_of(file.find(side.scale_name()));
  return side;
}

std::string stated(const io::safetensors_file& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found != file.metadata().end()) return found->second;
  throw io::error(file.name(), "was not written by rotoscale-quantize: its metadata has no '" + std::string(key) + "'");
}

index_t stated_extent(const io::safetensors_file& file, const char* key) {
  const std::string text = stated(file, key);
  index_t extent = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), extent);
  if (failed != std::errc() || end != text.data() + text.size() || extent < 1 || extent > index_t{1} << 30)
    throw io::error(file.name(), "metadata '" + std::string(key) + "': '" + io::printable(text) + "' is no extent");
  return extent;
}

/// The quantizer that the file's metadata describes.
quantizer stated_quantizer(const io::safetensors_file& file) {
  CLI::App recorded;
  quantizer_options how;
  add_quantizer_flags(recorded, how);
  const std::string text = stated(file, "options");
  try {
    recorded.parse(text);
  } catch (const CLI::ParseError&) {
    throw io::error(file.name(), "metadata 'options': '" + io::printable(text) + "' cannot be read");
  }
  how.preset = stated(file, "quantizer");
  quantizer q = quantizer_of(how, find_blocks(how.format, how.block_rows));
  if (const io::tensor_info* factor = file.find("factor")) file.read_floats(*factor, 0, {&q.options.encode_factor, 1});
  check_defined(q, {});
  return q;
}

void dequantize_file(const options& o, thread_pool& pool) {
  const io::safetensors_file file = io::safetensors_file::open(o.input);
  const quantizer q = stated_quantizer(file);
  dump_side side = stored_side(o, file);
  const index_t rows = stated_extent(file, "rows"), cols = stated_extent(file, "columns");
  const bool both = file.find("codes") != nullptr && file.find("codes_t") != nullptr;
  const auto [whole_rows, whole_cols] =
      whole_extents(q, both || side.axis == block_axis::row, both || side.axis == block_axis::column);
  const index_t all_rows = (rows + whole_rows - 1) / whole_rows * whole_rows;
  const index_t all_cols = (cols + whole_cols - 1) / whole_cols * whole_cols;
  side.rows = side.axis == block_axis::row ? all_rows : all_cols;
  side.k = side.axis == block_axis::row ? all_cols : all_rows;
  const auto codes = dense_codes(q, side), scales = dense_scales(q, side);
  if (!codes || !scales) throw io::error(o.input, "the sizes of its tensors are not those of its metadata");
  const std::vector<float> values = decode_side(q, side, {*codes, *scales}, pool);
  const matrix<const float> kept = row_major(values.data(), rows, cols, all_cols);
  if (o.out.ends_with(".npy")) return io::write_npy(o.out, kept);
  std::vector<float> dense;
  for (index_t r = 0; r < rows; ++r) dense.insert(dense.end(), &kept(r, 0), &kept(r, 0) + cols);
  io::safetensors_writer writer;
  writer.add("x", "F32", {rows, cols}, std::as_bytes(std::span(dense)));
  writer.write(o.out);
}

int run(int argc, char** argv) {
  options o;
  o.quantizer.preset_flag = "--preset";
  o.quantizer.preset = "ocp";
  o.quantizer.format = "mxfp4";
  CLI::App app{"Quantizes an array (.npy or safetensors: F32, BF16, F16) into codes and scales, or back."};
  app.set_version_flag("--version", ROTOSCALE_VERSION);
  app.add_option("input", o.input, "the array; for --dequantize, a file that this program wrote")->required();
  app.add_option("--out", o.out, "safetensors; for --dequantize also .npy")->required();
  app.add_option("--preset", o.quantizer.preset, "the implementation (rotoscale-validate --list-quantizers)")
      ->capture_default_str();
  app.add_option("--tensor", o.tensor, "of a safetensors file with several");
  app.add_option("--pad", o.pad, "zero: ragged extents are padded with zeros")->check(CLI::IsMember({"zero"}));
  app.add_flag("--with-source", o.with_source, "add the (padded) source, so that the file is a whole dump");
  app.add_flag("--dequantize", o.dequantize, "decode, rotate back and drop the padding");
  app.add_option("--threads", o.threads, "0: all")->check(CLI::Range(0, 4096));
  add_quantizer_flags(app, o.quantizer);
  explain_checks(app);
  refuse_overflow(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    throw io::error(explain_parse_error(app, error));
  }
  refuse_empty(app);
  io::require_no_input({o.out}, {o.input});
  thread_pool pool = naming_threads([&] { return thread_pool(o.threads); });
  o.dequantize ? dequantize_file(o, pool) : quantize_file(o, pool);
  finish_standard_output();
  return 0;
}

}  // namespace
}  // namespace rotoscale::quantize_program

int main(int argc, char** argv) {
  rotoscale::occupy_standard_streams();
  rotoscale::fail_beyond_file_limit();
  try {
    return rotoscale::quantize_program::run(argc, argv);
  } catch (const std::bad_alloc&) {
    rotoscale::print_error(rotoscale::quantize_program::program_name, "not enough memory for an array of this size");
  } catch (const std::exception& error) {
    rotoscale::print_error(rotoscale::quantize_program::program_name, error.what());
  }
  return 2;
}
