// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/kept_values.hpp.
#include "gpu/quantize/kept_values.hpp"

#include "gpu/dialect/launch.hpp"

namespace rotoscale::gpu {

namespace {

/// Checks a call. Arguments stay without a source if there is nothing to do.
template <class T>
status check(const value_form& form, const matrix<const T>& source, value_arguments<T>& a) {
  const index_t rows = source.extent(0), cols = source.extent(1);
  if (rows < 0 || cols < 0 || source.stride(1) != 1) {
    return {error_code::bad_extent, "source", "rows must be contiguous"};
  }
  if (form.how.groups > 0x7FFFFFFF) return {error_code::bad_extent, "form.how", "has more than 2^31 groups"};
  if (rows == 0 || cols == 0) return {};
  if (status bad = check_pointer(source.data, "source"); !bad.ok()) return bad;
  if (status bad = check_pointer(form.maxima, "form.maxima"); !bad.ok()) return bad;
  a = {form.how, form.column, source.data, source.stride(0), rows, cols, form.maxima, form.numbers(), nullptr};
  return {};
}

template <class T>
status measure(const value_form& form, const matrix<const T>& source, stream s) {
  value_arguments<T> a;
  if (status bad = check(form, source, a); !bad.ok() || a.from == nullptr) return bad;
  if (status bad = check_ready(s); !bad.ok()) return bad;
  const status done = launch(measure_values_kernel<T>, blocks(a.how.groups), blocks(value_threads), 0, s, a);
  if (!done.ok() || a.how.kind != nn::value_kind::outlier) return done;
  return launch(mark_outliers_kernel, blocks((a.how.groups + value_threads - 1) / value_threads), blocks(value_threads),
                0, s, form.maxima, a.how.groups, a.how.outliers, form.maxima + a.how.groups);
}

template <bool Finishes, class T>
status write(const value_form& form, const matrix<const T>& source, bf16* to, stream s) {
  value_arguments<T> a;
  if (status bad = check(form, source, a); !bad.ok() || a.from == nullptr) return bad;
  if (status bad = check_pointer(to, "to"); !bad.ok()) return bad;
  if (status bad = check_ready(s); !bad.ok()) return bad;
  a.to = reinterpret_cast<std::uint16_t*>(to);
  const index_t needed = (a.rows * a.cols + value_threads - 1) / value_threads;
  return launch(values_kernel<T, Finishes>, blocks(needed < 8192 ? needed : 8192), blocks(value_threads), 0, s, a);
}

}  // namespace

status measure_values(const value_form& form, matrix<const float> source, stream s) { return measure(form, source, s); }
status measure_values(const value_form& form, matrix<const bf16> source, stream s) { return measure(form, source, s); }
status prepare_values(const value_form& form, matrix<const float> source, bf16* to, stream s) {
  return write<false>(form, source, to, s);
}
status prepare_values(const value_form& form, matrix<const bf16> source, bf16* to, stream s) {
  return write<false>(form, source, to, s);
}
status finish_values(const value_form& form, matrix<const float> source, bf16* to, stream s) {
  return write<true>(form, source, to, s);
}
status finish_values(const value_form& form, matrix<const bf16> source, bf16* to, stream s) {
  return write<true>(form, source, to, s);
}

}  // namespace rotoscale::gpu
