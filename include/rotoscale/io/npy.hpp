// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files, versions 1.0 to 3.0: one array, C or Fortran order, little-endian. NumPy stores arrays of
// ml_dtypes (bfloat16, float8_*, ...) as raw bytes of type V1 or V2, so the caller must name their format.
// The header's parser is npy_header.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/io/npy_header.hpp"
#include "rotoscale/small_float.hpp"
#include "rotoscale/view.hpp"

namespace rotoscale::io {

namespace detail {

/// dtype for an array of T. as_view also accepts T for raw bytes and integers of the same size.
template <class T>
struct npy_name;
template <>
struct npy_name<float> {
  static constexpr char dtype[] = "f4";
};
template <>
struct npy_name<double> {
  static constexpr char dtype[] = "f8";
};
template <>
struct npy_name<std::uint8_t> {
  static constexpr char dtype[] = "u1";
};
template <>
struct npy_name<std::uint16_t> {
  static constexpr char dtype[] = "u2";
};
template <>
struct npy_name<std::uint32_t> {
  static constexpr char dtype[] = "u4";
};
template <>
struct npy_name<std::int8_t> {
  static constexpr char dtype[] = "i1";
};
template <format F>
  requires(F.bits() <= 16)
struct npy_name<small_float<F>> {
  static constexpr const char* dtype = F == formats::fp16 ? "f2" : F.bits() > 8 ? "V2" : "V1";
};

template <class T>
bool npy_may_view(const npy_type& type) {
  const bool codes = !std::is_floating_point_v<T> && !std::is_same_v<T, std::int8_t>;
  const bool raw = type.dtype[0] == 'V' || type.dtype[0] == 'u';
  return std::string_view(npy_name<T>::dtype) == type.dtype || (codes && raw && type.bytes == sizeof(T));
}

}  // namespace detail

/// A checked file in memory. Views of it are valid until it is moved or destroyed.
class npy_file {
 public:
  /// Reads and checks a file. Throws io::error if it is incomplete or has another type than npy_header allows.
  static npy_file open(const std::filesystem::path& path) { return from_bytes(path.string(), read_raw_file(path)); }

  /// The same for bytes in memory. Messages call them `name`.
  static npy_file from_bytes(std::string name, std::string bytes) {
    npy_file file;
    file.name_ = std::move(name);
    file.content_ = std::move(bytes);
    file.read();
    return file;
  }

  /// Type, shape and order.
  const npy_header& header() const { return header_; }
  /// Extents; empty for a scalar.
  const std::vector<std::int64_t>& shape() const { return header_.shape; }
  /// Number of elements.
  std::size_t count() const { return detail::npy_count(header_.shape); }
  /// The path, for messages.
  const std::string& name() const { return name_; }

  /// All elements in file order, aligned for every element type.
  std::span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(content_.data()) + start_, content_.size() - start_};
  }

  /// The array with `Rank` axes as stored, in C or Fortran order. T is the element type, or a small_float or unsigned
  /// integer of the size of raw codes (V1, V2, u1, u2, u4). Throws io::error if type or rank differ.
  template <class T, int Rank>
  view<const T, Rank> as_view() const {
    const detail::npy_type& type = *detail::find_npy_type(header_.dtype);
    if (!detail::npy_may_view<T>(type)) fail("elements of type '" + header_.dtype + "' are not what is asked for");
    if (header_.shape.size() != static_cast<std::size_t>(Rank)) {
      fail("has " + std::to_string(header_.shape.size()) + " axes, not " + std::to_string(Rank));
    }
    view<const T, Rank> v;
    v.data = reinterpret_cast<const T*>(bytes().data());
    const auto strides = detail::npy_strides(header_);
    for (int d = 0; d < Rank; ++d) {
      v.extents[d] = header_.shape[static_cast<std::size_t>(d)];
      v.strides[d] = strides[static_cast<std::size_t>(d)];
    }
    return v;
  }

  /// as_view with two axes.
  template <class T>
  matrix<const T> as_matrix() const {
    return as_view<T, 2>();
  }

  /// All elements as FP32 in C order. Throws io::error for raw codes.
  /// - `f4`: all bits kept.
  /// - `f2`, `u1`, `u2`, `i1`: exact.
  /// - `u4`, `f8`: nearest even, Inf beyond FP32.
  /// - NaN of f2 and f8: the canonical NaN of its sign.
  std::vector<float> to_fp32() const {
    switch (header_.dtype[0]) {
      case 'f':
        return header_.dtype == "f4"   ? converted<std::uint32_t>(fp32_from_bits)
               : header_.dtype == "f2" ? to_fp32<std::uint16_t>(formats::fp16)
                                       : to_fp32<std::uint64_t>(formats::fp64);
      case 'u':
        return header_.dtype == "u1" ? converted<std::uint8_t>([](std::uint8_t x) -> float { return x; })
               : header_.dtype == "u2"
                   ? converted<std::uint16_t>([](std::uint16_t x) -> float { return x; })
                   : converted<std::uint32_t>([](std::uint32_t x) { return static_cast<float>(x); });
      case 'i': return converted<std::int8_t>([](std::int8_t x) -> float { return x; });
      default: fail("elements of type '" + header_.dtype + "' are codes; their format must be named");
    }
  }

  /// The same for codes of format `f` (V1, V2, u1, u2, or f2), each in the smallest number of bytes that holds it.
  std::vector<float> to_fp32(format f) const {
    const detail::npy_type& type = *detail::find_npy_type(header_.dtype);
    const bool codes = type.dtype[0] == 'V' || type.dtype[0] == 'u' || header_.dtype == "f2";
    if (!codes || f.bits() > 16 || type.bytes != (f.bits() <= 8 ? 1u : 2u)) {
      fail("elements of type '" + header_.dtype + "' are not codes of " + std::to_string(f.bits()) + " bits");
    }
    return type.bytes == 1 ? to_fp32<std::uint8_t>(f) : to_fp32<std::uint16_t>(f);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw error(name_, what); }

  template <class Code, class Convert>
  std::vector<float> converted(const Convert& convert_one) const {
    std::vector<float> values;
    values.reserve(count());
    const std::byte* data = bytes().data();
    detail::for_each_offset(header_.shape, detail::npy_strides(header_), [&](std::int64_t offset) {
      Code code;
      std::memcpy(&code, data + static_cast<std::size_t>(offset) * sizeof code, sizeof code);
      values.push_back(convert_one(code));
    });
    return values;
  }
  template <class Code>
  std::vector<float> to_fp32(format f) const {
    return converted<Code>([f](Code code) { return decode(f, code); });
  }

  void read() {
    const std::size_t magic = detail::npy_magic.size();
    const char* kind = foreign_content(content_);
    if (content_.substr(0, magic) != detail::npy_magic && kind != nullptr) fail(std::string("is ") + kind);
    if (content_.substr(0, magic) != detail::npy_magic) fail("offset 0: not an .npy file: no \\x93NUMPY");
    if (content_.size() < magic + 2) fail("offset 6: the file ends before its version");
    const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(content_[i])); };
    const std::size_t version = byte(magic);
    if (version < 1 || version > 3 || byte(magic + 1) != 0) {
      fail("offset 6: version " + std::to_string(version) + "." + std::to_string(byte(magic + 1)) +
           " is not one of 1.0, 2.0, 3.0");
    }
    const std::size_t field = version == 1 ? 2 : 4, first = magic + 2 + field;
    if (content_.size() < first) fail("offset 8: the file ends before its header length");
    std::size_t length = 0;
    for (std::size_t i = first; i-- > magic + 2;) length = length << 8 | byte(i);
    if (length > detail::npy_max_header) {
      fail("offset 8: header length " + std::to_string(length) + " is above the limit of 10000");
    }
    if (length > content_.size() - first) {
      fail("offset 8: header length " + std::to_string(length) + " reaches beyond the end of the file");
    }
    header_ = detail::npy_header_parser(std::string_view(content_).substr(first, length), first, name_).parse();
    check_size(first + length);
  }

  void check_size(std::size_t start) {
    const std::size_t element = detail::find_npy_type(header_.dtype)->bytes;
    const std::string problem = detail::npy_shape_problem(header_.shape, element);
    if (!problem.empty()) fail("shape: " + problem);
    const std::size_t size = content_.size() - start;
    if (count() * element != size) {
      fail("descr and shape take " + std::to_string(count() * element) + " bytes, the data has " +
           std::to_string(size));
    }
    // NumPy aligns the data; if another writer did not, padding keeps views aligned.
    const std::size_t pad = (alignof(double) - start % alignof(double)) % alignof(double);
    if (pad != 0) content_.insert(0, pad, '\0');
    start_ = start + pad;
  }

  std::string name_;
  std::string content_;
  std::size_t start_ = 0;
  npy_header header_;
};

/// The bytes of a whole file, as NumPy writes them. `version` is the major version, 1 to 3; each can hold all headers.
inline std::string npy_bytes(const npy_header& h, std::span<const std::byte> data, int version = 1) {
  const auto fail = [](const std::string& what) { throw error("npy", what); };
  const detail::npy_type* type = detail::find_npy_type(h.dtype);
  if (type == nullptr) fail("descr: " + detail::unknown_npy_type(h.dtype));
  const std::string problem = detail::npy_shape_problem(h.shape, type->bytes);
  if (!problem.empty()) fail("shape: " + problem);
  const std::size_t wanted = detail::npy_count(h.shape) * type->bytes;
  if (data.size() != wanted) {
    fail("descr and shape take " + std::to_string(wanted) + " bytes, the data has " + std::to_string(data.size()));
  }
  if (version < 1 || version > 3) fail("version " + std::to_string(version) + " is not one of 1, 2, 3");

  std::string out = detail::npy_header_bytes(h, version);
  if (!data.empty()) out.append(reinterpret_cast<const char*>(data.data()), data.size());
  return out;
}

/// Writes a file, which appears whole or not at all. Throws io::error with the path.
inline void write_npy(const std::filesystem::path& path, const npy_header& h, std::span<const std::byte> data,
                      int version = 1) {
  write_file_atomically(path, npy_bytes(h, data, version));
}

/// Writes the elements of a view with any strides. T is float, double, uint8_t, uint16_t, uint32_t, int8_t, or a
/// small_float of at most 16 bits, which becomes f2 (FP16) or raw codes.
template <class T, int Rank>
void write_npy(const std::filesystem::path& path, view<T, Rank> v, bool fortran_order = false) {
  using element = std::remove_const_t<T>;
  npy_header h{detail::npy_name<element>::dtype, {}, fortran_order};
  std::vector<std::int64_t> shape, strides;
  for (int d = 0; d < Rank; ++d) {
    h.shape.push_back(v.extent(d));
    const int axis = fortran_order ? Rank - 1 - d : d;  // for_each_offset walks the last axis fastest
    shape.push_back(v.extent(axis));
    strides.push_back(v.stride(axis));
  }
  const std::string problem = detail::npy_shape_problem(shape, sizeof(element));
  if (!problem.empty()) throw error(path.string(), "shape: " + problem);
  std::vector<element> values;
  values.reserve(detail::npy_count(shape));
  detail::for_each_offset(shape, strides, [&](std::int64_t offset) { values.push_back(v.data[offset]); });
  write_npy(path, h, std::as_bytes(std::span<const element>(values)));
}

}  // namespace rotoscale::io
