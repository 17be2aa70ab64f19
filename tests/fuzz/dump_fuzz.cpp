// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target for quantizer dumps as rotoscale-validate reads them. The first bytes choose the command line's options;
// the rest is a file or the content of one. The file is refused with io::error or checked. A dump of the quantizer's
// own result must be identical.
// fuzz: -I. examples/validate/quantizer/dump.cpp examples/validate/quantizer/presets.cpp
// fuzz: examples/validate/quantizer/check.cpp examples/validate/quantizer/identify.cpp
// fuzz: examples/validate/quantizer/candidates.cpp examples/validate/quantizer/distribution.cpp
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "byte_choices.hpp"
#include "examples/validate/quantizer/check.hpp"
#include "examples/validate/quantizer/presets.hpp"
#include "quantizer_choices.hpp"
#include "target.hpp"

namespace dump_fuzz {

using namespace rotoscale;
using namespace rotoscale::validate;
using fuzz::byte_choices;
using fuzz::chosen_quantizer;
using fuzz::require;

/// Makes a dump with mostly consistent extents from the remaining bytes.
std::string made_file(byte_choices& in) {
  constexpr const char* source_types[] = {"F32", "BF16", "F16", "F64"};
  constexpr const char* code_types[] = {"U8", "F4", "F8_E4M3", "F8_E5M2", "F6_E2M3", "F6_E3M2", "I8"};
  constexpr const char* scale_types[] = {"F8_E8M0", "U8", "F8_E4M3", "I8"};
  constexpr std::int64_t extents[] = {32, 16, 1, 2, 8, 3, 64, 256, 0, 32, 16, 1, 2, 8, 1, 4};
  // a square block of 32, or of 16; cost grows with the elements
  const std::int64_t most = in.below(8) == 0 ? 1024 : 256;
  const std::int64_t cols = in.one_of(extents), wanted = in.one_of(extents);
  const std::int64_t rows = wanted * cols > most ? most / cols : wanted;
  const std::string code_type = in.one_of(code_types), scale_type = in.one_of(scale_types);
  constexpr std::int64_t lengths[] = {32, 16, 1, 8};
  const std::int64_t length = in.one_of(lengths), scale_rows = in.flag() ? 1 : in.below(33) + 1;
  const int parts = in.byte();
  const std::string source_type = in.one_of(source_types);
  const auto values = in.rest();
  io::safetensors_writer out;
  const auto add = [&](const char* name, const std::string& type, std::vector<std::int64_t> shape) {
    const auto size = io::detail::size_of_tensor(type, shape);
    if (!size.problem.empty()) return;
    std::vector<std::byte> bytes(static_cast<std::size_t>(size.bytes));
    for (std::size_t i = 0; i < bytes.size() && !values.empty(); ++i) bytes[i] = values[i % values.size()];
    out.add(name, type, std::move(shape), bytes);
  };
  const bool packed = code_type == "U8" && (parts & 1) != 0;
  add("x", source_type, {rows, cols});
  add("codes", code_type, {rows, packed ? cols / 2 : cols});
  if ((parts & 2) == 0) add("scales", scale_type, {rows / scale_rows, cols / length});
  if ((parts & 4) != 0) add("codes_t", code_type, {cols, packed ? rows / 2 : rows});
  if ((parts & 8) != 0) add("scales_t", scale_type, {cols / scale_rows, rows / length});
  if ((parts & 16) != 0) add("factor", "F32", {1});
  if ((parts & 32) != 0) add("amax", "F32", {1});
  if ((parts & 64) != 0) add("random", "U32", {rows, cols});
  if ((parts & 128) != 0) add("codez", "U8", {1});
  return out.bytes("made");
}

/// Checks the dump with the quantizer's own result.
void check_own_result(const quantizer& q, quantizer_dump dump, thread_pool& pool) {
  if (q.code_order != placement::row_major || q.scale_order != placement::row_major || q.nibbles != nibble_order::low)
    return;
  for (dump_side& side : dump.sides) {
    dense_side own = quantize_side(q, dump, side, pool);
    side.codes = std::move(own.codes);
    side.scales = std::move(own.scales);
  }
  dump.factor.reset();
  dump.amax.reset();
  require(check_dump(q, dump, std::nullopt, pool).identical());
}

/// Dumps of any size, which check_dump may refuse.
void identify(const quantizer& q, const quantizer_dump& dump, thread_pool& pool) {
  try {
    require(!identify_dump(nullptr, q, {}, dump, 4, 4, pool).all.empty());
  } catch (const io::error&) {
  }
}

/// Runs slow parts for one input in 4096.
bool is_chosen(const std::uint8_t* data, std::size_t size) {
  std::uint32_t hash = 2166136261u;
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 16777619u;
  return hash >> 20 == 0;
}

void one_input(const std::uint8_t* data, std::size_t size) {
  static thread_pool pool(1);
  byte_choices in(data, size);
  const bool made = in.flag();
  const quantizer_options options = chosen_quantizer(in);
  std::string bytes = made ? made_file(in) : std::string(in.rest_as_text());
  try {
    const auto file = io::safetensors_file::from_bytes("input", std::move(bytes));
    const auto [dump, q] = load_case(options, file, pool);
    if (is_chosen(data, size)) identify(q, dump, pool);
    static_cast<void>(check_dump(q, dump, std::uint8_t{0}, pool));
    check_own_result(q, dump, pool);
  } catch (const io::error&) {
  }
}

const rotoscale::fuzz::target here("dump", one_input);

}  // namespace dump_fuzz
