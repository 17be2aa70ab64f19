// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// fp32_fma_chain and fp32_blockwise against the CPU's gemm, by bytes: every element, stride and output, ragged extents,
// all kinds of numbers. Host compiler only.
#include <doctest/doctest.h>

#include <cstring>

#include "gpu/api/dequantize.hpp"
#include "gpu/gemm/data.hpp"
#include "oracle/share.hpp"
#include "rotoscale/gemm.hpp"

namespace gemm_simt_test {

using namespace gpu_test;

/// Elements of one byte or more on the host and the device, row-major or transposed.
struct dense_data {
  array<std::uint8_t> codes;
  array<float> factor;
  format element;
  int rows, k;
  index_t stride;
  bool transposed;

  /// `kind` 0: numbers between -2 and 2; 1: any bits.
  dense_data(format e, int r, int length, bool t, unsigned seed, int kind)
      : codes(make(e, (t ? length : r), (t ? r : length) + 3, seed, kind)),
        factor({kind == 0 ? 0.3f : 3.0f}),
        element(e),
        rows(r),
        k(length),
        stride(((t ? r : length) + 3) * e.bits() / 8),
        transposed(t) {}

  static bytes make(format e, int packed_rows, int width, unsigned seed, int kind) {
    std::mt19937 random(seed);
    bytes out;
    for (int i = 0; i < packed_rows * width; ++i) {
      std::uint64_t code = random();
      if (kind == 0) {
        code = encode(e, static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 1000.0f, rounding::nearest_even,
                      overflow::saturate);
      }
      for (int b = 0; b < e.bits(); b += 8) out.push_back(static_cast<std::uint8_t>(code >> b));
    }
    return out;
  }
  gemm_operand view(bool on_device, bool with_factor) const {
    gemm_operand o;
    o.element = element;
    o.rows = rows;
    o.k = k;
    o.codes = on_device ? codes.there : codes.here.data();
    o.code_stride = stride;
    o.transposed = transposed;
    if (with_factor) o.factor = on_device ? factor.there : factor.here.data();
    return o;
  }
};

gemm_operand view_here(const matrix_data& m) {
  gemm_operand o = m.view();
  o.codes = m.codes.here.data();
  o.scales = m.scales.here.data();
  return o;
}

constexpr mma_model chain = fp32_fma_chain, blockwise = fp32_blockwise;

/// Every kernel that takes the call, against the CPU.
void compare(const mma_model& sum, const gemm_operand& a, const gemm_operand& b, const gemm_operand& a_there,
             const gemm_operand& b_there, int output, bool accumulate) {
  const index_t m = a.rows, n = b.rows, stride = n % 8 == 0 ? n : n + 5;  // aligned and unaligned rows
  const auto count = static_cast<std::size_t>(m * stride);
  std::vector<float> before(count);
  std::mt19937 random(7);
  for (float& x : before) x = static_cast<float>(random() % 1000) - 500.0f;
  gemm_options o;
  o.model = sum;
  o.output = output == 0 ? formats::fp32 : formats::bf16;
  o.accumulate = accumulate;
  std::vector<float> want = before;
  matrix<float> c{want.data(), {m, n}, {stride, 1}};
  static thread_pool pool(1);
  rotoscale::gemm(a, b, o, c, pool);
  gemm_call r{{}, a_there, b_there, o};
  r.output = o.output;
  r.out_stride = stride;
  r.accumulate = accumulate;
  r.stored = output == 2 ? formats::bf16 : formats::fp32;
  array<std::uint8_t> any(bytes(16));
  r.out = any.there;
  each_kernel(r, [&](const gpu::detail::gemm_kernel& kernel) {
    array<float> wide(before);
    array<std::uint16_t> narrow(std::vector<std::uint16_t>(count, 0x1234));
    r.out = output == 2 ? static_cast<void*>(narrow.there) : static_cast<void*>(wide.there);
    const std::size_t needed = kernel.workspace(r);
    const array<std::uint8_t> workspace(bytes(needed + 1, 0xA5));
    const status s = gpu::detail::run_kernel(kernel, r, device, workspace.there, needed, {});
    REQUIRE_MESSAGE(s.ok(), s.message());
    if (output == 2) {
      narrow.fetch();
      std::vector<std::uint16_t> expected(count, 0x1234);
      for (index_t i = 0; i < m; ++i) {
        for (index_t j = 0; j < n; ++j) {
          const std::uint32_t u = fp32_bits(c(i, j));
          expected[static_cast<std::size_t>(i * stride + j)] =
              static_cast<std::uint16_t>(fp32_is_nan(u) ? 0x7FC0u | (u >> 16 & 0x8000u) : u >> 16);
        }
      }
      CHECK(narrow.here == expected);
      CHECK(narrow.guards_hold());
    } else {
      wide.fetch();
      CHECK(std::memcmp(wide.here.data(), want.data(), count * sizeof(float)) == 0);
      CHECK(wide.guards_hold());
    }
  });
}

struct extents {
  int m, n, k;
};
constexpr extents small[] = {{1, 1, 1}, {5, 70, 33}, {40, 33, 64}, {17, 129, 31}, {3, 18, 0}};

TEST_CASE("chains of FP32, BF16 and FP8, transposed and not") {
  for (const extents& e : small) {
    for (const format& f : {formats::fp32, formats::bf16, formats::e4m3, formats::e5m2}) {
      for (const int variant : {0, 1, 2, 3}) {
        for (const int kind : {0, 1}) {
          CAPTURE(e.m);
          CAPTURE(f.bits());
          CAPTURE(variant);
          CAPTURE(kind);
          const dense_data a(f, e.m, e.k, variant % 2 != 0, 1, kind), b(f, e.n, e.k, variant / 2 != 0, 2, kind);
          const bool factor = f.bits() == 8;
          compare(chain, a.view(false, factor), b.view(false, factor), a.view(true, factor), b.view(true, factor),
                  variant % 3, variant == 3);
        }
      }
    }
  }
}

TEST_CASE("chains in tiles of every size, of more than two steps") {
  device_info device;
  REQUIRE(current_device(device).ok());
  // The launcher selects tiles of 16, 32, 64 and 128 columns for these block counts.
  for (const int n : {16 * device.processors - 3, 16 * device.processors + 5, 64 * device.processors - 3,
                      128 * device.processors - 3}) {
    for (const format& f : {formats::fp32, formats::bf16, formats::e5m2}) {
      for (const int variant : {0, 1, 2, 3}) {
        CAPTURE(n);
        CAPTURE(f.bits());
        CAPTURE(variant);
        const dense_data a(f, 9, 141, variant % 2 != 0, 1, 0), b(f, n, 141, variant / 2 != 0, 2, 0);
        compare(chain, a.view(false, false), b.view(false, false), a.view(true, false), b.view(true, false),
                variant % 3, variant == 3);
      }
    }
    const matrix_data x = random_matrix(9, 160, 5, scales_of::ordinary), y = random_matrix(n, 160, 6, scales_of::wide);
    compare(chain, view_here(x), view_here(y), x.view(), y.view(), 1, false);
  }
}

TEST_CASE("chains of unlike elements, and of blocks") {
  const dense_data a(formats::bf16, 20, 64, false, 3, 0), b(formats::e4m3, 30, 64, false, 4, 0);
  compare(chain, a.view(false, false), b.view(false, true), a.view(true, false), b.view(true, true), 0, false);
  for (const gemm_element e : {gemm_element::e2m1, gemm_element::e4m3, gemm_element::e5m2}) {
    for (const scales_of kind : {scales_of::ordinary, scales_of::special}) {
      const matrix_data x = random_matrix(19, 96, 5, kind, e), y = random_matrix(33, 96, 6, scales_of::wide, e);
      compare(chain, view_here(x), view_here(y), x.view(), y.view(), 1, false);
    }
  }
}

TEST_CASE("chains of 6-bit elements") {
  // Any byte is a code. Some scales are NaN, 2^-127 and 2^127.
  const array<std::uint8_t> scales(bytes{127, 120, 131, 0, 254, 126, 255, 125, 128, 127, 129, 124});
  const auto view = [&](const dense_data& d, const format& f, int rows, index_t first_scale, bool on_device) {
    gemm_operand o = d.view(on_device, false);
    o.element = f;
    o.rows = rows;
    o.k = 96;
    o.block = 32;
    o.scales = (on_device ? scales.there : scales.here.data()) + first_scale;
    o.scale_stride = 1;  // rows overlap: each starts with the second scale of the previous row
    return o;
  };
  for (const format& f : {formats::e2m3, formats::e3m2}) {
    CAPTURE(f.mantissa_bits);
    const dense_data a(formats::e4m3, 9, 72, false, 21, 1), b(formats::e4m3, 7, 72, false, 22, 1);
    for (const index_t first : {0, 3}) {
      compare(chain, view(a, f, 7, first, false), view(b, formats::e2m3, 7, 0, false), view(a, f, 7, first, true),
              view(b, formats::e2m3, 7, 0, true), 0, false);
    }
  }
}

TEST_CASE("blockwise sums, every kind of scale") {
  for (const extents& e : {extents{1, 1, 32}, extents{9, 70, 96}, extents{40, 33, 160}, extents{130, 20, 288}}) {
    for (const scales_of kind : {scales_of::ordinary, scales_of::far, scales_of::special, scales_of::wide}) {
      for (const int output : {0, 1, 2}) {
        const matrix_data a = random_matrix(e.m, e.k, 11, kind), b = random_matrix(e.n, e.k, 12, kind);
        compare(blockwise, view_here(a), view_here(b), a.view(), b.view(), output, output == 0);
      }
    }
  }
}

TEST_CASE("blockwise sums on the matrix unit: the definition's bits, whatever the scales") {
  for (const extents& e :
       {extents{9, 70, 96}, extents{300, 24, 64}, extents{20, 262, 2112}, extents{1040, 1000, 544}}) {
    if (e.m > 1000 && !on_device) continue;
    int number = 0;
    for (const scales_of kind : {scales_of::ordinary, scales_of::narrow, scales_of::outliers, scales_of::apart,
                                 scales_of::far, scales_of::special, scales_of::wide}) {
      CAPTURE(e.m);
      CAPTURE(static_cast<int>(kind));
      const matrix_data a = random_matrix(e.m, e.k, 11, kind), b = random_matrix(e.n, e.k, 12, scales_of::narrow);
      gemm_selection selected;
      REQUIRE(select_gemm(call_of({}, a.view(), b.view(), {gemm_mode::reference}), device, selected).ok());
      CHECK((selected.kernel == std::string("blockwise-sm90")) ==
            (device.arch == arch::host || (device.arch == arch::sm_90 && e.m > 1000)));
      for (const int output : {0, 1, 2}) {
        if (output != 0 && e.m > 9 && !on_device) continue;
        if (rotoscale::oracle::in_share(number)) {
          compare(blockwise, view_here(a), view_here(b), a.view(), b.view(), output, output == 0);
        }
        if (rotoscale::oracle::in_share(++number)) {
          compare(blockwise, view_here(b), view_here(a), b.view(), a.view(), output, output == 1);
        }
      }
    }
  }
}

TEST_CASE("blockwise sums on the matrix unit at both ends of FP32's normal numbers, and rows of zeros") {
  constexpr extents e{5, 6, 128};
  // 64 and 179 exceed the limit of a row on the unit.
  for (const int low : {64, 65, 0}) {
    for (const int high : {66, 178, 179, 254}) {
      if (low == 0 && high != 254) continue;
      CAPTURE(low);
      CAPTURE(high);
      const auto make = [&](int rows, int scale, unsigned seed) {
        matrix_data m = random_matrix(rows, e.k, seed, scales_of::narrow);
        bytes codes = m.codes.here, scales(m.scales.here.size(), static_cast<std::uint8_t>(scale));
        const auto row = static_cast<std::size_t>(m.code_stride());
        std::fill_n(codes.begin() + static_cast<std::ptrdiff_t>(2 * row), row, std::uint8_t{0x80});
        std::fill_n(scales.begin() + 2 * (e.k / 32), e.k / 32, std::uint8_t{0});
        return matrix_data(rows, e.k, std::move(codes), std::move(scales));
      };
      const matrix_data a = make(e.m, low, 1), b = make(e.n, low, 2), c = make(e.n, high, 3), d = make(e.m, high, 4);
      compare(blockwise, view_here(a), view_here(b), a.view(), b.view(), 0, false);
      compare(blockwise, view_here(d), view_here(c), d.view(), c.view(), 0, false);
      compare(blockwise, view_here(a), view_here(c), a.view(), c.view(), 0, false);
    }
  }
}

TEST_CASE("sums of negative zeros, and scales beyond FP32") {
  constexpr int rows = 33, k = 96;
  std::mt19937 random(5);
  const auto make = [&](int kind) {
    bytes codes(rows * 48), scales(rows * 3);
    for (auto& c : codes) c = static_cast<std::uint8_t>(random() & (kind == 0 ? 0x88 : 0x99));
    for (auto& s : scales) s = static_cast<std::uint8_t>(random() % 2 == 0 ? random() % 4 : 40 + random() % 20);
    return matrix_data(rows, k, std::move(codes), std::move(scales));
  };
  for (const int kind : {0, 1}) {
    const matrix_data a = make(1), b = make(kind);
    compare(blockwise, view_here(a), view_here(b), a.view(), b.view(), 0, false);
    compare(chain, view_here(a), view_here(b), a.view(), b.view(), 0, false);
  }
}

TEST_CASE("a sum that underflows to -0 stays -0 as long as all products are -0") {
  // Block 0 is -2^-256. The +0 of every row of A then meets -0, -6 and, in two columns, one +0.
  constexpr int k = 96, bytes_of_row = k / 2, rows_of_a = 2, rows_of_b = 4;
  const auto make = [](int rows, std::uint8_t first, std::uint8_t others, std::uint8_t scale) {
    bytes codes(static_cast<std::size_t>(rows * bytes_of_row), others);
    bytes scales(static_cast<std::size_t>(rows * (k / 32)), scale);
    for (int r = 0; r < rows; ++r) {
      const auto begin = codes.begin() + r * bytes_of_row;
      std::fill_n(begin, 16, std::uint8_t{0});
      *begin = first;
      scales[static_cast<std::size_t>(r * (k / 32))] = 0;
    }
    return std::pair(std::move(codes), std::move(scales));
  };
  for (const std::uint8_t scale : {127, 0}) {
    CAPTURE(static_cast<int>(scale));
    auto [a_codes, a_scales] = make(rows_of_a, 0x01, 0x00, scale);
    auto [b_codes, b_scales] = make(rows_of_b, 0x09, 0x88, scale);
    std::fill_n(b_codes.begin() + bytes_of_row + 16, 32, std::uint8_t{0xFF});
    b_codes[2 * bytes_of_row + 31] = 0x08;
    b_codes[3 * bytes_of_row + 47] = 0x80;
    const matrix_data a(rows_of_a, k, a_codes, a_scales), b(rows_of_b, k, b_codes, b_scales);
    compare(blockwise, view_here(a), view_here(b), a.view(), b.view(), 0, false);
    compare(blockwise, view_here(b), view_here(a), b.view(), a.view(), 2, false);
  }
}

TEST_CASE("bad GEMMs are refused before anything is launched") {
  const dense_data a(formats::bf16, 4, 32, false, 1, 0);
  const matrix_data x = random_matrix(4, 32, 1, scales_of::ordinary);
  const array<float> out(std::vector<float>(16));
  const gemm_result good{out.there, formats::fp32};
  const auto argument = [](const status& s) { return std::string(s.argument); };
  const auto refused = [&](const mma_model& model, const gemm_operand& left, const gemm_operand& right,
                           const gemm_result& r) {
    gemm_call c{r, left, right};
    c.contract.model = model;
    return argument(gemm(c, nullptr, 0, {}));
  };
  const auto changed = [](auto o, auto change) {
    change(o);
    return o;
  };
  const gemm_operand dense = a.view(true, false), blocks = x.view();
  CHECK(refused(chain, changed(dense, [](auto& o) { o.element = formats::fp16; }), dense, good) == "a.element");
  CHECK(refused(chain, dense, changed(dense, [](auto& o) { o.k = 31; }), good) == "b.k");
  CHECK(refused(blockwise, dense, blocks, good) == "contract");
  CHECK(refused(blockwise, changed(blocks, [](auto& o) { o.code_order = placement::aiter_data_16x16; }), blocks,
                good) == "a.code_order");
  CHECK(refused(blockwise, blocks, changed(blocks, [](auto& o) { o.codes = nullptr; }), good) == "b.codes");
  CHECK(refused(blockwise, blocks, blocks, changed(good, [](auto& r) { r.out = nullptr; })) == "out");
  CHECK(refused(blockwise, blocks, blocks, changed(good, [](auto& r) { r.out_stride = 3; })) == "out_stride");
  CHECK(refused(blockwise, blocks, blocks, changed(good, [](auto& r) { r.output = formats::fp16; })) == "output");

  // Errors must name the launcher's own argument for each member.
  const auto decoded = [&](gemm_operand o, index_t stride = 32) {
    return argument(decode_operand(o, false, out.there, formats::fp32, stride, {}));
  };
  CHECK(decoded(changed(blocks, [](auto& o) { o.scales = nullptr; })) == "from.scales");
  CHECK(decoded(changed(blocks, [](auto& o) { o.batch_stride = 1; })) == "from");
  CHECK(decoded(changed(blocks, [](auto& o) { o.k = index_t{1} << 25; })) == "from.k");
  CHECK(decoded(changed(dense, [](auto& o) { ++o.code_stride; })) == "from.code_stride");
  const auto* const odd = reinterpret_cast<const float*>(static_cast<const std::uint8_t*>(dense.codes) + 1);
  CHECK(decoded(changed(dense, [&](auto& o) { o.factor = odd; })) == "from.factor");
  CHECK(decoded(blocks, 31) == "stride");
}

}  // namespace gemm_simt_test
