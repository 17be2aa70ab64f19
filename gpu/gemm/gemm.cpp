// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checks and launches of gemm.hpp. Compiled by nvcc, by hipcc, and by an ordinary C++ compiler (host mode).
#include "gpu/api/gemm.hpp"

#include "gpu/gemm/expand.hpp"
#include "gpu/gemm/expand_int8.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/reference_kernel.hpp"

#if defined(ROTOSCALE_CUDA)
#include "gpu/gemm/sm90/kernel.hpp"
#else
#include "gpu/gemm/amd/gfx942.hpp"
#include "gpu/gemm/amd/gfx950.hpp"
#endif
#if defined(ROTOSCALE_GPU_HOST)
#include "gpu/gemm/host_stand_in.hpp"
#endif

namespace rotoscale::gpu {

using namespace detail;

namespace {

/// The part of gemm_arguments that all kernels share.
gemm_arguments arguments_of(const gemm_problem& p, const gemm_options& o) {
  gemm_arguments g;
  g.m = p.a.rows;
  g.n = p.b.rows;
  g.out = p.out;
  g.out_stride = out_stride_of(p, p.b.rows);
  g.bf16_out = p.output == formats::bf16;
  const auto address = reinterpret_cast<std::uintptr_t>(p.out);
  g.vector_stores = g.bf16_out && address % 16 == 0 && g.out_stride % 8 == 0 && g.n % 8 == 0;
  g.accumulate = p.accumulate;
  g.alpha = p.alpha;
  g.beta = p.beta;
  g.bias = p.bias;
  g.base_b = second_base(g.m);
  g.nan_bits = o.model.nan_bits;
  return g;
}

status run_reference(const gemm_problem& p, const gemm_options& o, hipStream_t stream) {
  const gemm_arguments g = arguments_of(p, o);
  const std::int64_t across = (g.n + reference_threads - 1) / reference_threads;
  return launch(reference_kernel, blocks_of(across * g.m), blocks_of(reference_threads), 0, stream,
                reference_arguments{p.a, p.b, g});
}

/// What is to be expanded and where.
expand_arguments expansion_of(const gemm_problem& p, const workspace_map& map, std::uint8_t* memory) {
  const auto source = [](const gemm_operand_view& x) {
    return block_source{x.codes, x.scales, x.code_stride, x.scale_stride, x.rows, x.element};
  };
  return {source(p.a),         source(p.b),        p.a.k, memory + map.folded_a, memory + map.folded_b,
          memory + map.wide_a, memory + map.wide_b};
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
template <operand_level Level>
status multiply(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_options& o, const gemm_arguments& g,
                const gemm_device& device, hipStream_t stream) {
  CUtensorMap map_a, map_b;
  const std::int64_t row_bytes = std::int64_t{k} * (Level == operand_level::bf16 ? 2 : 1);
  if (!make_map(map_a, a, g.m, row_bytes) || !make_map(map_b, b, g.n, row_bytes)) {
    return {fault::device_error, "", "the driver made no tensor map"};
  }
  const auto tiles_along = [](int extent) { return (extent + window_tile - 1) / window_tile; };
  const int work = tiles_along(g.m) * tiles_along(g.n) * g.parts;
  const int clusters = work < device.units / 2 ? work : device.units / 2;
  const auto kernel = Level == operand_level::int8   ? kernel_of<sm90::int8_tile>(g)
                      : Level == operand_level::bf16 ? kernel_of<sm90::bf16_tile>(g)
                      : o.promotion == 128           ? kernel_of<sm90::fp8_tile<128>>(g)
                                                     : kernel_of<sm90::fp8_tile<32>>(g);
  return launch(kernel, blocks_of(2 * clusters), blocks_of(sm90::threads), sm90::shared_size, stream, map_a, map_b, g);
}

#else

template <operand_level Level>
status multiply(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_options& o, const gemm_arguments& g,
                const gemm_device&, hipStream_t stream) {
  const std::int64_t across = (g.n + emulated_threads - 1) / emulated_threads;
  return launch(emulated_kernel, blocks_of(across * g.m), blocks_of(emulated_threads), 0, stream,
                emulated_arguments{a, b, Level, k, o, g});
}

#endif

/// Where some blocks look at the levels and, as a rule, leave; else they share the work.
inline constexpr int looking_blocks = 528;

/// Expands both operands, multiplies them, and adds the parts of K. Every tile is computed by the kernel of its level;
/// int8 lies where BF16 will, so the rest is expanded when the int8 kernel is done.
status run_expanded(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const gemm_device& device,
                    hipStream_t stream) {
  const workspace_map map(p, c, device);
  const gemm_options folded = options_of(c.contract, device), wide = options_of(c.contract, device, 1, true);
  const bool folds = detail::folds(p, c, device), int8 = folds_int8(p, c, device);
  gemm_arguments g = arguments_of(p, wide);
  const split parts = split_of(p.a.k, c.split_k, grain_of(device));
  g.parts = parts.parts;
  g.partial = reinterpret_cast<float*>(memory + map.partial);
  expand_arguments e = expansion_of(p, map, memory);
  e.base_b = g.base_b;
  const int rows = g.m + g.n, k = p.a.k, blocks = expand_blocks(rows, k);
  const auto expand = [&](void (*kernel)(expand_arguments), int count) {
    return launch(kernel, blocks_of(count), blocks_of(expand_threads), 0, stream, e);
  };
  status s;
  if (folds) {
    g.base = e.base = reinterpret_cast<int*>(memory + map.base);
    g.levels = e.levels = reinterpret_cast<operand_level*>(memory + map.levels);
    g.least_level = e.least_level = int8 ? operand_level::int8 : operand_level::e5m2;
    g.k_boxes = (k + 127) / 128;
    g.part_boxes = parts.part_k / 128;
    s = int8 ? expand(expand_int8_kernel, (rows + int8_rows(k) - 1) / int8_rows(k))
             : expand(expand_e5m2_kernel, blocks);
  }
  if (s.ok() && int8) s = multiply<operand_level::int8>(e.wide_a, e.wide_b, k, folded, g, device, stream);
  if (s.ok()) s = expand(expand_rest_kernel, folds && blocks > looking_blocks ? looking_blocks : blocks);
  if (s.ok() && folds) s = multiply<operand_level::e5m2>(e.folded_a, e.folded_b, k, folded, g, device, stream);
  g.k_boxes = (2 * k + 127) / 128;
  g.part_boxes = parts.part_k / 64;
  if (s.ok()) s = multiply<operand_level::bf16>(e.wide_a, e.wide_b, k, wide, g, device, stream);
  return s.ok() && g.parts > 1 ? finish_parts(g, stream) : s;
}

#endif

#if !defined(ROTOSCALE_CUDA)

/// BF16 in rows of whole 8 bytes, without C and bias: what AMD's kernels store themselves.
bool is_plain(const gemm_problem& p, const gemm_arguments& g) {
  return g.vector_stores && !p.accumulate && p.bias == nullptr;
}

/// A grid of tiles of `tile` × `tile` outputs and parts of K.
dim3 tiles_of(const gemm_arguments& g, int tile) {
  const auto along = [tile](int extent) { return static_cast<unsigned>((extent + tile - 1) / tile); };
  return {along(g.n), along(g.m), static_cast<unsigned>(g.parts)};
}

/// MXFP4 from the operands themselves; MXFP8 expanded to BF16 first.
status run_gfx942(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const gemm_device& device,
                  hipStream_t stream) {
  const gemm_arguments g = arguments_of(p, options_of(c.contract, device, 1, is_fp8(p)));
  const dim3 grid = tiles_of(g, gfx942::tile), block = blocks_of(gfx942::threads);
  if (!is_fp8(p)) {
    const auto kernel = is_plain(p, g) ? gfx942::gemm_kernel<true> : gfx942::gemm_kernel<false>;
    return launch(kernel, grid, block, 0, stream, gfx942::arguments{p.a, p.b, g});
  }
  const expand_arguments e = expansion_of(p, workspace_map(p, c, device), memory);
  const status s =
      launch(expand_rest_kernel, blocks_of(expand_blocks(g.m + g.n, p.a.k)), blocks_of(expand_threads), 0, stream, e);
  if (!s.ok()) return s;
  const auto kernel = is_plain(p, g) ? gfx942::bf16_kernel<true> : gfx942::bf16_kernel<false>;
  return launch(kernel, grid, block, 0, stream, gfx942::bf16_arguments{e.wide_a, e.wide_b, p.a.k, g});
}

using gfx950_kernel = void (*)(gfx950::arguments);
template <gemm_element A, gemm_element B>
gfx950_kernel kernel_of_elements(bool shuffled, bool partial) {
  if (shuffled && partial) return gfx950::gemm_kernel<A, B, true, output_mode::partial>;
  if (shuffled) return gfx950::gemm_kernel<A, B, true, output_mode::plain>;
  if (partial) return gfx950::gemm_kernel<A, B, false, output_mode::partial>;
  return gfx950::gemm_kernel<A, B, false, output_mode::plain>;
}
gfx950_kernel gfx950_kernel_of(const gemm_problem& p, bool partial) {
  using enum gemm_element;
  const bool shuffled = p.a.code_order != placement::row_major;
  if (p.a.element == e2m1) return kernel_of_elements<e2m1, e2m1>(shuffled, partial);
  if (p.a.element == e4m3) {
    return p.b.element == e4m3 ? kernel_of_elements<e4m3, e4m3>(shuffled, partial)
                               : kernel_of_elements<e4m3, e5m2>(shuffled, partial);
  }
  return p.b.element == e4m3 ? kernel_of_elements<e5m2, e4m3>(shuffled, partial)
                             : kernel_of_elements<e5m2, e5m2>(shuffled, partial);
}

status run_gfx950(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const gemm_device& device,
                  hipStream_t stream) {
  gemm_arguments g = arguments_of(p, options_of(c.contract, device, 1, is_fp8(p)));
  const split parts = split_of(p.a.k, c.split_k, grain_of(device));
  g.parts = parts.parts;
  g.partial = reinterpret_cast<float*>(memory + workspace_map(p, c, device).partial);
  const auto operand = [](const gemm_operand_view& x) {
    return gfx950::operand{x.codes, reinterpret_cast<const std::uint32_t*>(x.scales), x.code_stride, x.rows};
  };
  const gfx950::arguments all{operand(p.a), operand(p.b), p.a.k, parts.part_k, g};
  const bool partial = writes_partial(p, c, device);
  const status s =
      launch(gfx950_kernel_of(p, partial), tiles_of(g, gfx950::tile), blocks_of(gfx950::threads), 0, stream, all);
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
  return check_problem(p, c, device);
}

std::size_t gemm_workspace_bytes(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  return check_gemm(p, c, device).ok() ? workspace_map(p, c, device).size : 0;
}

status detail::run_gemm(const gemm_problem& p, const gemm_choice& c, const gemm_device& device, void* workspace,
                        std::size_t workspace_bytes, hipStream_t stream) {
  status s = check_gemm(p, c, device);
  if (!s.ok()) return s;
  s = check_workspace(workspace, workspace_bytes, gemm_workspace_bytes(p, c, device));
  if (s.ok()) s = check_stream(stream);
  if (!s.ok()) return s;
  if (c.contract == gemm_contract::reference)
    return run_reference(p, options_of(c.contract, device, 1, is_fp8(p)), stream);
  const auto memory = static_cast<std::uint8_t*>(workspace);
#if !defined(ROTOSCALE_CUDA)
  if (arch_is(device, "gfx942")) return run_gfx942(p, c, memory, device, stream);
  if (arch_is(device, "gfx950")) return run_gfx950(p, c, memory, device, stream);
#endif
#if !defined(ROTOSCALE_AMD)
  return run_expanded(p, c, memory, device, stream);
#else
  return {fault::unsupported_device, "choice.contract", "this device has the reference kernel only"};
#endif
}

namespace {

status run(const gemm_problem& p, const gemm_choice& c, void* workspace, std::size_t workspace_bytes,
           hipStream_t stream) {
  gemm_device device;
  const status s = current_device(device);
  return s.ok() ? run_gemm(p, c, device, workspace, workspace_bytes, stream) : s;
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
