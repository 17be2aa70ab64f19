// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checks and launches of gemm.hpp. Compiled by nvcc, by hipcc, and by an ordinary C++ compiler (host mode).
#include "gpu/gemm.hpp"

#include "gpu/gemm_expand.hpp"
#include "gpu/gemm_reference.hpp"
#include "gpu/launch.hpp"

#if defined(ROTOSCALE_CUDA)
#include "gpu/gemm_sm90.hpp"
#elif defined(ROTOSCALE_AMD)
#include "gpu/gemm_gfx942.hpp"
#include "gpu/gemm_gfx950.hpp"
#else
#include "gpu/gemm_emulated.hpp"
#endif

namespace rotoscale::gpu {

namespace {

constexpr int most_extent = 1 << 20, most_parts = 64;

bool arch_is(const gemm_device& device, const char* name) { return std::string(device.arch) == name; }
bool expands(const gemm_device& device) { return arch_is(device, "sm_90") || arch_is(device, "host"); }

/// Greatest number of k that a part of K is a multiple of.
int grain_of(const gemm_device& device) { return expands(device) ? 128 : 256; }

struct split {
  int parts, part_k;
};
/// As accumulate_ref cuts K: parts of equal length but for the last; there may be fewer than asked for.
split split_of(int k, int parts, int grain) {
  const int part = (k + parts * grain - 1) / (parts * grain) * grain;
  return {(k + part - 1) / part, part};
}

/// Does the kernel itself write the output, or FP32 sums that another one finishes?
bool writes_partial(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  if (c.contract == gemm_contract::reference) return false;
  if (split_of(p.a.k, c.split_k, grain_of(device)).parts > 1) return true;
  if (!arch_is(device, "gfx950")) return false;
  const index_t stride = p.out_stride == 0 ? p.b.rows : p.out_stride;
  const bool wide = reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0 && stride % 8 == 0 && p.b.rows % 8 == 0;
  return p.output != formats::bf16 || p.accumulate || p.bias != nullptr || !wide;
}

bool is_fp8(const gemm_problem& p) { return p.a.element != gemm_element::e2m1; }
/// Are scales folded into E5M2?
bool folds(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  return c.contract != gemm_contract::reference && !is_fp8(p) && expands(device);
}

/// Parts of the workspace, offsets in bytes.
struct workspace_map {
  std::size_t folded_a = 0, folded_b = 0, wide_a = 0, wide_b = 0, base = 0, flags = 0, partial = 0, size = 0;
  workspace_map(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
    const auto m = static_cast<std::size_t>(p.a.rows), n = static_cast<std::size_t>(p.b.rows);
    const auto k = static_cast<std::size_t>(p.a.k);
    const bool uses_expansion = c.contract != gemm_contract::reference && expands(device);
    const bool folded = folds(p, c, device);
    folded_a = take(folded ? m * k : 0);
    folded_b = take(folded ? n * k : 0);
    wide_a = take(uses_expansion ? 2 * m * k : 0);
    wide_b = take(uses_expansion ? 2 * n * k : 0);
    base = take(folded ? 4 * (m + n) : 0);
    flags = take(folded ? m + n : 0);
    const int parts = split_of(p.a.k, c.split_k, grain_of(device)).parts;
    partial = take(writes_partial(p, c, device) ? 4 * m * n * static_cast<std::size_t>(parts) : 0);
  }

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t at = size;
    size += (bytes + 255) / 256 * 256;
    return at;
  }
};

status check_operand(const gemm_operand_view& x, bool first, bool plain_codes, bool plain_scales) {
  const auto named = [first](const char* a, const char* b) { return first ? a : b; };
  if (x.rows < 1 || x.rows > most_extent) return {fault::bad_extent, named("a.rows", "b.rows"), "must be 1 to 2^20"};
  if (x.k < 32 || x.k > most_extent || x.k % 32 != 0) {
    return {fault::bad_extent, named("a.k", "b.k"), "must be a multiple of 32 up to 2^20"};
  }
  if (plain_codes && x.code_order != placement::row_major) {
    return {fault::bad_option, named("a.code_order", "b.code_order"), "this kernel takes row-major codes"};
  }
  if (plain_scales && x.scale_order != placement::row_major) {
    return {fault::bad_option, named("a.scale_order", "b.scale_order"), "this kernel takes row-major scales"};
  }
  if (x.code_order != placement::row_major && !layout{x.code_order, x.rows, x.code_bytes()}.is_defined()) {
    return {fault::bad_extent, named("a.rows", "b.rows"), "this order of codes needs whole tiles"};
  }
  if (x.code_order == placement::row_major && (x.code_stride < x.code_bytes() || x.code_stride % 16 != 0)) {
    return {fault::bad_extent, named("a.code_stride", "b.code_stride"),
            "must be a multiple of 16, at least a row's bytes"};
  }
  if (x.scale_order == placement::row_major && x.scale_stride < x.k / 32) {
    return {fault::bad_extent, named("a.scale_stride", "b.scale_stride"), "must be at least k / 32"};
  }
  const status codes = check_pointer(x.codes, 16, named("a.codes", "b.codes"));
  if (!codes.ok()) return codes;
  return check_pointer(x.scales, x.scale_order == placement::row_major ? 1 : 4, named("a.scales", "b.scales"));
}

status check_gfx950(const gemm_problem& p) {
  if (p.a.k % 256 != 0) return {fault::bad_extent, "a.k", "must be a multiple of 256 on gfx950"};
  if (p.b.code_order != placement::aiter_data_16x16) {
    return {fault::bad_option, "b.code_order", "must be aiter_data_16x16 on gfx950"};
  }
  for (const gemm_operand_view* x : {&p.a, &p.b}) {
    if (x->scale_order != placement::aiter_scale) {
      return {fault::bad_option, x == &p.a ? "a.scale_order" : "b.scale_order", "must be aiter_scale on gfx950"};
    }
  }
  if (p.a.code_order != placement::row_major && p.a.code_order != placement::aiter_data_16x16) {
    return {fault::bad_option, "a.code_order", "must be row_major or aiter_data_16x16 on gfx950"};
  }
  return {};
}

status check_gfx942(const gemm_problem& p) {
  if (p.a.k % 128 != 0) return {fault::bad_extent, "a.k", "must be a multiple of 128 on gfx942"};
  for (const gemm_operand_view* x : {&p.a, &p.b}) {
    const bool first = x == &p.a;
    if (x->scale_stride % 4 != 0) {
      return {fault::bad_extent, first ? "a.scale_stride" : "b.scale_stride", "must be a multiple of 4 on gfx942"};
    }
    const status s = check_pointer(x->scales, 4, first ? "a.scales" : "b.scales");
    if (!s.ok()) return s;
  }
  return {};
}

index_t out_stride_of(const gemm_problem& p) { return p.out_stride == 0 ? p.b.rows : p.out_stride; }

/// The part of gemm_arguments that all kernels share.
gemm_arguments arguments_of(const gemm_problem& p, const gemm_options& o) {
  gemm_arguments g;
  g.m = p.a.rows;
  g.n = p.b.rows;
  g.out = p.out;
  g.out_stride = out_stride_of(p);
  g.bf16_out = p.output == formats::bf16;
  const auto address = reinterpret_cast<std::uintptr_t>(p.out);
  g.vector_stores = g.bf16_out && address % 16 == 0 && g.out_stride % 8 == 0 && g.n % 8 == 0;
  g.accumulate = p.accumulate;
  g.alpha = p.alpha;
  g.beta = p.beta;
  g.bias = p.bias;
  g.base_b = g.m;
  g.nan_bits = o.model.nan_bits;
  return g;
}

dim3 blocks_of(std::int64_t count) { return {static_cast<unsigned>(count), 1, 1}; }

status finish_parts(const gemm_arguments& g, hipStream_t stream) {
  const std::int64_t across = (g.n + add_threads - 1) / add_threads;
  return launch(add_parts_kernel, blocks_of(across * g.m), blocks_of(add_threads), 0, stream, g);
}

status run_reference(const gemm_problem& p, const gemm_options& o, hipStream_t stream) {
  const gemm_arguments g = arguments_of(p, o);
  const std::int64_t across = (g.n + reference_threads - 1) / reference_threads;
  return launch(reference_kernel, blocks_of(across * g.m), blocks_of(reference_threads), 0, stream,
                reference_arguments{p.a, p.b, g});
}

#if !defined(ROTOSCALE_AMD)

#if defined(ROTOSCALE_CUDA)

using encode_function = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                     const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

encode_function find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
          cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<encode_function>(function);
}

/// Boxes of 128 rows × 128 bytes of a matrix of bytes; beyond its edges the copy engine writes zeros.
bool make_map(CUtensorMap& map, const void* data, int rows, std::int64_t row_bytes) {
  static const encode_function encode = find_encoder();
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {sm90::box_bytes, sm90::box_rows}, steps[2] = {1, 1};
  return encode != nullptr &&
         encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class Tile>
auto kernel_of(const gemm_arguments& g) {
  if (g.parts > 1) return sm90::gemm_kernel<Tile, output_mode::partial>;
  const bool plain = g.vector_stores && !g.accumulate && g.bias == nullptr;
  return plain ? sm90::gemm_kernel<Tile, output_mode::plain> : sm90::gemm_kernel<Tile, output_mode::general>;
}

/// Multiplies expanded operands.
template <bool Fp8>
status multiply(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_options& o, const gemm_arguments& g,
                const gemm_device& device, hipStream_t stream) {
  CUtensorMap map_a, map_b;
  const std::int64_t row_bytes = std::int64_t{k} * (Fp8 ? 1 : 2);
  if (!make_map(map_a, a, g.m, row_bytes) || !make_map(map_b, b, g.n, row_bytes)) {
    return {fault::device_error, "", "the driver made no tensor map"};
  }
  const auto tiles_along = [](int extent) { return (extent + window_tile - 1) / window_tile; };
  const int work = tiles_along(g.m) * tiles_along(g.n) * g.parts;
  const int clusters = work < device.units / 2 ? work : device.units / 2;
  const auto kernel = !Fp8                 ? kernel_of<sm90::bf16_tile>(g)
                      : o.promotion == 128 ? kernel_of<sm90::fp8_tile<128>>(g)
                                           : kernel_of<sm90::fp8_tile<32>>(g);
  return launch(kernel, blocks_of(2 * clusters), blocks_of(sm90::threads), sm90::shared_size, stream, map_a, map_b, g);
}

#else

template <bool Fp8>
status multiply(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_options& o, const gemm_arguments& g,
                const gemm_device&, hipStream_t stream) {
  const std::int64_t across = (g.n + emulated_threads - 1) / emulated_threads;
  return launch(emulated_kernel, blocks_of(across * g.m), blocks_of(emulated_threads), 0, stream,
                emulated_arguments{a, b, Fp8, k, o, g});
}

#endif

/// Expands both operands, multiplies them, and adds the parts of K.
status run_expanded(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const gemm_device& device,
                    hipStream_t stream) {
  const workspace_map map(p, c, device);
  const gemm_options folded = options_of(c.contract, device), wide = options_of(c.contract, device, 1, true);
  gemm_arguments g = arguments_of(p, wide);
  const split parts = split_of(p.a.k, c.split_k, grain_of(device));
  g.parts = parts.parts;
  g.partial = reinterpret_cast<float*>(memory + map.partial);
  const auto source = [](const gemm_operand_view& x) {
    return block_source{x.codes, x.scales, x.code_stride, x.scale_stride, x.rows, x.element};
  };
  expand_arguments e{source(p.a), source(p.b), p.a.k, memory + map.wide_a, memory + map.wide_b};
  const std::int64_t units = (std::int64_t{g.m} + g.n) * expand_pieces(p.a.k);
  const std::int64_t groups = (units + expand_segments - 1) / expand_segments;
  // Without flags all rows are expanded by as many blocks; with them a few blocks look and, as a rule, leave.
  std::int64_t wide_blocks = groups;
  if (folds(p, c, device)) {
    g.base = reinterpret_cast<int*>(memory + map.base);
    g.flags = memory + map.flags;
    expand_arguments f = e;
    f.target_a = memory + map.folded_a;
    f.target_b = memory + map.folded_b;
    f.base = reinterpret_cast<int*>(memory + map.base);
    f.flags = e.flags = memory + map.flags;
    status s = launch(expand_e5m2_kernel, blocks_of(groups), blocks_of(expand_threads), 0, stream, f);
    if (!s.ok()) return s;
    g.k_boxes = (p.a.k + 127) / 128;
    g.part_boxes = parts.part_k / 128;
    s = multiply<true>(f.target_a, f.target_b, p.a.k, folded, g, device, stream);
    if (!s.ok()) return s;
    wide_blocks = groups < 264 ? groups : 264;
  }
  status s = launch(expand_bf16_kernel, blocks_of(wide_blocks), blocks_of(expand_threads), 0, stream, e);
  if (!s.ok()) return s;
  g.k_boxes = (2 * p.a.k + 127) / 128;
  g.part_boxes = parts.part_k / 64;
  s = multiply<false>(e.target_a, e.target_b, p.a.k, wide, g, device, stream);
  if (!s.ok() || g.parts == 1) return s;
  return finish_parts(g, stream);
}

#else

/// BF16 in rows of whole 8 bytes, without C and bias: what AMD's kernels store themselves.
bool is_plain(const gemm_problem& p, const gemm_arguments& g) {
  return g.vector_stores && !p.accumulate && p.bias == nullptr;
}

status run_gfx942(const gemm_problem& p, const gemm_choice& c, const gemm_device& device, hipStream_t stream) {
  const gfx942::arguments all{p.a, p.b, arguments_of(p, options_of(c.contract, device))};
  const auto tiles = [](int extent) { return static_cast<unsigned>((extent + gfx942::tile - 1) / gfx942::tile); };
  const auto kernel = is_plain(p, all.p) ? gfx942::gemm_kernel<true> : gfx942::gemm_kernel<false>;
  return launch(kernel, dim3{tiles(all.p.n), tiles(all.p.m), 1}, blocks_of(gfx942::threads), 0, stream, all);
}

status run_gfx950(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const gemm_device& device,
                  hipStream_t stream) {
  gemm_arguments g = arguments_of(p, options_of(c.contract, device));
  const split parts = split_of(p.a.k, c.split_k, grain_of(device));
  g.parts = parts.parts;
  g.partial = reinterpret_cast<float*>(memory + workspace_map(p, c, device).partial);
  const auto operand = [](const gemm_operand_view& x) {
    return gfx950::operand{x.codes, reinterpret_cast<const std::uint32_t*>(x.scales), x.code_stride, x.rows};
  };
  const gfx950::arguments all{operand(p.a), operand(p.b), p.a.k, parts.part_k, g};
  const auto tiles = [](int extent) { return static_cast<unsigned>((extent + gfx950::tile - 1) / gfx950::tile); };
  const dim3 grid{tiles(g.n), tiles(g.m), static_cast<unsigned>(g.parts)};
  const bool shuffled = p.a.code_order != placement::row_major, partial = writes_partial(p, c, device);
  const auto kernel =
      shuffled
          ? (partial ? gfx950::gemm_kernel<true, output_mode::partial> : gfx950::gemm_kernel<true, output_mode::plain>)
          : (partial ? gfx950::gemm_kernel<false, output_mode::partial>
                     : gfx950::gemm_kernel<false, output_mode::plain>);
  const status s = launch(kernel, grid, blocks_of(gfx950::threads), 0, stream, all);
  return s.ok() && partial ? finish_parts(g, stream) : s;
}

#endif

}  // namespace

status current_device(gemm_device& device) {
  const status found = check_device();
  if (!found.ok()) return found;
#if defined(ROTOSCALE_CUDA)
  int id = 0, major = 0, minor = 0;
  hipError_t error = hipGetDevice(&id);
  if (error == hipSuccess) error = hipDeviceGetAttribute(&device.units, hipDeviceAttributeMultiprocessorCount, id);
  if (error == hipSuccess) error = hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, id);
  if (error == hipSuccess) error = hipDeviceGetAttribute(&minor, hipDeviceAttributeComputeCapabilityMinor, id);
  if (error != hipSuccess) return status_of(error);
  device.arch = major == 9 && minor == 0 ? "sm_90" : "";
#elif defined(ROTOSCALE_AMD)
  int id = 0;
  hipDeviceProp_t properties;
  hipError_t error = hipGetDevice(&id);
  if (error == hipSuccess) error = hipGetDeviceProperties(&properties, id);
  if (error != hipSuccess) return status_of(error);
  device.units = properties.multiProcessorCount;
  const std::string name = properties.gcnArchName;
  device.arch = name.starts_with("gfx950") ? "gfx950" : name.starts_with("gfx942") ? "gfx942" : "";
#else
  device = {"host", 1};
#endif
  return {};
}

status check_gemm(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  const bool reference = c.contract == gemm_contract::reference;
  if (!reference && device.arch[0] == '\0') {
    return {fault::unsupported_device, "choice.contract", "this device has the reference kernel only"};
  }
  if ((p.a.element == gemm_element::e2m1) != (p.b.element == gemm_element::e2m1)) {
    return {fault::bad_option, "b.element", "must be E2M1 where a's is, else E4M3 or E5M2"};
  }
  if (is_fp8(p) && !reference && !expands(device)) {
    return {fault::unsupported_device, "a.element", "FP8 blocks: this device has the reference kernel only"};
  }
  const bool gfx950 = arch_is(device, "gfx950"), plain = !reference && !gfx950;
  for (const gemm_operand_view* x : {&p.a, &p.b}) {
    const status s = check_operand(*x, x == &p.a, plain, plain);
    if (!s.ok()) return s;
  }
  if (p.a.k != p.b.k) return {fault::bad_extent, "b.k", "must equal a.k"};
  if (!reference && !expands(device)) {
    const status s = gfx950 ? check_gfx950(p) : check_gfx942(p);
    if (!s.ok()) return s;
  }
  if (p.output != formats::bf16 && p.output != formats::fp32) {
    return {fault::bad_option, "output", "must be BF16 or FP32"};
  }
  const status out = check_pointer(p.out, p.output == formats::bf16 ? 2 : 4, "out");
  if (!out.ok()) return out;
  if (out_stride_of(p) < p.b.rows) return {fault::bad_extent, "out_stride", "must be at least n"};
  if (p.bias != nullptr && reinterpret_cast<std::uintptr_t>(p.bias) % 4 != 0) {
    return {fault::bad_pointer, "bias", "must be aligned to its element"};
  }
  const bool one_part = reference || arch_is(device, "gfx942");
  if (c.split_k < 1 || c.split_k > most_parts || (one_part && c.split_k != 1)) {
    return {fault::bad_option, "choice.split_k", one_part ? "must be 1 for this kernel" : "must be 1 to 64"};
  }
  return {};
}

std::size_t gemm_workspace_bytes(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  return check_gemm(p, c, device).ok() ? workspace_map(p, c, device).size : 0;
}

namespace {

status run(const gemm_problem& p, const gemm_choice& c, void* workspace, std::size_t workspace_bytes,
           hipStream_t stream) {
  gemm_device device;
  status s = current_device(device);
  if (s.ok()) s = check_gemm(p, c, device);
  if (!s.ok()) return s;
  const std::size_t needed = gemm_workspace_bytes(p, c, device);
  if (needed > 0) {
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0 || workspace == nullptr) {
      return {fault::bad_pointer, "workspace", "must be device memory aligned to 256 bytes"};
    }
    if (workspace_bytes < needed) {
      return {fault::out_of_memory, "workspace_bytes", "less than gemm_workspace_bytes"};
    }
  }
  if (c.contract == gemm_contract::reference)
    return run_reference(p, options_of(c.contract, device, 1, is_fp8(p)), stream);
#if defined(ROTOSCALE_AMD)
  if (arch_is(device, "gfx942")) return run_gfx942(p, c, device, stream);
  return run_gfx950(p, c, static_cast<std::uint8_t*>(workspace), device, stream);
#else
  return run_expanded(p, c, static_cast<std::uint8_t*>(workspace), device, stream);
#endif
}

}  // namespace

status gemm_mxfp4(const gemm_problem& p, const gemm_choice& c, void* workspace, std::size_t workspace_bytes,
                  hipStream_t stream) {
  if (is_fp8(p)) return {fault::bad_option, "a.element", "must be E2M1"};
  return run(p, c, workspace, workspace_bytes, stream);
}

status gemm_mxfp8(const gemm_problem& p, const gemm_choice& c, void* workspace, std::size_t workspace_bytes,
                  hipStream_t stream) {
  if (!is_fp8(p)) return {fault::bad_option, "a.element", "must be E4M3 or E5M2"};
  return run(p, c, workspace, workspace_bytes, stream);
}

}  // namespace rotoscale::gpu
