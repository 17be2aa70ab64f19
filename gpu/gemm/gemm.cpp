// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/gemm.hpp. Compiled by nvcc, by hipcc, and by a C++ compiler in host mode.
#include "gpu/api/gemm.hpp"

#include "gpu/gemm/check.hpp"
#include "gpu/gemm/kernels.hpp"
#include "gpu/gemm/reference_kernel.hpp"

namespace rotoscale::gpu {

using namespace detail;

namespace {

status run_reference(const gemm_problem& p, const gemm_options& o, stream s) {
  const gemm_arguments g = make_arguments(p, o);
  const std::int64_t across = (g.n + reference_threads - 1) / reference_threads;
  return launch(reference_kernel, blocks(across * g.m), blocks(reference_threads), 0, s,
                reference_arguments{make_kernel_operand(p.a), make_kernel_operand(p.b), g});
}

status run_on_current(const gemm_problem& p, const gemm_choice& c, void* workspace, std::size_t workspace_bytes,
                      stream stream) {
  device_info device;
  const status s = current_device(device);
  return s.ok() ? run_gemm(p, c, device, workspace, workspace_bytes, stream) : s;
}

}  // namespace

status check_gemm(const gemm_problem& p, const gemm_choice& c, const device_info& device) {
  return check_problem(p, c, device);
}

std::size_t gemm_workspace_bytes(const gemm_problem& p, const gemm_choice& c, const device_info& device) {
  return check_gemm(p, c, device).ok() ? workspace_map(p, c, device).size : 0;
}

gemm_options contract_options(gemm_contract contract, const device_info& device, int split_k, bool bf16) {
  const arch_traits& traits = traits_of(device.arch);
  const char* name = contract == gemm_contract::reference ? (bf16 ? "mxfp8-reference" : "mxfp4-reference")
                     : bf16                               ? traits.bf16
                     : contract == gemm_contract::fast    ? traits.fast
                                                          : traits.accurate;
  ROTOSCALE_ASSERT(name != nullptr);
  const gemm_contract_entry* entry = find_contract(name);
  gemm_options o = contract_options(*entry, find_unit(entry->unit)->model);
  o.split_k = split_k;
  return o;
}

status detail::run_gemm(const gemm_problem& p, const gemm_choice& c, const device_info& device, void* workspace,
                        std::size_t workspace_bytes, stream stream) {
  status s = check_gemm(p, c, device);
  if (s.ok()) s = check_workspace(workspace, workspace_bytes, gemm_workspace_bytes(p, c, device), 256);
  if (s.ok()) s = check_stream(stream);
  if (!s.ok()) return s;
  if (c.contract == gemm_contract::reference) {
    return run_reference(p, contract_options(c.contract, device, 1, is_fp8(p)), stream);
  }
  return run_kernels(p, c, static_cast<std::uint8_t*>(workspace), device, stream);
}

std::size_t blockwise_workspace_bytes(index_t m, index_t n, index_t k, const device_info& device) {
  const std::size_t bytes = blockwise_bytes(m, n, k, device);  // 0 for extents whose product would overflow 64 bits
  return bytes > 0 && m * n * k >= traits_of(device.arch).least_unit_products ? bytes : 0;
}

std::size_t detail::blockwise_unit_bytes(index_t m, index_t n, index_t k, const device_info& device) {
  return blockwise_bytes(m, n, k, device);
}

bool detail::has_blockwise_unit(const gemm_operand& a, const gemm_operand& b, const void* workspace,
                                std::size_t workspace_bytes, const device_info& device) {
  if (traits_of(device.arch).forms_blockwise_sums) {
    const auto has_words = [](const gemm_operand& x) {
      return x.rows <= max_gemm_extent && x.scale_stride % 4 == 0 &&
             reinterpret_cast<std::uintptr_t>(x.scales) % 4 == 0;
    };
    return a.k > 0 && a.k <= max_gemm_extent && a.k % 128 == 0 && has_words(a) && has_words(b);
  }
  const std::size_t needed = blockwise_unit_bytes(a.rows, b.rows, a.k, device);
  return needed != 0 && check_workspace(workspace, workspace_bytes, needed, 256).ok();
}

status detail::run_blockwise_on_unit(const gemm_operand& a, const gemm_operand& b, const definition_arguments& p,
                                     const sum_output& r, void* workspace, const device_info& device, stream stream) {
  const gemm_arguments g = make_arguments(r, static_cast<int>(a.rows), static_cast<int>(b.rows));
  return run_blockwise_kernels(a, b, p, g, static_cast<std::uint8_t*>(workspace), device, stream);
}

status gemm_mxfp4(const gemm_problem& p, const gemm_choice& c, void* workspace, std::size_t workspace_bytes, stream s) {
  if (p.a.element != formats::e2m1) return {error_code::bad_option, "a.element", "must be E2M1"};
  return run_on_current(p, c, workspace, workspace_bytes, s);
}

status gemm_mxfp8(const gemm_problem& p, const gemm_choice& c, void* workspace, std::size_t workspace_bytes, stream s) {
  if (p.a.element != formats::e4m3 && p.a.element != formats::e5m2) {
    return {error_code::bad_option, "a.element", "must be E4M3 or E5M2"};
  }
  return run_on_current(p, c, workspace, workspace_bytes, s);
}

}  // namespace rotoscale::gpu
