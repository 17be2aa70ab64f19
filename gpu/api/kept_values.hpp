// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands that are stored as BF16 of their quantized values: numbers of groups, and the steps before and after the
// quantizer (rotoscale/nn/kept_values.hpp). Each takes device memory and allocates nothing. On any status but ok,
// nothing was launched.
#pragma once

#include "rotoscale/nn/kept_values.hpp"
#include "rotoscale/view.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// A form of rows × k of a source of M × N with contiguous rows: k runs along N, or along M (`column`).
struct value_form {
  nn::value_recipe how;     ///< of the form
  bool column = false;      ///< rows are N, k is M
  float* maxima = nullptr;  ///< how.groups numbers of device memory; outliers: twice as many
  /// Data of a group; for outliers, a flag that keeps the column.
  const float* numbers() const { return how.kind == nn::value_kind::outlier ? maxima + how.groups : maxima; }
};

/// Computes the numbers of all groups. One launch on `s`, two for outliers.
status measure_values(const value_form& form, matrix<const float> source, stream s);
/// From BF16.
status measure_values(const value_form& form, matrix<const bf16> source, stream s);

/// Writes what the inner quantizer takes, or values of FP8, dense in the source's order. One launch on `s`.
status prepare_values(const value_form& form, matrix<const float> source, bf16* to, stream s);
/// From BF16.
status prepare_values(const value_form& form, matrix<const bf16> source, bf16* to, stream s);

/// Replaces quantized values by the operand's. One launch on `s`.
status finish_values(const value_form& form, matrix<const float> source, bf16* to, stream s);
/// From BF16.
status finish_values(const value_form& form, matrix<const bf16> source, bf16* to, stream s);

}  // namespace rotoscale::gpu
