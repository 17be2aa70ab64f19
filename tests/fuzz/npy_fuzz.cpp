// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target for the .npy reader. Any bytes are refused with io::error, or accepted and then converted, viewed,
// written and read again with the same elements.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "rotoscale/io/npy.hpp"
#include "target.hpp"

namespace npy_fuzz {

using namespace rotoscale;
using fuzz::require;

bool same_elements(const io::npy_file& a, const io::npy_file& b) {
  return std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin(), b.bytes().end());
}

/// The array as a matrix of T. Its conversion to FP32 must equal the view's elements in C order.
template <class T>
void check_view(const io::npy_file& file, const std::vector<float>& converted) {
  const auto x = file.as_matrix<T>();
  if (x.size() == 0) return;  // with an axis of extent 0, the other may have any extent
  std::size_t i = 0;
  for (index_t r = 0; r < x.extent(0); ++r) {
    for (index_t c = 0; c < x.extent(1); ++c) {
      const float expected = converted[i++];
      require(fp32_bits(static_cast<float>(x(r, c))) == fp32_bits(expected) || fp32_is_nan(fp32_bits(expected)));
    }
  }
  require(i == converted.size());
}

void check_conversions(const io::npy_file& file) {
  const std::string& type = file.header().dtype;
  const bool raw = type[0] == 'V';
  const auto converted = type == "V1" ? file.to_fp32(formats::e4m3)
                         : raw        ? file.to_fp32(formats::bf16)
                                      : file.to_fp32();
  require(converted.size() == file.count());
  if (file.shape().size() != 2) return;
  if (type == "f2") check_view<fp16>(file, converted);
  if (type == "f4") check_view<float>(file, converted);
  if (type == "f8") check_view<double>(file, converted);
  if (type == "u1") check_view<std::uint8_t>(file, converted);
  if (type == "u2") check_view<std::uint16_t>(file, converted);
  if (type == "u4") check_view<std::uint32_t>(file, converted);
  if (type == "i1") check_view<std::int8_t>(file, converted);
  if (type == "V1") check_view<e4m3>(file, converted);
  if (type == "V2") check_view<bf16>(file, converted);
}

void check_accepted(const io::npy_file& file) {
  for (const int version : {1, 2, 3}) {
    const auto again = io::npy_file::from_bytes("again", io::npy_bytes(file.header(), file.bytes(), version));
    require(again.header().dtype == file.header().dtype && again.shape() == file.shape());
    require(again.header().fortran_order == file.header().fortran_order && same_elements(again, file));
  }
  check_conversions(file);
}

void one_input(const std::uint8_t* data, std::size_t size) {
  std::optional<io::npy_file> file;
  try {
    file = io::npy_file::from_bytes("input", std::string(reinterpret_cast<const char*>(data), size));
  } catch (const io::error& e) {
    require(std::string_view(e.what()).starts_with("input: ") &&
            std::string_view(e.what()).find('\n') == std::string::npos);
    return;
  }
  check_accepted(*file);  // outside the try block: an accepted file must not fail later
}

const rotoscale::fuzz::target here("npy", one_input);

}  // namespace npy_fuzz
