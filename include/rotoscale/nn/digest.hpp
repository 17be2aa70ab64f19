// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Digests of the tensors that each operation writes. They compare two runs operation by operation, on any backends.
// Operands are read as codes, block scales and factors, element by element, in any layout. A weight's operands have
// their digest at their first read, because they may be made in a step or before it.
#pragma once

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::nn {

/// Digest of one written tensor.
struct operation_digest {
  std::string operation;     ///< name of the operation or tensor, with its extents
  std::uint64_t digest = 0;  ///< FNV-1a over the elements in order, with one NaN
  bool operator==(const operation_digest&) const = default;
};

/// Takes digests of a backend's operations. Each operation is waited for, and graphs run one by one.
class digest_observer final : public op_observer {
 public:
  /// Called with each digest.
  using sink = std::function<void(const operation_digest&)>;

  /// `ops` must outlive it.
  explicit digest_observer(backend& ops) : ops_(&ops) {}
  digest_observer(const digest_observer&) = delete;
  digest_observer& operator=(const digest_observer&) = delete;
  ~digest_observer() override { take_digests(nullptr); }

  /// Sends later digests to `to`. Null: none are taken.
  void take_digests(sink to) {
    sink_ = std::move(to);
    seen_weights_.clear();
    ops_->watch(sink_ ? this : nullptr);
  }

  /// Notes weights at their first read.
  void begin(queue q, std::span<const op_use> uses) override {
    for (const op_use& u : uses) {
      if (u.how != access::read || !is_weight(u.made)) continue;
      if (seen_weights_.insert({u.made.set, u.made.form}).second) note_operand(q, u.made);
    }
  }
  /// Notes outputs that have a label.
  void end(queue q, std::span<const op_use> uses) override {
    for (const op_use& u : uses) {
      if (u.digest == nullptr) continue;
      if (u.made.set == nullptr) note(q, u.digest, u.at);
      if (is_weight(u.made)) {
        for (const auto form : {operand_form::row, operand_form::column}) seen_weights_.erase({u.made.set, form});
      } else if (u.made.set != nullptr) {
        note_operand(q, u.made);
      }
    }
  }

 private:
  static constexpr std::uint64_t fnv_start = 0xCBF29CE484222325u, fnv_prime = 0x100000001B3u;
  static bool is_weight(const operand& o) { return o.set != nullptr && o.set->request().tensor == tensor_role::w; }

  /// Bits of an element, with one NaN.
  static std::uint64_t bits_of(const std::byte* at, dtype type) {
    std::uint64_t u = 0;
    std::memcpy(&u, at, static_cast<std::size_t>(size_of(type)));
    if (type == dtype::fp32 && fp32_is_nan(static_cast<std::uint32_t>(u))) return fp32_nan_bits;
    if (type == dtype::bf16 && fp32_is_nan(static_cast<std::uint32_t>(u) << 16)) return fp32_nan_bits >> 16;
    return u;
  }
  void note(queue q, const char* name, const const_tensor_view& x) {
    if (x.empty() || x.size() == 0) return;
    index_t last = 0;
    for (int d = 0; d < x.rank; ++d) last += (x.extents[d] - 1) * x.strides[d];
    (void)fetch(q, x.data, (last + 1) * size_of(x.type));
    std::uint64_t digest = fnv_start;
    for (index_t a = 0; a < x.extents[0]; ++a) {
      for (index_t b = 0; b < x.extents[1]; ++b) {
        for (index_t c = 0; c < x.extents[2]; ++c) {
          const index_t row = a * x.strides[0] + b * x.strides[1] + c * x.strides[2];
          for (index_t e = 0; e < x.extents[3]; ++e) {
            digest ^= bits_of(host_.data() + (row + e * x.strides[3]) * size_of(x.type), x.type);
            digest *= fnv_prime;
          }
        }
      }
    }
    std::string extents;
    for (int d = 0; d < x.rank; ++d) extents += (d == 0 ? " " : "x") + std::to_string(x.extents[d]);
    sink_({name + extents, digest});
  }
  std::span<const std::uint8_t> fetch(queue q, const void* from, index_t bytes) {
    host_.resize(static_cast<std::size_t>(bytes));
    ops_->download(q, host_.data(), from, host_.size());
    ops_->synchronize(q);
    return {reinterpret_cast<const std::uint8_t*>(host_.data()), host_.size()};
  }
  /// Codes by rows of the operand, scales by rows of blocks, then the factor. The order is the same on every backend.
  void note_operand(queue q, operand what) {
    const operand_request& r = what.set->request();
    if (!r.recipe(what.form) || is_source(*r.recipe(what.form), r.source)) return;
    const gemm_operand& o = ops_->described(what);
    const index_t packed_rows = o.transposed ? o.k : o.rows, block_rows = o.rows / o.block_rows;
    (void)fetch(q, o.codes, (packed_rows - 1) * o.code_stride + o.row_bytes());
    std::uint64_t digest = fnv_start;
    const auto take = [&](std::uint64_t bits) { digest = (digest ^ bits) * fnv_prime; };
    // Codes below 8 bits are read as bytes. Their rows are whole bytes and never transposed.
    const dtype type = o.element == formats::bf16 ? dtype::bf16 : dtype::u8;
    const index_t width = size_of(type), columns = o.element.bits() < 8 ? o.row_bytes() : o.k;
    const index_t down = o.transposed ? width : o.code_stride, along = o.transposed ? o.code_stride : width;
    for (index_t row = 0; row < o.rows; ++row) {
      for (index_t c = 0; c < columns; ++c) take(bits_of(host_.data() + row * down + c * along, type));
    }
    if (o.block != 0) {
      const index_t blocks = o.scale_columns();
      const auto scales = fetch(q, o.scales, (block_rows - 1) * o.scale_stride + blocks);
      for (index_t i = 0; i < block_rows * blocks; ++i) {
        take(scales[static_cast<std::size_t>(i / blocks * o.scale_stride + i % blocks)]);
      }
    }
    if (o.factor != nullptr) {
      for (const std::uint8_t byte : fetch(q, o.factor, sizeof(float))) take(byte);
    }
    constexpr const char* roles[] = {"x", "w", "dy"};
    sink_({std::string("quantize ") + roles[static_cast<int>(r.tensor)] + " by " +
               (what.form == operand_form::row ? "rows " : "columns ") +
               std::string(to_string(r.recipe(what.form)->format)) + " " + std::to_string(o.rows) + "x" +
               std::to_string(o.k),
           digest});
  }

  backend* ops_;
  sink sink_;
  std::vector<std::byte> host_;
  std::set<std::pair<const operand_set*, operand_form>> seen_weights_;  ///< operands that have a digest
};

}  // namespace rotoscale::nn
