// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The table of GEMM kernels, and the functions of gpu/api/gemm.hpp over it. No device code.
#include "gpu/gemm/table.hpp"

#include <array>

#include "gpu/api/dequantize.hpp"
#include "gpu/gemm/check.hpp"
#include "gpu/gemm/tuned.hpp"

namespace rotoscale::gpu {

namespace detail {

namespace {

constexpr unsigned sm90 = bit_of(arch::sm_90) | bit_of(arch::host), gfx942 = bit_of(arch::gfx942),
                   gfx950 = bit_of(arch::gfx950), cdna3 = gfx942 | gfx950 | bit_of(arch::host),
                   all = cdna3 | sm90 | bit_of(arch::other);
constexpr unsigned upconverted = dense_bf16 | dense_fp8 | mxfp4_blocks | mxfp8_blocks | other_blocks;
constexpr std::span<const tile_shape> one_tile = std::span(sm90_tiles).first(1), none = {};
/// m * n * k from which tensor cores, conversion included, beat CUDA cores on fp32_blockwise.
constexpr double least_blockwise = 0x1p28;

constexpr gemm_kernel kernels[] = {
    // operands without block scales
    {"bf16-sm90", "mx-bf16-sm90", sm90, dense_bf16, 64, one_tile, check_bf16, split_bytes, launch_dense, 0, false,
     true},
    {"bf16-gfx942", "mx-bf16-gfx942", cdna3, dense_bf16, 64, dense_tiles, check_bf16, split_bytes, launch_dense},
    {"fp8-promoted", "hopper-fp8-promoted", sm90, dense_fp8, 64, one_tile, check_fp8, split_bytes, launch_dense, 0,
     false, true},
    {"fp8-fast", "hopper-fp8-fast-accumulate", sm90, dense_fp8, 64, one_tile, check_fp8, split_bytes, launch_dense, 0,
     false, true},
    // blocks and FP8, converted to BF16
    {"mxfp8-bf16", "mx-bf16-sm90", sm90, mxfp8_blocks, 64, sm90_tiles, check_rows, converted_bytes<false>,
     launch_mxfp8},
    {"upconvert-sm90", "mx-bf16-sm90", sm90, upconverted, 64, one_tile, check_upconverted, upconverted_bytes,
     launch_upconverted, 0, false, true},
    {"upconvert-gfx942", "mx-bf16-gfx942", cdna3, upconverted, 64, dense_tiles, check_upconverted, upconverted_bytes,
     launch_upconverted},
    // MXFP4, its scales folded into E5M2 or int8
    {"mxfp4-accurate", "mxfp4-accurate-sm90", sm90, mxfp4_blocks, 64, sm90_tiles, check_rows, converted_bytes<true>,
     launch_accurate},
    {"mxfp4-fast", "mxfp4-fast-sm90", sm90, mxfp4_blocks, 64, sm90_tiles, check_rows, converted_bytes<true>,
     launch_fast},
    // scaled matrix instruction
    {"mxfp4-gfx950", "aiter-a4w4", gfx950, mxfp4_blocks, 64, gfx950_fp4_tiles, check_gfx950, split_bytes,
     launch_gfx950},
    {"mxfp8-gfx950", "mxfp8-gfx950", gfx950, mxfp8_blocks, 64, gfx950_fp8_tiles, check_gfx950, split_bytes,
     launch_gfx950},
    // fp32_blockwise and fp32_fma_chain
    {"mxfp4-gfx942", "mxfp4-reference", gfx942 | gfx950, mxfp4_blocks, 1, gfx942_fp4_tiles, check_gfx942, no_bytes,
     launch_gfx942},
    {"blockwise-sm90", "mxfp4-reference", sm90, mxfp4_blocks, 1, none, check_blockwise, blockwise_bytes,
     launch_blockwise, least_blockwise},
    {"blockwise", "mxfp4-reference", all, mxfp4_blocks, 1, none, check_simt, no_bytes, launch_simt},
    {"chain", "mxfp8-reference", all, any_operand, 1, none, check_simt, no_bytes, launch_simt},
    {"blockwise-any-order", "mxfp4-reference", all, mxfp4_blocks, 1, none, check_blocks, no_bytes, launch_reference},
    {"chain-any-order", "mxfp8-reference", all, mxfp8_blocks, 1, none, check_blocks, no_bytes, launch_reference},
};

/// True if the row has this contract, apart from split-K, for these operands on `device`.
bool is_candidate(const gemm_kernel& kernel, const gemm_call& c, const device_info& device) {
  const gemm_options &own = options_of(kernel), &asked = c.contract;
  const unsigned kinds = kind_of(c.a) | kind_of(c.b);
  return (kernel.archs & bit_of(device.arch)) != 0 && (kinds & ~kernel.operands) == 0 && own.model == asked.model &&
         own.promotion == asked.promotion && !asked.start_from_c && kernel.grouped == (c.groups.count != 0);
}

status check_split(const gemm_kernel& kernel, const gemm_options& asked) {
  if (asked.split_k < 1 || asked.split_k > kernel.max_parts) {
    return {error_code::bad_option, "contract.split_k",
            kernel.max_parts == 1 ? "must be 1 for this kernel" : "must be 1 to 64"};
  }
  if (asked.split_k > 1 && asked.split_grain != options_of(kernel).split_grain) {
    return {error_code::bad_option, "contract.split_grain", "must be that of the contract"};
  }
  return {};
}

/// True if a later row is faster.
bool is_small(const gemm_kernel& kernel, const gemm_call& c, const device_info& device) {
  const double products = static_cast<double>(c.a.rows) * static_cast<double>(c.b.rows) * static_cast<double>(c.a.k);
  return device.arch != arch::host && products < kernel.least_products;
}

/// The call with any aligned memory in place of null pointers, for checks before there is memory.
gemm_call with_memory(gemm_call c) {
  auto* const any = reinterpret_cast<std::uint8_t*>(std::uintptr_t{256});
  for (gemm_operand* x : {&c.a, &c.b}) {
    if (x->codes == nullptr) x->codes = any;
    if (x->scales == nullptr) x->scales = any;
  }
  if (c.out == nullptr) c.out = any;
  return c;
}

status check_memory(const gemm_call& c) {
  for (const gemm_operand* x : {&c.a, &c.b}) {
    if (x->rows == 0 || x->k == 0) continue;
    if (status s = check_pointer(x->codes, 1, x == &c.a ? "a.codes" : "b.codes"); !s.ok()) return s;
    if (x->block == 0) continue;
    if (status s = check_pointer(x->scales, 1, x == &c.a ? "a.scales" : "b.scales"); !s.ok()) return s;
  }
  return c.a.rows == 0 || c.b.rows == 0 ? status{} : check_pointer(c.out, 1, "out");
}

/// The tuned table, read once per process.
struct loaded_table {
  std::vector<tuned_row> rows;
  std::string reason;
  status read;
  loaded_table() : read(load_tuned(tuned_text, rows, reason)) {}
};
const loaded_table& measurements() {
  static const loaded_table table;
  return table;
}

status select(const gemm_kernel& kernel, const gemm_call& c, const device_info& device, gemm_selection& selected) {
  selected = {};
  selected.kernel = kernel.name;
  if (c.schedule != gemm_schedule{} || kernel.tiles.size() < 2) {
    selected.schedule = whole_schedule(kernel, c.schedule);
    if (c.schedule != gemm_schedule{}) selected.from = gemm_selection::source::call;
    return {};
  }
  const loaded_table& table = measurements();
  if (table.read.ok()) choose_schedule(table.rows, device, kernel, c, selected);
  return table.read;
}

}  // namespace

std::span<const gemm_kernel> gemm_kernels() { return kernels; }

const gemm_options& options_of(const gemm_kernel& kernel) {
  static const auto made = [] {
    std::array<gemm_options, std::size(kernels)> options;
    for (std::size_t i = 0; i < options.size(); ++i) options[i] = detail::options_of(kernels[i].contract);
    return options;
  }();
  return made[static_cast<std::size_t>(&kernel - kernels)];
}

gemm_options options_of(std::string_view contract) {
  const gemm_contract_entry* const entry = find_contract(contract);
  ROTOSCALE_ASSERT(entry != nullptr);
  return contract_options(*entry, find_unit(entry->unit)->model);
}

operand_kind kind_of(const gemm_operand& x) {
  const bool fp8 = x.element == formats::e4m3 || x.element == formats::e5m2;
  if (x.block == 0) {
    return fp8 ? dense_fp8 : x.element == formats::bf16 ? dense_bf16 : other_operand;
  }
  const bool mx = x.block == 32 && x.scale == formats::e8m0;
  if (mx && (fp8 || x.element == formats::e2m1)) return fp8 ? mxfp8_blocks : mxfp4_blocks;
  return dequantizes(x.blocks()) ? other_blocks : other_operand;
}

status check_kernel(const gemm_kernel& kernel, const gemm_call& c, const device_info& device) {
  if (!is_candidate(kernel, c, device)) {
    return {error_code::unsupported_device, "contract", "this device has no kernel of it for these operands"};
  }
  if (status s = check_split(kernel, c.contract); !s.ok()) return s;
  if (status s = kernel.check(c); !s.ok()) return s;
  if (c.a.k != c.b.k) return {error_code::bad_extent, "b.k", "must equal a.k"};
  if (status s = check_result(c, c.b.rows); !s.ok()) return s;
  if (c.a.rows != 0 && c.b.rows != 0) {
    if (status s = check_pointer(c.out, c.stored == formats::bf16 ? 2 : 4, "out"); !s.ok()) return s;
  }
  if (status s = check_optional(c.bias, "bias"); !s.ok()) return s;
  if (c.output_bias != nullptr && (!kernel.biases_output || c.stored != formats::bf16)) {
    return {error_code::bad_option, "output_bias", "needs a BF16 output, and sm_90 with dense or upconverted operands"};
  }
  if (status s = check_optional(c.output_bias, "output_bias"); !s.ok()) return s;
  return check_schedule(kernel, c.schedule);
}

status find_kernel(const gemm_call& c, const device_info& device, const gemm_kernel*& found) {
  status first;
  for (const gemm_kernel& kernel : kernels) {
    const status s = check_kernel(kernel, c, device);
    if (s.ok() && !is_small(kernel, c, device)) {
      found = &kernel;
      return {};
    }
    if (first.ok() || first.code == error_code::unsupported_device) first = s;
  }
  return first;
}

status run_kernel(const gemm_kernel& kernel, const gemm_call& c, const device_info& device, void* workspace,
                  std::size_t workspace_bytes, stream stream) {
  gemm_selection selected;
  status s = check_workspace(workspace, workspace_bytes, kernel.workspace(c), 256);
  if (s.ok()) s = check_stream(stream);
  if (s.ok()) s = select(kernel, c, device, selected);
  if (!s.ok()) return s;
  return kernel.launch({c, kernel, device, selected.schedule, static_cast<std::uint8_t*>(workspace), stream});
}

status run_gemm(const gemm_call& c, const device_info& device, void* workspace, std::size_t workspace_bytes,
                stream stream) {
  const gemm_kernel* kernel = nullptr;
  if (status s = check_memory(c); !s.ok()) return s;
  if (status s = find_kernel(c, device, kernel); !s.ok()) return s;
  return run_kernel(*kernel, c, device, workspace, workspace_bytes, stream);
}

}  // namespace detail

using namespace detail;

status check_gemm(const gemm_call& c, const device_info& device) {
  const gemm_kernel* kernel = nullptr;
  return find_kernel(with_memory(c), device, kernel);
}

std::size_t gemm_workspace_bytes(const gemm_call& c, const device_info& device) {
  const gemm_kernel* kernel = nullptr;
  return find_kernel(with_memory(c), device, kernel).ok() ? kernel->workspace(c) : 0;
}

status gemm(const gemm_call& c, void* workspace, std::size_t workspace_bytes, stream s) {
  device_info device;
  if (status found = current_device(device); !found.ok()) return found;
  return run_gemm(c, device, workspace, workspace_bytes, s);
}

status select_gemm(const gemm_call& c, const device_info& device, gemm_selection& selected) {
  const gemm_kernel* kernel = nullptr;
  if (status s = find_kernel(with_memory(c), device, kernel); !s.ok()) return s;
  return select(*kernel, c, device, selected);
}

int fastest_split_k(const gemm_call& c, const device_info& device) {
  const gemm_kernel* kernel = nullptr;
  if (!find_kernel(with_memory(c), device, kernel).ok() || kernel->max_parts == 1) return 1;
  return choose_split_k(measurements().rows, device, *kernel, c);
}

const gemm_contract_entry* mode_contract(gemm_mode mode, const device_info& device, bool bf16) {
  const arch_traits& traits = traits_of(device.arch);
  const char* const name = mode == gemm_mode::reference ? (bf16 ? "mxfp8-reference" : "mxfp4-reference")
                           : bf16                       ? traits.bf16
                           : mode == gemm_mode::fast    ? traits.fast
                                                        : traits.accurate;
  return name != nullptr ? find_contract(name) : nullptr;
}

gemm_options contract_options(gemm_mode mode, const device_info& device, int split_k, bool bf16) {
  const gemm_contract_entry* const entry = mode_contract(mode, device, bf16);
  ROTOSCALE_ASSERT(entry != nullptr);
  gemm_options o = options_of(entry->name);
  o.split_k = split_k;
  return o;
}

std::string gemm_selection::message() const {
  std::string text = kernel;
  if (schedule.tile_m != 0) text += ", " + tile_text(schedule) + " tiles";
  if (schedule.stages != 0) text += ", " + std::to_string(schedule.stages) + " stages";
  text += (schedule.band != 0 ? ", raster " + raster_text(schedule) : "") + ": ";
  switch (from) {
    case source::call: return text + "the call's schedule";
    case source::heuristic: return text + "no measurement of this shape on this device; the cheapest tile";
    case source::table: break;
  }
  char measured[32];
  std::snprintf(measured, sizeof measured, "%.1f", microseconds);
  return text + "the fastest measured with M = " + std::to_string(table_m) + " (" + measured + " us)";
}

}  // namespace rotoscale::gpu
