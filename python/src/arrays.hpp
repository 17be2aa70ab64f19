// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arrays of the caller, read in place through DLPack or the buffer protocol, and NumPy arrays as results. Each refusal
// names the argument.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/layout.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/small_float.hpp"

namespace rotoscale::python {

namespace nb = nanobind;

using text = std::optional<std::string>;
using extents = std::vector<std::size_t>;

/// Memory that an object lends by the buffer protocol, until this one ends. Needs the GIL.
class lent_buffer {
 public:
  lent_buffer() = default;
  lent_buffer(lent_buffer&& o) noexcept : view_(o.view_), held_(std::exchange(o.held_, false)) {}
  lent_buffer& operator=(lent_buffer&& o) noexcept {
    std::swap(view_, o.view_);
    std::swap(held_, o.held_);
    return *this;
  }
  ~lent_buffer() {
    if (held_) PyBuffer_Release(&view_);
  }
  /// Returns null if `x` lends nothing.
  const Py_buffer* borrow(nb::handle x, int flags) {
    held_ = PyObject_CheckBuffer(x.ptr()) != 0 && PyObject_GetBuffer(x.ptr(), &view_, flags) == 0;
    if (!held_) PyErr_Clear();
    return held_ ? &view_ : nullptr;
  }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

/// A CPU array of the caller. Strides count elements.
struct array_view {
  nb::ndarray<nb::ro> owner;
  lent_buffer buffer;  ///< the owner where the buffer protocol is enough, which is faster
  format element = formats::fp32;
  const void* data = nullptr;
  extents shape;
  std::vector<index_t> strides;

  std::size_t axes() const { return shape.size(); }
};

/// Reads `x`. `element` names the format of unsigned integers; other arrays have their dtype's, which may be one of
/// ml_dtypes or torch.
/// Throws TypeError for a wrong dtype, ValueError for a wrong device or alignment.
array_view read_array(const char* name, nb::handle x, const text& element);
/// Reads an array of uint8, or of codes in a narrow dtype.
array_view read_bytes(const char* name, nb::handle x);

/// `x` as rows: the last axis is columns, all others are rows. Throws ValueError if their strides forbid it.
template <class T>
matrix<const T> as_rows(const char* name, const array_view& x);

/// `x` as contiguous rows. Throws ValueError if the last axis has another stride than 1.
matrix<const std::uint8_t> as_byte_rows(const char* name, const array_view& x);

/// A new NumPy array and its memory, which is uninitialised.
template <class T>
struct new_array {
  nb::object object;
  T* data = nullptr;
};
template <class T>
new_array<T> make_array(const extents& shape);

/// Runs f without the GIL. It must not touch Python objects.
template <class Function>
void without_gil(const Function& f) {
  const nb::gil_scoped_release released;
  f();
}

/// A tuple of the extents.
nb::object shape_tuple(const extents& shape);

/// The shape with another last extent.
extents with_last(extents shape, index_t last);

/// "(3, 4)".
std::string shape_text(const extents& shape);

[[noreturn]] void fail(const std::string& message);

/// The value of a name of `E`. Throws ValueError with the nearest name.
template <class E>
E named(const char* argument, const std::string& name);

}  // namespace rotoscale::python
