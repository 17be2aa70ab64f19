// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Packing of codes and placements of bytes.
#include "arrays.hpp"
#include "module.hpp"

namespace rotoscale::python {
namespace {

/// A format with codes of at most 8 bits.
format packed_format(const std::string& name) {
  const auto f = named<format>("format", name);
  if (f.bits() > 8) fail("format: " + name + " has " + std::to_string(f.bits()) + " bits; at most 8 are packed");
  return f;
}

nb::object pack_codes(nb::handle codes_in, const std::string& name) {
  const format f = packed_format(name);
  const array_view codes = read_bytes("codes", codes_in);
  const matrix<const std::uint8_t> in = as_rows<std::uint8_t>("codes", codes);
  const index_t bytes = packed_bytes(f, in.extent(1));
  const new_array<std::uint8_t> out = make_array<std::uint8_t>(with_last(codes.shape, bytes));
  std::uint32_t seen = 0;
  without_gil([&] {
    for (index_t r = 0; r < in.extent(0); ++r) {
      if (bytes > 0) out.data[(r + 1) * bytes - 1] = 0;  // its unused bits
      for (index_t c = 0; c < in.extent(1); ++c) {
        seen |= in(r, c);
        store_code(f, out.data + r * bytes, c, in(r, c));
      }
    }
  });
  if (seen >> storage_bits(f) != 0) {
    fail("codes: a code has more than the " + std::to_string(f.bits()) + " bits of " + name);
  }
  return out.object;
}

nb::object unpack_codes(nb::handle packed_in, const std::string& name, std::optional<index_t> count) {
  const format f = packed_format(name);
  const array_view packed = read_bytes("packed", packed_in);
  const matrix<const std::uint8_t> in = as_byte_rows("packed", packed);
  const index_t most = in.extent(1) * 8 / storage_bits(f), k = count.value_or(most);
  if (k < 0 || k > most) {
    fail("count " + std::to_string(k) + ": rows of " + std::to_string(in.extent(1)) + " bytes hold 0 to " +
         std::to_string(most) + " codes of " + name);
  }
  const new_array<std::uint8_t> out = make_array<std::uint8_t>(with_last(packed.shape, k));
  without_gil([&] {
    for (index_t r = 0; r < in.extent(0); ++r) {
      for (index_t c = 0; c < k; ++c) {
        out.data[r * k + c] = static_cast<std::uint8_t>(load_code(f, in.data + r * in.stride(0), c));
      }
    }
  });
  return out.object;
}

layout checked_layout(const std::string& name, index_t rows, index_t columns) {
  const layout l{named<placement>("placement", name), rows, columns};
  if (!l.is_defined()) {
    fail("placement " + name + ": " + std::to_string(rows) + " x " + std::to_string(columns) +
         " bytes are not multiples of " + std::to_string(l.granularity().rows) + " x " +
         std::to_string(l.granularity().columns));
  }
  return l;
}

nb::object place_bytes(nb::handle array, const std::string& name, std::uint8_t padding, index_t repeat) {
  const array_view x = read_bytes("array", array);
  const matrix<const std::uint8_t> in = as_rows<std::uint8_t>("array", x);
  if (repeat < 1) fail("repeat: must be above zero");
  const layout l = checked_layout(name, in.extent(0) * repeat, in.extent(1));
  const new_array<std::uint8_t> out = make_array<std::uint8_t>(
      {static_cast<std::size_t>(l.padded_rows()), static_cast<std::size_t>(l.padded_columns())});
  without_gil([&] { place(in, l, out.data, padding, repeat); });
  return out.object;
}

nb::object gather_bytes(nb::handle array, const std::string& name, index_t rows, index_t columns, index_t repeat) {
  const array_view x = read_bytes("array", array);
  const matrix<const std::uint8_t> in = as_byte_rows("array", x);
  if (rows < 0 || columns < 0) fail("shape: must not be negative");
  if (repeat < 1 || rows % repeat != 0) fail("repeat: must divide the rows");
  const layout l = checked_layout(name, rows, columns);
  const bool dense = in.extent(0) <= 1 || in.stride(0) == in.extent(1);
  if (!dense || in.size() != l.size_bytes()) {
    fail("array of shape " + shape_text(x.shape) + ": expected " + std::to_string(l.size_bytes()) +
         " contiguous bytes in placement " + name);
  }
  const new_array<std::uint8_t> out =
      make_array<std::uint8_t>({static_cast<std::size_t>(rows / repeat), static_cast<std::size_t>(columns)});
  without_gil([&] { gather(in.data, l, row_major(out.data, rows / repeat, columns), repeat); });
  return out.object;
}

}  // namespace

void add_layout(nb::module_& m) {
  using nb::arg;
  m.def("pack", &pack_codes, arg("codes").none(), arg("format"), "Packs codes, one per byte, along the last axis.");
  m.def("unpack", &unpack_codes, arg("packed").none(), arg("format"), arg("count").none(),
        "Unpacks `count` codes of each row to one per byte; None: all.");
  m.def(
      "packed_bytes",
      [](const std::string& format, index_t k) {
        return packed_bytes(named<block_format>("format", format).element, k);
      },
      arg("format"), arg("k"), "Bytes of k packed codes of a block format.");
  m.def("place", &place_bytes, arg("array").none(), arg("placement"), arg("padding"), arg("repeat"),
        "Bytes of a matrix in the order of a placement, shape (padded rows, padded columns).");
  m.def("gather", &gather_bytes, arg("array").none(), arg("placement"), arg("rows"), arg("columns"), arg("repeat"),
        "Inverse of place.");
}

}  // namespace rotoscale::python
