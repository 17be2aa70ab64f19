// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "arrays.hpp"

#include <memory>
#include <stdexcept>
#include <type_traits>

#include "memory.hpp"
#include "rotoscale/dlpack.hpp"
#include "rotoscale/nearest_name.hpp"

namespace rotoscale::python {
namespace {

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
    std::string type = nb::cast<std::string>(x.type().attr("__name__"));
    if (nb::hasattr(x, "dtype")) {
      const nb::object dtype = x.attr("dtype");
      type += " of dtype " + nb::cast<std::string>(nb::str(nb::handle(dtype)));
    }
    throw nb::type_error((name + ": " + type + " is no array that DLPack or the buffer protocol lends").c_str());
  }
  return found;
}

/// Checks that `v`, whose elements have `bytes`, is aligned and has an axis.
void check_view(const std::string& name, const array_view& v, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(v.data) % bytes != 0) {
    fail(name + ": data are not aligned to their " + std::to_string(bytes) + " bytes");
  }
  if (v.shape.empty()) fail(name + ": is a scalar, expected at least one axis");
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
  check_view(name, v, array.itemsize());
  v.owner = std::move(array);
  return v;
}

/// The dtype of a buffer's elements, for the types that this module reads.
std::optional<nb::dlpack::dtype> dtype_of(const Py_buffer& b) {
  const char* f = b.format == nullptr ? "B" : b.format;
  if (f[0] == '\0' || f[1] != '\0') return std::nullopt;
  switch (f[0]) {
    case 'f': return nb::dtype<float>();
    case 'd': return nb::dtype<double>();
    case 'e': return nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    case 'B': return nb::dtype<std::uint8_t>();
    case 'H': return nb::dtype<std::uint16_t>();
    default: return std::nullopt;
  }
}

/// Reads what the buffer protocol lends; nullopt: DLPack may say more. `bytes_only`: codes, of any format.
std::optional<array_view> read_buffer(const char* name, nb::handle x, const text& element, bool bytes_only) {
  array_view v;
  const Py_buffer* b = v.buffer.borrow(x, PyBUF_STRIDED_RO | PyBUF_FORMAT);
  const auto d = b == nullptr ? std::nullopt : dtype_of(*b);
  const bool is_integer = d && d->code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt);
  if (!d || (bytes_only ? d->bits != 8 : is_integer && !element)) return std::nullopt;
  v.shape.reserve(static_cast<std::size_t>(b->ndim));
  v.strides.reserve(static_cast<std::size_t>(b->ndim));
  for (int i = 0; i < b->ndim; ++i) {
    if (b->strides[i] % b->itemsize != 0) return std::nullopt;
    v.shape.push_back(static_cast<std::size_t>(b->shape[i]));
    v.strides.push_back(b->strides[i] / b->itemsize);
  }
  v.element = bytes_only ? formats::int8 : element_of(name, *d, element);
  v.data = b->buf;
  check_view(name, v, static_cast<std::size_t>(b->itemsize));
  return v;
}

/// An attribute of a Python module. It is looked up once and never freed.
#define ROTOSCALE_PYTHON_ATTRIBUTE(module, name)                                               \
  [] {                                                                                         \
    static const nb::object& found = *new nb::object(nb::module_::import_(module).attr(name)); \
    return nb::handle(found);                                                                  \
  }()

/// rotoscale._arrays.readable: an array that DLPack lends, and the format of its integers.
std::pair<nb::object, text> readable(nb::handle x) {
  const nb::object found = ROTOSCALE_PYTHON_ATTRIBUTE("rotoscale._arrays", "readable")(x);
  return {found[0], nb::cast<text>(found[1])};
}

}  // namespace

void fail(const std::string& message) { throw std::invalid_argument(message); }

array_view read_array(const char* name, nb::handle x, const text& element) {
  if (auto v = read_buffer(name, x, element, false)) return std::move(*v);
  const auto [object, meaning] = readable(x);
  if (element && meaning && *element != *meaning) {
    throw nb::type_error((std::string(name) + ": its dtype holds codes of " + *meaning + ", not " + *element).c_str());
  }
  nb::ndarray<nb::ro> array = import_array(name, object);
  const format f = element_of(name, array.dtype(), element ? element : meaning);
  return view_of(name, std::move(array), f);
}

array_view read_bytes(const char* name, nb::handle x) {
  if (auto v = read_buffer(name, x, {}, true)) return std::move(*v);
  nb::ndarray<nb::ro> array = import_array(name, readable(x).first);
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

nb::object shape_tuple(const extents& shape) {
  nb::object t = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    PyTuple_SetItem(t.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromSize_t(shape[i]));
  }
  return t;
}

namespace {

/// An array in a block of memory.hpp, which the array returns.
template <class T>
new_array<T> make_large_array(const extents& shape, std::size_t bytes) {
  auto block = std::make_unique<memory_block>(take_memory(bytes));
  auto* const data = static_cast<T*>(block->data);
  const nb::capsule owner(block.release(), [](void* given) noexcept {
    const std::unique_ptr<memory_block> back(static_cast<memory_block*>(given));
    give_memory(*back);
  });
  return {nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner)), data};
}

}  // namespace

template <class T>
new_array<T> make_array(const extents& shape) {
  std::size_t bytes = sizeof(T);
  for (const std::size_t extent : shape) bytes *= extent;
  if (bytes >= large_result) return make_large_array<T>(shape, bytes);
  static const nb::object& dtype =
      *new nb::object(nb::module_::import_("numpy").attr("dtype")(sizeof(T) == 1   ? "uint8"
                                                                  : sizeof(T) == 2 ? "uint16"
                                                                                   : "float32"));  // never freed
  new_array<T> made{ROTOSCALE_PYTHON_ATTRIBUTE("numpy", "empty")(shape_tuple(shape), dtype)};
  lent_buffer memory;
  made.data = static_cast<T*>(memory.borrow(made.object, PyBUF_WRITABLE)->buf);
  return made;
}
template new_array<std::uint8_t> make_array(const extents&);
template new_array<std::uint16_t> make_array(const extents&);
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

/// IEEE-like formats of ml_dtypes, which the tables leave out.
constexpr enum_name<format> ieee_formats[] = {{format{4, 3, 7}, "e4m3ieee"}, {format{3, 4, 3}, "e3m4ieee"}};

template <class E>
E named(const char* argument, const std::string& name) {
  for (const auto& entry : enum_names<E>::table) {
    if (entry.name == name) return entry.value;
  }
  if constexpr (std::is_same_v<E, format>) {
    for (const auto& entry : ieee_formats) {
      if (entry.name == name) return entry.value;
    }
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
template overflow named<overflow>(const char*, const std::string&);
template split_order named<split_order>(const char*, const std::string&);

}  // namespace rotoscale::python
