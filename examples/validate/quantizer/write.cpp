// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "write.hpp"

#include "rotoscale/round.hpp"

namespace rotoscale::validate {

void add_source(io::safetensors_writer& writer, const quantizer_dump& dump) {
  const format f = dump.source_format;
  std::vector<std::uint8_t> bytes;
  for (const float x : dump.source) {
    const auto code = encode(f, x, rounding::nearest_even, overflow::to_inf);
    for (int bit = 0; bit < f.bits(); bit += 8) bytes.push_back(static_cast<std::uint8_t>(code >> bit));
  }
  writer.add("x", io::safetensors_dtype_of(f), {dump.rows, dump.cols}, std::as_bytes(std::span(bytes)));
}

void add_side(io::safetensors_writer& writer, const quantizer& q, const dump_side& side, const dense_side& result) {
  const auto stored = [](const layout& l, const std::vector<std::uint8_t>& dense, std::uint8_t padding) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(l.size_bytes()));
    place(row_major(dense.data(), l.rows, l.columns), l, bytes.data(), padding);
    return bytes;
  };
  const auto add = [&](const char* name, const std::string& dtype, const layout& l,
                       const std::vector<std::uint8_t>& bytes) {
    const bool plain = l.padded_rows() == l.rows && l.padded_columns() == l.columns;
    const std::vector<std::int64_t> flat{l.size_bytes()}, shape{l.rows, l.columns};
    writer.add(name, dtype, plain ? shape : flat, std::as_bytes(std::span(bytes)));
  };
  const layout codes = code_layout(q.code_order, q.blocks, side.rows, side.k);
  if (!codes.is_defined()) throw io::error("--code-placement", "not defined for these extents");
  std::vector<std::uint8_t> turned = result.codes;
  turn_nibbles(q, turned, false);
  const std::vector<std::uint8_t> code_bytes = stored(codes, turned, 0);
  const std::string element = storage_bits(q.blocks.element) == 8 ? io::safetensors_dtype_of(q.blocks.element) : "U8";
  add(side.code_name(), element, codes, code_bytes);
  if (q.is_per_tensor()) return;
  const layout scales{q.scale_order, side.rows / q.blocks.rows, side.k / q.blocks.length};
  if (!scales.is_defined()) throw io::error("--scale-placement", "not defined for these extents");
  add(side.scale_name(), q.blocks.has_e8m0_scale() ? "U8" : "F8_E4M3", scales,
      stored(scales, result.scales, unit_scale(q.blocks.scale)));
}

}  // namespace rotoscale::validate
