// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Contracts by name: the stated arithmetic of operations. Recipes name the contracts of their GEMMs, backends say which
// they use, logs record them, and the CPU computes any of them. docs/reference/layers.md defines each by its
// operations.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "rotoscale/block.hpp"
#include "rotoscale/nn/attention_contract.hpp"
#include "rotoscale/nn/layer_math.hpp"

namespace rotoscale::nn {

inline constexpr const char* fp32_fma_chain_contract = "fp32_fma_chain";  ///< one FP32 fused multiply-add a product
inline constexpr const char* fp32_blockwise_contract = "fp32_blockwise";  ///< exact sums of 32 products, added in FP32

/// Arithmetic of a GEMM's sums. `options` holds the model, promotion and split-K. The call adds the output and whether
/// it accumulates.
struct gemm_contract {
  std::string name = fp32_fma_chain_contract;  ///< as recipes and logs have it
  gemm_options options;                        ///< arguments of gemm_ref
  /// Not 0: options.split_k follows from the extents, and fills as many workers with parts of tiles (split_to_fill).
  index_t split_fill = 0;
};

/// Smallest split-K for an output of rows × cols that keeps `workers` busy with tiles of 256 × 256. It is at most 16,
/// with parts of at least 2048 k, and at most a twentieth of the workers' rounds are idle. If none is so, the smallest
/// with the least idle share. A part costs a write and a read of its FP32 sums.
constexpr index_t split_to_fill(index_t workers, index_t rows, index_t cols, index_t k) {
  const index_t tiles = ((rows + 255) / 256) * ((cols + 255) / 256), most = std::clamp<index_t>(k / 2048, 1, 16);
  index_t best = 1, best_rounds = (tiles + workers - 1) / workers;
  for (index_t parts = 1; parts <= most; ++parts) {
    const index_t rounds = (tiles * parts + workers - 1) / workers;
    if (20 * tiles * parts >= 19 * rounds * workers) return parts;
    if (rounds * best < best_rounds * parts) best = parts, best_rounds = rounds;
  }
  return best;
}

namespace detail {

/// Parses the number after "key=" in one part of a contract's name.
inline bool read_setting(std::string_view text, std::string_view key, index_t least, index_t& value) {
  if (!text.starts_with(key) || text.size() <= key.size() || text[key.size()] != '=') return false;
  text.remove_prefix(key.size() + 1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= least && value <= (1 << 30);
}

/// Unit and kernel that the first part of a contract's name selects. Chains have neither.
struct unit_and_kernel {
  const mma_unit* unit = nullptr;               ///< null: no such name
  const gemm_contract_entry* kernel = nullptr;  ///< how it uses the unit
};

/// Parses KERNEL, UNIT (one accumulator) or KERNEL@UNIT. Settings after a colon are ignored.
constexpr unit_and_kernel find_unit_and_kernel(std::string_view name) {
  const std::string_view base = name.substr(0, name.find(':'));
  const std::size_t at = base.find('@');
  const gemm_contract_entry* kernel = find_contract(base.substr(0, at));
  const std::string_view own = kernel != nullptr ? std::string_view(kernel->unit) : std::string_view{};
  const std::string_view unit_name = at != base.npos ? base.substr(at + 1) : (kernel != nullptr ? own : base);
  const mma_unit* unit = find_unit(unit_name);
  if (unit == nullptr || (at != base.npos && (kernel == nullptr || !own.empty()))) return {};
  return {unit, kernel != nullptr ? kernel : find_contract("single-accumulator")};
}

}  // namespace detail

/// Codes that a BF16 unit without block scales multiplies as BF16 numbers. They have at most 8 bits, and element times
/// scale has at most 8 significant bits. Rounding to nearest even is then exact in BF16's range.
constexpr bool expands_to_bf16(const format& element, const format& scale) {
  return element.bits() <= 8 &&
         (element.mantissa_bits + 1) + (scale.mantissa_bits == 0 ? 0 : scale.mantissa_bits + 1) <=
             formats::bf16.mantissa_bits + 1;
}
static_assert(expands_to_bf16(formats::e4m3, formats::e8m0) && expands_to_bf16(formats::e2m1, formats::ue5m3));

/// True if GEMMs under this contract expand codes of operands to BF16.
constexpr bool expands_operands(std::string_view name) { return name.starts_with("mx-bf16-"); }

/// Reason why no GEMM of a recipe can run on a unit, or null. Outputs are FP32 or BF16, so accumulators must be FP32.
/// Operands are dense, and of at most 32 bits.
constexpr const char* unit_fault(const mma_unit& u) {
  if (u.model.sparse) return "multiplies a pruned A only, which no operand of a recipe is";
  if (u.model.result == mma_result::fp16_nearest) return "has FP16 accumulators, and a recipe's are FP32";
  if (u.model.result == mma_result::fp64_nearest) {
    return "multiplies FP64 only ('exact' adds the products of any operands without error)";
  }
  return nullptr;
}

namespace detail {

/// The model and kernel of a contract's first part: a chain, a kernel, a unit, or KERNEL@UNIT.
inline bool read_base(std::string_view base, gemm_options& o) {
  if (base == fp32_fma_chain_contract || base == fp32_blockwise_contract) {
    o.model = base == fp32_fma_chain_contract ? fp32_fma_chain : fp32_blockwise;
    return true;
  }
  const auto [unit, kernel] = find_unit_and_kernel(base);
  if (unit == nullptr || unit_fault(*unit) != nullptr || kernel->start_from_c) return false;
  o = contract_options(*kernel, unit->model);
  return true;
}

}  // namespace detail

/// The contract with a name, or nullopt. Names are fp32_fma_chain, fp32_blockwise, an entry of gemm_contracts that has
/// a unit, a unit of models::all (one accumulator) without a unit_fault, and `single-accumulator@UNIT`. Then may follow
/// :promotion=N, :split_k=N or :split_fill=N, :split_grain=N. find_fault checks the operands.
inline std::optional<gemm_contract> find_gemm_contract(std::string_view name) {
  gemm_contract found;
  found.name = std::string(name);
  std::size_t end = name.find(':');
  if (!detail::read_base(name.substr(0, end), found.options)) return std::nullopt;
  gemm_options& o = found.options;
  while (end != name.npos) {
    name.remove_prefix(end + 1);
    end = name.find(':');
    const std::string_view part = name.substr(0, end);
    std::string key(":");
    key.append(part.substr(0, part.find('='))).append("=");
    if (found.name.find(key) != found.name.rfind(key)) return std::nullopt;  // given twice
    if (!detail::read_setting(part, "promotion", 0, o.promotion) &&
        !detail::read_setting(part, "split_k", 1, o.split_k) &&
        !detail::read_setting(part, "split_fill", 1, found.split_fill) &&
        !detail::read_setting(part, "split_grain", 1, o.split_grain)) {
      return std::nullopt;
    }
  }
  const int step = o.model.instruction_k != 0 ? o.model.instruction_k : o.model.group == 0 ? 1 : o.model.group;
  if (o.promotion % step != 0 || (found.split_fill != 0 && found.name.find(":split_k=") != found.name.npos))
    return std::nullopt;
  return found;
}

/// The same for a GEMM of rows × cols over k.
inline std::optional<gemm_contract> find_gemm_contract(std::string_view name, index_t rows, index_t cols, index_t k) {
  std::optional<gemm_contract> found = find_gemm_contract(name);
  if (found && found->split_fill != 0) found->options.split_k = split_to_fill(found->split_fill, rows, cols, k);
  return found;
}

}  // namespace rotoscale::nn
