// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "arrays.hpp"

#include <new>
#include <stdexcept>

#include "rotoscale/dlpack.hpp"
#include "rotoscale/nearest_name.hpp"

namespace rotoscale::python {
namespace {

constexpr std::size_t alignment = 64;

std::string dtype_text(nb::dlpack::dtype d) {
  static constexpr const char* kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string kind = d.code < 7 ? kinds[d.code] : "DLPack code " + std::to_string(d.code) + ", bits ";
  return kind + std::to_string(d.bits);
}

/// The format of elements with dtype `d`. Unsigned integers have the format that the caller names.
format element_of(const std::string& name, nb::dlpack::dtype d, const text& element) {
  const bool is_integer = d.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt);
  if (is_integer && element) {
    const auto f = named<format>(name.c_str(), *element);
    if (storage_bits(f) == d.bits || (d.bits == 8 && f.bits() <= 8)) return f;
    throw nb::type_error((name + ": " + dtype_text(d) + " does not hold codes of " + *element).c_str());
  }
  const std::optional<format> own = from_dlpack({d.code, d.bits, d.lanes});
  if (!own || d.lanes != 1) {
    const char* hint =
        is_integer ? "; name the format of its codes" : "; expected a floating-point dtype, or uint8 with a format";
    throw nb::type_error((name + ": dtype " + dtype_text(d) + hint).c_str());
  }
  if (element && named<format>(name.c_str(), *element) != *own) {
    throw nb::type_error((name + ": dtype " + dtype_text(d) + " does not hold codes of " + *element).c_str());
  }
  return *own;
}

nb::ndarray<nb::ro> import_array(const std::string& name, nb::handle x) {
  nb::ndarray<nb::ro> found;
  if (!nb::try_cast(x, found, false)) {
    PyErr_Clear();
    const std::string type = nb::cast<std::string>(x.type().attr("__name__"));
    throw nb::type_error((name + ": " + type + " is no array that DLPack or the buffer protocol lends").c_str());
  }
  return found;
}

array_view view_of(const std::string& name, nb::ndarray<nb::ro> array, format element) {
  if (array.device_type() != nb::device::cpu::value) {
    fail(name + ": is on a device (DLPack type " + std::to_string(array.device_type()) + "), expected a CPU array");
  }
  array_view v;
  v.element = element;
  v.data = array.data();
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    v.shape.push_back(array.shape(i));
    v.strides.push_back(static_cast<index_t>(array.stride(i)));
  }
  if (reinterpret_cast<std::uintptr_t>(v.data) % array.itemsize() != 0) {
    fail(name + ": data are not aligned to their " + std::to_string(array.itemsize()) + " bytes");
  }
  if (v.shape.empty()) fail(name + ": is a scalar, expected at least one axis");
  v.owner = std::move(array);
  return v;
}

}  // namespace

void fail(const std::string& message) { throw std::invalid_argument(message); }

array_view read_array(const char* name, nb::handle x, const text& element) {
  nb::ndarray<nb::ro> array = import_array(name, x);
  const format f = element_of(name, array.dtype(), element);
  return view_of(name, std::move(array), f);
}

array_view read_bytes(const char* name, nb::handle x) {
  nb::ndarray<nb::ro> array = import_array(name, x);
  const nb::dlpack::dtype d = array.dtype();
  if (d != nb::dtype<std::uint8_t>()) {
    throw nb::type_error((std::string(name) + ": dtype " + dtype_text(d) + ", expected uint8").c_str());
  }
  return view_of(name, std::move(array), formats::int8);
}

template <class T>
matrix<const T> as_rows(const char* name, const array_view& x) {
  const auto* data = static_cast<const T*>(x.data);
  const std::size_t last = x.axes() - 1;
  const auto columns = static_cast<index_t>(x.shape[last]);
  index_t rows = 1, row_stride = 0;
  for (std::size_t i = last; i-- > 0;) {  // from the innermost axis of rows outwards
    const auto extent = static_cast<index_t>(x.shape[i]);
    if (rows > 1 && extent > 1 && x.strides[i] != rows * row_stride) {
      fail(std::string(name) + " of shape " + shape_text(x.shape) +
           ": strides of the leading axes are not those of one axis; make the array contiguous");
    }
    if (rows == 1) row_stride = x.strides[i];
    rows *= extent;
  }
  return {data, {rows, columns}, {row_stride, x.strides[last]}};
}
template matrix<const float> as_rows(const char*, const array_view&);
template matrix<const double> as_rows(const char*, const array_view&);
template matrix<const bf16> as_rows(const char*, const array_view&);
template matrix<const fp16> as_rows(const char*, const array_view&);
template matrix<const std::uint8_t> as_rows(const char*, const array_view&);

matrix<const std::uint8_t> as_byte_rows(const char* name, const array_view& x) {
  matrix<const std::uint8_t> m = as_rows<std::uint8_t>(name, x);
  if (m.extent(1) > 1 && m.stride(1) != 1) fail(std::string(name) + ": the last axis must be contiguous");
  if (m.extent(0) > 1 && m.stride(0) < m.extent(1)) {
    fail(std::string(name) + ": rows overlap or run backwards; make the array contiguous");
  }
  m.strides[1] = 1;
  return m;
}

template <class T>
new_array<T> make_array(const extents& shape) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  const std::size_t bytes = count == 0 ? 1 : count * sizeof(T);
  auto* data = static_cast<T*>(::operator new (bytes, std::align_val_t{alignment}));
  nb::capsule owner(data, [](void* p) noexcept { ::operator delete (p, std::align_val_t{alignment}); });
  return {nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner)), data};
}
template new_array<std::uint8_t> make_array(const extents&);
template new_array<float> make_array(const extents&);

extents with_last(extents shape, index_t last) {
  shape.back() = static_cast<std::size_t>(last);
  return shape;
}

std::string shape_text(const extents& shape) {
  std::string s = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return s + (shape.size() == 1 ? ",)" : ")");
}

template <class E>
E named(const char* argument, const std::string& name) {
  for (const auto& entry : enum_names<E>::table) {
    if (entry.name == name) return entry.value;
  }
  std::vector<std::string> all;
  for (const auto& entry : enum_names<E>::table) all.emplace_back(entry.name);
  fail(std::string(argument) + ": no '" + name + "'; the nearest name is '" + nearest_name(name, all) + "'");
}
template format named<format>(const char*, const std::string&);
template block_format named<block_format>(const char*, const std::string&);
template block_options named<block_options>(const char*, const std::string&);
template block_policy named<block_policy>(const char*, const std::string&);
template scale_rule named<scale_rule>(const char*, const std::string&);
template rounding named<rounding>(const char*, const std::string&);
template placement named<placement>(const char*, const std::string&);

}  // namespace rotoscale::python
