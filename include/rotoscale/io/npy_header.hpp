// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The header of NumPy's .npy files (numpy.lib.format): its values, a parser for untrusted input, and a writer with
// NumPy's bytes. The parser accepts one Python dictionary of a string, a bool and a tuple of integers, and nothing
// else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rotoscale/io/error.hpp"

namespace rotoscale::io {

/// Content of an .npy header.
struct npy_header {
  std::string dtype;                ///< f2, f4, f8, u1, u2, u4, i1, or V1, V2 for raw codes; little-endian
  std::vector<std::int64_t> shape;  ///< extents; empty for a scalar
  bool fortran_order = false;       ///< the first axis is contiguous instead of the last
};

namespace detail {

inline constexpr std::string_view npy_magic = "\x93NUMPY";
/// NumPy's limit for untrusted files (max_header_size).
inline constexpr std::size_t npy_max_header = 10'000;
inline constexpr std::size_t npy_max_rank = 64;  // NPY_MAXDIMS of NumPy 2
inline constexpr std::size_t npy_alignment = 64;

struct npy_type {
  const char* dtype;
  const char* descr;  ///< as NumPy writes it
  std::size_t bytes;
};

inline constexpr npy_type npy_types[] = {{"f2", "<f2", 2}, {"f4", "<f4", 4}, {"f8", "<f8", 8},
                                         {"u1", "|u1", 1}, {"u2", "<u2", 2}, {"u4", "<u4", 4},
                                         {"i1", "|i1", 1}, {"V1", "|V1", 1}, {"V2", "|V2", 2}};

/// The type of that name, or null.
inline const npy_type* find_npy_type(std::string_view dtype) {
  const auto* type =
      std::find_if(std::begin(npy_types), std::end(npy_types), [&](const npy_type& t) { return dtype == t.dtype; });
  return type == std::end(npy_types) ? nullptr : type;
}

/// No type is near another: integers or bfloat16 ("<g2") read as floats would be wrong numbers.
inline std::string unknown_npy_type(std::string_view given) {
  std::string text = "unknown type '" + printable(given) + "'; it is none of ";
  for (const npy_type& t : npy_types) text += (&t == npy_types ? "" : ", ") + std::string(t.dtype);
  return text;
}

/// The reason why an array cannot have this shape, or an empty string. Extent 0 counts as 1, so that strides fit too.
inline std::string npy_shape_problem(const std::vector<std::int64_t>& shape, std::size_t element_bytes) {
  if (shape.size() > npy_max_rank) return "more than " + std::to_string(npy_max_rank) + " axes";
  auto bytes = static_cast<std::int64_t>(element_bytes);
  for (const std::int64_t extent : shape) {
    if (extent < 0) return "negative extent " + std::to_string(extent);
    if (extent > std::numeric_limits<std::int64_t>::max() / bytes) return "the number of bytes overflows";
    if (extent > 0) bytes *= extent;
  }
  return "";
}

/// Number of elements. Requires a shape without a problem.
inline std::size_t npy_count(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

/// Distances between neighbours along each axis, in elements.
inline std::vector<std::int64_t> npy_strides(const npy_header& h) {
  std::vector<std::int64_t> strides(h.shape.size());
  std::int64_t step = 1;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const std::size_t axis = h.fortran_order ? i : strides.size() - 1 - i;
    strides[axis] = step;
    step *= std::max<std::int64_t>(h.shape[axis], 1);
  }
  return strides;
}

/// Calls body(offset) for each element, the last axis fastest. Offsets follow `strides`.
template <class Body>
void for_each_offset(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
                     const Body& body) {
  std::vector<std::int64_t> at(shape.size(), 0);
  std::int64_t offset = 0;
  for (std::size_t left = npy_count(shape); left > 0; --left) {
    body(offset);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      offset += strides[axis];
      if (++at[axis] < shape[axis]) break;
      offset -= at[axis] * strides[axis];
      at[axis] = 0;
    }
  }
}

/// Parser of the dictionary, without recursion. Values are strings, True, False, and one tuple of integers.
class npy_header_parser {
 public:
  /// `start` is the offset of `text` in the file; messages call the file `where`.
  npy_header_parser(std::string_view text, std::size_t start, const std::string& where)
      : text_(text), start_(start), where_(where) {}

  npy_header parse() {
    expect('{');
    while (!take('}')) {
      read_item();
      if (take(',')) continue;
      expect('}');
      break;
    }
    if (peek() != '\0' || at_ != text_.size()) fail("text after the dictionary");
    for (const char* key : {"descr", "fortran_order", "shape"}) {
      if (std::find(seen_.begin(), seen_.end(), key) == seen_.end()) fail(std::string("no '") + key + "'");
    }
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw error(where_, "header at offset " + std::to_string(start_ + at_) + ": " + what);
  }

  /// The next character that is not white space, 0 at the end.
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("'") + c + "' expected");
  }

  void read_item() {
    const std::string key(read_string());
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) fail("'" + key + "' is given twice");
    expect(':');
    if (key == "descr") {
      read_descr();
    } else if (key == "fortran_order") {
      header_.fortran_order = read_bool();
    } else if (key == "shape") {
      read_shape();
    } else {
      const std::vector<std::string> valid{"descr", "fortran_order", "shape"};
      fail("unknown key '" + printable(key) + "'" + did_you_mean(key, valid));
    }
    seen_.push_back(key);
  }

  std::string_view read_string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("a string expected");
    const std::size_t first = ++at_;
    for (; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] < ' ' || text_[at_] > '~' || text_[at_] == '\\') fail("a character that no name here has");
    }
    if (at_ == text_.size()) fail("a string without its end");
    return text_.substr(first, at_++ - first);
  }

  void read_descr() {
    if (peek() == '[' || peek() == '(') fail("descr: arrays of records are not supported");
    const std::string_view descr = read_string();
    const char order = descr.empty() ? '\0' : descr.front();
    if (order == '>') fail("descr: '" + std::string(descr) + "' is big-endian, which is not supported");
    if (order != '<' && order != '|') fail("descr: '" + std::string(descr) + "' does not begin with '<' or '|'");
    // ml_dtypes calls float8_e5m2 a float of one byte ("<f1"), which NumPy writes but cannot read: treat it as raw
    // codes.
    const std::string_view dtype = descr == "<f1" ? "V1" : descr.substr(1);
    const npy_type* type = find_npy_type(dtype);
    if (type == nullptr) fail("descr: " + unknown_npy_type(descr));
    // Types of several bytes need a byte order. For raw bytes NumPy writes either form.
    if (order == '|' && type->bytes > 1 && dtype[0] != 'V')
      fail("descr: '" + std::string(descr) + "' has no byte order");
    header_.dtype = dtype;
  }

  bool read_bool() {
    peek();
    for (const bool value : {false, true}) {
      const std::string_view name = value ? "True" : "False";
      if (text_.substr(at_, name.size()) == name) {
        at_ += name.size();
        return value;
      }
    }
    fail("fortran_order: True or False expected");
  }

  void read_shape() {
    if (!take('(')) fail("shape: '(' expected");
    bool comma = true;
    while (!take(')')) {
      if (!comma) fail("shape: ',' or ')' expected");
      if (header_.shape.size() == npy_max_rank) fail("shape: more than " + std::to_string(npy_max_rank) + " axes");
      header_.shape.push_back(read_extent());
      comma = take(',');
    }
    if (header_.shape.size() == 1 && !comma) fail("shape: a number in brackets is no tuple");
  }

  std::int64_t read_extent() {
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    const auto is_digit = [&] { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; };
    peek();
    const std::size_t first = at_;
    std::int64_t value = 0;
    for (; is_digit(); ++at_) {
      const int digit = text_[at_] - '0';
      if (value > (largest - digit) / 10) fail("shape: an extent above 2^63 - 1");
      value = 10 * value + digit;
    }
    if (at_ == first) fail("shape: a non-negative integer expected");
    if (text_[first] == '0' && at_ - first > 1) fail("shape: an integer with leading zeros");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // suffix of Python 2's long integers
    return value;
  }

  std::string_view text_;
  std::size_t start_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::vector<std::string> seen_;
  npy_header header_;
};

/// The bytes before the data, as NumPy writes them: magic string, version, length, header. `h` must be valid.
inline std::string npy_header_bytes(const npy_header& h, int version) {
  std::string shape;
  for (const std::int64_t extent : h.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
  if (h.shape.size() == 1) shape += ',';
  std::string text = std::string("{'descr': '") + find_npy_type(h.dtype)->descr +
                     "', 'fortran_order': " + (h.fortran_order ? "True" : "False") + ", 'shape': (" + shape + "), }";
  // NumPy leaves room for 21 digits of the axis that grows when data is appended, and then aligns.
  if (!h.shape.empty()) {
    text.append(21 - std::to_string(h.fortran_order ? h.shape.back() : h.shape.front()).size(), ' ');
  }
  const std::size_t field = version == 1 ? 2 : 4;
  const std::size_t before = npy_magic.size() + 2 + field;
  text.append(npy_alignment - (before + text.size() + 1) % npy_alignment, ' ');
  text += '\n';
  std::string out(npy_magic);
  out += static_cast<char>(version);
  out += '\0';
  for (std::size_t i = 0; i < field; ++i) out += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text;
}

}  // namespace detail

}  // namespace rotoscale::io
