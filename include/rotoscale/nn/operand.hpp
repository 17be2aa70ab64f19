// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM operands as the model sees them: a tensor has one for its use along rows and one for its use along columns, made
// together. The backend chooses their layout in memory.
#pragma once

#include <memory>
#include <optional>

#include "rotoscale/nn/recipe.hpp"
#include "rotoscale/nn/tensor.hpp"

namespace rotoscale::nn {

/// The three GEMMs of a linear layer: y = x·wᵀ, dx = dy·w, dw = dyᵀ·x.
enum class gemm_kind { fprop, dgrad, wgrad };
/// Of a linear layer y = x·wᵀ.
enum class tensor_role { x, w, dy };
/// Rows: contracted along the tensor's rows (each row is a row of the operand). Columns: along its columns.
enum class operand_form { row, column };

/// Each tensor is an operand of two GEMMs, once in each form: fprop contracts features of x and w, dgrad output
/// features of dy and w, wgrad tokens of dy and x.
struct operand_use {
  tensor_role tensor;  ///< which tensor
  operand_form form;   ///< in which form
  gemm_kind gemm;      ///< of which GEMM
  bool right;          ///< the GEMM's second operand
};
/// All six.
inline constexpr operand_use operand_uses[] = {
    {tensor_role::x, operand_form::row, gemm_kind::fprop, false},
    {tensor_role::w, operand_form::row, gemm_kind::fprop, true},
    {tensor_role::dy, operand_form::row, gemm_kind::dgrad, false},
    {tensor_role::w, operand_form::column, gemm_kind::dgrad, true},
    {tensor_role::dy, operand_form::column, gemm_kind::wgrad, false},
    {tensor_role::x, operand_form::column, gemm_kind::wgrad, true},
};
/// GEMM that reads a form of a tensor.
constexpr operand_use use_of(tensor_role tensor, operand_form form) {
  for (const operand_use& u : operand_uses) {
    if (u.tensor == tensor && u.form == form) return u;
  }
  return operand_uses[0];
}
/// The form in which a GEMM reads its first or second operand.
constexpr operand_form form_of(gemm_kind gemm, bool right) {
  for (const operand_use& u : operand_uses) {
    if (u.gemm == gemm && u.right == right) return u.form;
  }
  return operand_form::row;
}
/// The recipe of a GEMM.
constexpr const gemm_recipe& recipe_for(const linear_recipe& r, gemm_kind gemm) {
  return gemm == gemm_kind::fprop ? r.fprop : gemm == gemm_kind::dgrad ? r.dgrad : r.wgrad;
}
/// The recipe of a form of a tensor.
constexpr const operand_recipe& recipe_for(const linear_recipe& r, tensor_role tensor, operand_form form) {
  const operand_use use = use_of(tensor, form);
  const gemm_recipe& gemm = recipe_for(r, use.gemm);
  return use.right ? gemm.right : gemm.left;
}

/// Request for a tensor's operands, which a backend lays out. It is constant. A column form that takes_row_form comes
/// with a row form.
struct operand_request {
  tensor_role tensor = tensor_role::x;   ///< which tensor
  index_t layer = 0;                     ///< names random streams
  dtype source = dtype::fp32;            ///< storage
  index_t rows = 0;                      ///< of the source
  index_t cols = 0;                      ///< of the source
  std::optional<operand_recipe> row;     ///< the row form, if it is needed
  std::optional<operand_recipe> column;  ///< the column form, if it is needed
  index_t part = 0;                      ///< chunk of a tensor that is quantized in chunks: names random streams
  bool row_in_bf16 = false;              ///< the row form's GEMM multiplies BF16 numbers: a backend may store these
  bool column_in_bf16 = false;           ///< the same of the column form

  bool operator==(const operand_request&) const = default;
  /// Does a form have a scale of delayed scaling?
  bool has_delayed() const { return (row && is_delayed(*row)) || (column && is_delayed(*column)); }
  /// The recipe of a form, or nullopt.
  const std::optional<operand_recipe>& recipe(operand_form form) const {
    return form == operand_form::row ? row : column;
  }
};

/// A backend's description of a tensor's operands.
struct operand_layout {
  std::size_t bytes = 0;      ///< of memory
  bool reads_source = false;  ///< a form is the source itself, which must then keep its values
};

/// A tensor's operands in a layout that only their backend knows. The bytes hold no address. Copied to the memory of a
/// set with an equal request, they are the same operands. If a form is the source, the source must be copied too.
class operand_set {
 public:
  /// Operands of this request.
  explicit operand_set(operand_request request) : request_(std::move(request)) {}
  operand_set(const operand_set&) = delete;
  operand_set& operator=(const operand_set&) = delete;
  virtual ~operand_set() = default;

  /// The request.
  const operand_request& request() const { return request_; }

 private:
  operand_request request_;
};

/// One operand of a GEMM.
struct operand {
  const operand_set* set = nullptr;       ///< a tensor's operands
  operand_form form = operand_form::row;  ///< which of them
};

/// Rows of an operand.
inline index_t rows_of(const operand& o) {
  return o.form == operand_form::row ? o.set->request().rows : o.set->request().cols;
}
/// Length of an operand's rows, over which a GEMM sums.
inline index_t k_of(const operand& o) {
  return o.form == operand_form::row ? o.set->request().cols : o.set->request().rows;
}

/// One tensor's delayed scaling in backend memory. A tensor without an FP8 form has no scale.
struct scaling_ref {
  const float* scale = nullptr;          ///< multiplies elements of FP8 forms; null: 1
  const float* scale_inverse = nullptr;  ///< becomes the operand's factor; null: 1
  float* amax = nullptr;                 ///< becomes max(*amax, largest finite |x|) in every format; null: not recorded
};

}  // namespace rotoscale::nn
