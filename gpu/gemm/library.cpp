// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Plans and launches of gpu/api/gemm_library.hpp, in builds with cuBLASLt or hipBLASLt (blaslt.hpp). Other builds use
// no_library.cpp.
#include <utility>

#include "gpu/api/gemm_library.hpp"
#include "gpu/dialect/blaslt.hpp"
#include "gpu/gemm/check.hpp"

namespace rotoscale::gpu {

namespace {

using namespace blaslt;
using namespace detail;

constexpr int max_algorithms = 16;

bool is_fnuz(const format& f) { return f == formats::e4m3fnuz || f == formats::e5m2fnuz; }
bool is_e5m2(const format& f) { return f == formats::e5m2 || f == formats::e5m2fnuz; }
bool is_fp8(const format& f) { return f == formats::e4m3 || is_e5m2(f) || is_fnuz(f); }
/// Elements between rows.
index_t stride_of(const gemm_operand& x) { return x.code_stride * 8 / x.element.bits(); }
bool is_whole(const format& f, index_t elements) { return elements * f.bits() % 128 == 0; }

/// True if the library writes the output itself. Otherwise it writes FP32 sums, and add_parts_kernel applies the
/// epilogue.
bool is_direct(const plain_problem& p) {
  if (p.a.element == formats::fp16 && p.stored == formats::bf16) return false;  // the library has no such kernel
  return p.alpha == 1.0f && !p.accumulate && p.bias == nullptr && p.output_bias == nullptr &&
         is_whole(p.stored, row_stride(p, p.b.rows)) && (p.stored == formats::bf16 || p.output == formats::fp32);
}

status check_shape(const gemm_operand& x, bool first) {
  const auto named = [first](const char* a, const char* b) { return first ? a : b; };
  const format& e = x.element;
  if (e != formats::bf16 && e != formats::fp16 && !is_fp8(e)) {
    return {error_code::bad_option, named("a.element", "b.element"), "must be BF16, FP16, E4M3 or E5M2"};
  }
  if (x.factor != nullptr && !is_fp8(e)) {
    return {error_code::bad_option, named("a.factor", "b.factor"), "must be null: only FP8 operands have one"};
  }
  if (x.rows < 1 || x.rows > max_gemm_extent)
    return {error_code::bad_extent, named("a.rows", "b.rows"), "must be 1 to 2^20"};
  if (x.k < 1 || x.k > max_gemm_extent || !is_whole(e, x.k)) {
    return {error_code::bad_extent, named("a.k", "b.k"), "must be a multiple of 16 bytes, up to 2^20"};
  }
  if (x.code_stride < x.row_bytes() || x.code_stride % 16 != 0) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"),
            "must be a multiple of 16, at least a row's bytes"};
  }
  if (x.block != 0 || x.transposed || x.code_order != placement::row_major || x.batch_stride != 0) {
    return {error_code::bad_option, named("a", "b"), "must be one row-major matrix without block scales"};
  }
  return {};
}

/// Checks what a plan depends on.
status check_shapes(const plain_problem& p) {
  if (status s = check_shape(p.a, true); !s.ok()) return s;
  if (status s = check_shape(p.b, false); !s.ok()) return s;
  if (p.a.k != p.b.k) return {error_code::bad_extent, "b.k", "must equal a.k"};
  if (is_fp8(p.a.element) ? !is_fp8(p.b.element) || (is_e5m2(p.a.element) && is_e5m2(p.b.element))
                          : p.a.element != p.b.element) {
    return {error_code::bad_option, "b.element", "must be a's, or FP8 as well but not both E5M2"};
  }
  const bool fp8 = is_fp8(p.a.element);
  if (p.b.rows % (fp8 ? 16 : 8) != 0) {
    return {error_code::bad_extent, "b.rows", fp8 ? "must be a multiple of 16 for FP8" : "must be a multiple of 8"};
  }
  return check_result(p, p.b.rows);
}

status check_pointers(const plain_problem& p) {
  if (status s = check_pointer(p.a.codes, 16, "a.codes"); !s.ok()) return s;
  if (status s = check_pointer(p.b.codes, 16, "b.codes"); !s.ok()) return s;
  if (status s = check_pointer(p.out, 16, "out"); !s.ok()) return s;
  for (const gemm_operand* x : {&p.a, &p.b}) {
    const char* name = x == &p.a ? "a.factor" : "b.factor";
    if (x->factor == nullptr) continue;
    if (status s = check_pointer(x->factor, 16, name); !s.ok()) return s;
  }
  return p.bias == nullptr ? status{} : check_pointer(p.bias, 4, "bias");
}

/// The library's description of the product, with Bᵀ's transpose first. Null if the library refuses it.
description describe(const plain_problem& p) {
  hipblasLtMatmulDesc_t made = nullptr;
  if (hipblasLtMatmulDescCreate(&made, HIPBLAS_COMPUTE_32F, HIP_R_32F) != HIPBLAS_STATUS_SUCCESS) return {};
  description d(made);
  const hipblasOperation_t transpose = HIPBLAS_OP_T;
  bool taken = set(d, HIPBLASLT_MATMUL_DESC_TRANSA, transpose);
  if (is_fp8(p.a.element)) {
    const void *const factor_a = p.a.factor, *const factor_b = p.b.factor;
    taken = taken && set_fast_accumulate(d, p.fast_accumulate) &&
            set(d, HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER, factor_b) &&
            set(d, HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER, factor_a);
  }
  return taken ? std::move(d) : description{};
}

/// Checks that the device's library supports these formats and options. FP8 is FNUZ on gfx942, OCP elsewhere.
status check_library(const plain_problem& p, const device_info& device) {
  const bool fnuz = traits_of(device.arch).multiplies_fnuz;
  for (const gemm_operand* x : {&p.a, &p.b}) {
    if (!is_fp8(x->element) || is_fnuz(x->element) == fnuz) continue;
    return {error_code::unsupported_device, x == &p.a ? "a.element" : "b.element",
            fnuz ? "this device multiplies FNUZ forms of FP8 only" : "only gfx942 multiplies FNUZ forms of FP8"};
  }
  if (p.fast_accumulate && !has_fast_accumulate) {
    return {error_code::bad_option, "fast_accumulate", "this device's library has no such choice"};
  }
  return {};
}

}  // namespace

struct plain_gemm::state {
  plain_problem shape;
  device_info device;
  handle library;
  matrix_layout a, b, d;
  hipblasLtMatmulAlgo_t algorithm;
  std::size_t library_workspace = 0;

  bool takes(const plain_problem& p) const {
    const auto same = [](const gemm_operand& x, const gemm_operand& y) {
      return x.element == y.element && x.rows == y.rows && x.k == y.k && stride_of(x) == stride_of(y) &&
             (x.factor == nullptr) == (y.factor == nullptr);
    };
    return same(p.a, shape.a) && same(p.b, shape.b) && p.stored == shape.stored &&
           row_stride(p, p.b.rows) == row_stride(shape, shape.b.rows) && p.fast_accumulate == shape.fast_accumulate &&
           is_direct(p) == is_direct(shape);
  }
  /// Offset of the library's workspace.
  std::size_t sums_bytes() const {
    if (is_direct(shape)) return 0;
    return (4 * static_cast<std::size_t>(shape.a.rows) * static_cast<std::size_t>(shape.b.rows) + 255) / 256 * 256;
  }
};

plain_gemm::plain_gemm() = default;
plain_gemm::~plain_gemm() = default;
plain_gemm::plain_gemm(plain_gemm&&) noexcept = default;
plain_gemm& plain_gemm::operator=(plain_gemm&&) noexcept = default;

status plain_gemm::make(const plain_problem& p, plain_gemm& plan) {
  auto made = std::make_unique<state>();
  if (status s = current_device(made->device); !s.ok()) return s;
  if (status s = check_shapes(p); !s.ok()) return s;
  if (status s = check_library(p, made->device); !s.ok()) return s;
  made->shape = p;
  const bool direct = is_direct(p);
  if (!direct) {
    if (status s = check_code(add_parts_kernel); !s.ok()) return s;
  }
  hipblasLtHandle_t opened = nullptr;
  const hipblasStatus_t open = hipblasLtCreate(&opened);
  if (open == HIPBLAS_STATUS_ALLOC_FAILED) return {error_code::out_of_memory, "", "the library's handle"};
  if (open != HIPBLAS_STATUS_SUCCESS) return {error_code::unsupported_device, "", "the library does not start"};
  made->library.reset(opened);
  made->a = layout_of(p.a.element, p.a.k, p.a.rows, stride_of(p.a));
  made->b = layout_of(p.b.element, p.b.k, p.b.rows, stride_of(p.b));
  made->d =
      layout_of(direct ? p.stored : formats::fp32, p.b.rows, p.a.rows, direct ? row_stride(p, p.b.rows) : p.b.rows);
  const description operation = describe(p);
  hipblasLtMatmulPreference_t raw_preference = nullptr;
  (void)hipblasLtMatmulPreferenceCreate(&raw_preference);
  const preference limits(raw_preference);
  if (operation == nullptr || limits == nullptr || made->a == nullptr || made->b == nullptr || made->d == nullptr) {
    return {error_code::out_of_memory, "", "the library's descriptions"};
  }
  if (!set(limits, HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, max_workspace) || !forbid_split_k(limits)) {
    return {error_code::unsupported_device, "", "the library does not promise to leave K whole"};
  }
  hipblasLtMatmulHeuristicResult_t found[max_algorithms];
  int count = 0;
  (void)hipblasLtMatmulAlgoGetHeuristic(opened, operation.get(), made->b.get(), made->a.get(), made->d.get(),
                                        made->d.get(), raw_preference, max_algorithms, found, &count);
  for (int i = 0; i < count; ++i) {
    if (found[i].state != HIPBLAS_STATUS_SUCCESS || found[i].workspaceSize > max_workspace) continue;
    if (uses_split_k(found[i].algo)) continue;
    if (!is_supported(made->library, {operation, made->b, made->a, made->d}, found[i].algo)) continue;
    made->algorithm = found[i].algo;
    made->library_workspace = found[i].workspaceSize;
    plan.state_ = std::move(made);
    return {};
  }
  return {error_code::bad_option, "p", "the library has no kernel for it that leaves K whole"};
}

std::size_t plain_gemm::workspace_bytes() const {
  return state_ == nullptr ? 0 : state_->sums_bytes() + state_->library_workspace;
}

const gemm_contract_entry* plain_gemm::contract() const {
  if (state_ == nullptr) return nullptr;
  const arch_traits& traits = traits_of(state_->device.arch);
  const char* name = !is_fp8(state_->shape.a.element) ? traits.library_fp16
                     : state_->shape.fast_accumulate  ? traits.library_fp8_fast
                                                      : traits.library_fp8;
  return name == nullptr ? nullptr : find_contract(name);
}

status plain_gemm::run(const plain_problem& p, void* workspace, std::size_t workspace_bytes, stream stream) const {
  if (state_ == nullptr) return {error_code::bad_option, "plan", "was not made"};
  if (status s = check_shapes(p); !s.ok()) return s;
  if (!state_->takes(p)) return {error_code::bad_option, "p", "differs from the plan's problem"};
  if (status s = check_pointers(p); !s.ok()) return s;
  if (status s = check_workspace(workspace, workspace_bytes, this->workspace_bytes(), 256); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  const bool direct = is_direct(p);
  auto* const memory = static_cast<std::uint8_t*>(workspace);
  void* const sums = direct ? p.out : workspace;
  const description operation = describe(p);
  if (operation == nullptr) return {error_code::out_of_memory, "", "the library's description of the product"};
  const float one = 1.0f, zero = 0.0f;
  const hipblasStatus_t done =
      hipblasLtMatmul(state_->library.get(), operation.get(), &one, p.b.codes, state_->b.get(), p.a.codes,
                      state_->a.get(), &zero, sums, state_->d.get(), sums, state_->d.get(), &state_->algorithm,
                      state_->library_workspace == 0 ? nullptr : memory + state_->sums_bytes(),
                      state_->library_workspace, native(stream));
  if (done != HIPBLAS_STATUS_SUCCESS) return {error_code::device_error, "", to_text(done)};
  if (direct) return {};
  gemm_arguments g = make_arguments(p, p.a.rows, p.b.rows);
  g.partial = static_cast<float*>(sums);
  return finish_parts(g, stream, false);
}

}  // namespace rotoscale::gpu
