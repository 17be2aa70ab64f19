// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of gpu/nn against the CPU's operations, by bytes, over the cases that every backend must pass. Host mode
// runs three thread orders; a device runs launches and graphs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "../../rotoscale/nn/backend_ops_rows.hpp"
#include "gpu/api/nn.hpp"
#include "launcher_backend.hpp"
#include "oracle/share.hpp"
#if !defined(ROTOSCALE_TEST_DEVICE)
#include "gpu/dialect/host.hpp"
#endif

namespace nn_layers_test {

using namespace rotoscale;
using namespace rotoscale::testing;
using gpu_test::launcher_backend;
namespace op = nn::op;

std::vector<op_case> cases() {
  std::vector<op_case> all = row_cases();
  const auto coarse = coarse_row_cases();
  all.insert(all.end(), coarse.begin(), coarse.end());
  return all;
}

enum class row_lengths { all, long_ones, others };

/// Long rows are slow in host mode.
void check(row_lengths chosen) {
  nn::cpu_backend reference(1);
  launcher_backend tested;
  for (const op_case& c : cases()) {
    const auto is_named = [&](const char* shape) { return c.name.find(shape) != c.name.npos; };
    const char* const long_ones[] = {"2048", "4096", "4104", "32900", "50304", "60000", "135170", "266304"};
    const bool is_long = std::any_of(std::begin(long_ones), std::end(long_ones), is_named);
    if (chosen != row_lengths::all && (chosen == row_lengths::long_ones) != is_long) continue;
    CAPTURE(c.name);
    const auto want = bytes_of(c, reference);
    REQUIRE_FALSE(want.empty());
    CHECK(want == bytes_of(c, tested));
  }
}

TEST_CASE("bad arguments of layers") {
  alignas(16) static float memory[4096];
  alignas(16) static nn::step_state state;
  const auto rows = [&](index_t n, index_t cols) { return nn::dense_tensor(memory, nn::dtype::fp32, {n, cols}); };
  const auto narrow = nn::dense_tensor(memory, nn::dtype::bf16, {4, 8});
  const auto transposed = [&] {
    nn::tensor_view x = rows(4, 8);
    std::swap(x.strides[0], x.strides[1]);
    return x;
  }();
  using gpu::error_code;
  const auto refused = [](const gpu::status& s, error_code code, const char* argument) {
    CAPTURE(s.message());
    CHECK(s.code == code);
    CHECK(std::string(s.argument) == argument);
  };
  const auto add = [](const nn::tensor_view& x, const nn::tensor_view& y, const nn::tensor_view& sum) {
    return gpu::launch<op::add>({}, {x, y}, {sum});
  };
  const auto activate = [&](nn::activation which, index_t inputs) {
    return gpu::launch<op::activation_forward>({}, {rows(4, inputs), which}, {rows(4, 8)});
  };
  const auto loss = [&](const nn::tensor_view& logits) {
    return gpu::launch<op::cross_entropy>({}, {{}, 0, true, &state}, {logits, memory});
  };
  refused(add(rows(4, 8), rows(4, 9), rows(4, 8)), error_code::bad_extent, "y");
  refused(add(rows(4, 8), rows(4, 8), narrow), error_code::bad_option, "sum");
  refused(add(transposed, rows(4, 8), rows(4, 8)), error_code::bad_extent, "x");
  refused(add(nn::dense_tensor(memory, nn::dtype::u8, {4, 8}), rows(4, 8), rows(4, 8)), error_code::bad_option, "x");
  refused(activate(nn::activation::swiglu, 8), error_code::bad_extent, "x");
  refused(activate(nn::activation::gelu_tanh, 16), error_code::bad_extent, "x");
  refused(gpu::launch<op::norm_forward>({}, {rows(4, 8), nullptr, 1e-5f}, {rows(4, 8), memory}),
          error_code::bad_pointer, "gain");
  refused(gpu::launch<op::norm_forward>({}, {rows(4, 8), memory, 1e-5f, memory}, {rows(4, 8), memory}),
          error_code::bad_pointer, "mean");
  refused(gpu::launch<op::bias_forward>({}, {rows(1, 9)}, {rows(4, 8)}), error_code::bad_extent, "table");
  refused(gpu::launch<op::bias_forward>({}, {narrow}, {narrow}), error_code::bad_option, "table");
  refused(
      gpu::launch<op::rope>({}, {memory, memory, false}, {nn::dense_tensor(memory, nn::dtype::fp32, {1, 2, 3, 5}), {}}),
      error_code::bad_extent, "queries");
  refused(loss(narrow), error_code::bad_option, "logits");
  refused(loss(rows(1, 4096).part(0, 0, 1)), error_code::bad_pointer, "targets");
  auto* const shifted = reinterpret_cast<nn::step_state*>(memory + 1);  // misaligned: a multiple of 4 bytes
  refused(gpu::launch<op::next_micro_batch>({}, {}, {shifted}), error_code::bad_pointer, "state");
  refused(gpu::launch<op::embedding_forward>({}, {{reinterpret_cast<std::int32_t*>(memory), 0}, rows(4, 8), shifted},
                                             {rows(4, 8)}),
          error_code::bad_pointer, "state");
  const nn::parameter_arena::segment unaligned{100, 8, true};
  nn::parameter_arena arena{memory, memory, memory, memory, 4096, {&unaligned, 1}};
  refused(gpu::launch<op::adamw>({}, {{}, &state}, {arena}), error_code::bad_extent, "arena.segments");
  const nn::parameter_arena::segment long_one{0, 5000, true};
  arena.segments = {&long_one, 1};
  refused(gpu::launch<op::adamw>({}, {{}, &state}, {arena}), error_code::bad_extent, "arena.segments");
  const nn::parameter_arena::segment fitting{0, 4096, true};
  arena.segments = {&fitting, 1};
  refused(gpu::launch<op::adamw>({}, {{}, &state}, {arena}), error_code::bad_pointer, "arena.segments_in_backend");
}

TEST_CASE("every launch refuses null and odd addresses, and too little workspace") {
  launcher_backend tested;
  tested.refusing = true;
  std::vector<op_case> all = cases();
  for (const op_case& c : attention_cases()) all.push_back(c);
  for (const op_case& c : all) {
    for (const char* const some : {"130x70 ", "200x24 ", "squares", "1x70 heads 4/2 of 8 "}) {
      if (c.name.find(some) != c.name.npos) (void)bytes_of(c, tested);
    }
  }
}

TEST_CASE("the rows of an id are added once and in order, as many as a thread takes, and one more") {
  constexpr index_t cols = 24, vocabulary = 70;
  std::vector<std::int32_t> ids;
  for (const auto& [id, count] : {std::pair{69, 64}, {3, 65}, {0, 1}, {68, 200}}) ids.insert(ids.end(), count, id);
  const auto n = static_cast<index_t>(ids.size());
  // Shuffles the ids.
  for (std::size_t i = 0; i < ids.size(); ++i) std::swap(ids[i], ids[i * 7919 % ids.size()]);
  std::vector<float> dy(static_cast<std::size_t>(n * cols)), want(static_cast<std::size_t>(vocabulary * cols), 0.5f);
  const random_stream random{5, 6};
  for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = std::ldexp(1.0f, static_cast<int>(random.word(i) % 40));
  for (index_t v = 0; v < vocabulary; ++v) {
    for (index_t c = 0; c < cols; ++c) {
      float sum = 0.0f;
      for (index_t i = 0; i < n; ++i) {
        if (ids[static_cast<std::size_t>(i)] == v) sum += dy[static_cast<std::size_t>(i * cols + c)];
      }
      want[static_cast<std::size_t>(v * cols + c)] += sum;
    }
  }
  const gpu_test::device_array<std::int32_t> tokens(ids);
  const gpu_test::device_array<float> gradient(dy),
      table(std::vector<float>(static_cast<std::size_t>(vocabulary * cols), 0.5f));
  const gpu_test::device_array<nn::step_state> state(std::vector<nn::step_state>(1));
  const auto view = [](float* x, index_t rows) { return nn::dense_tensor(x, nn::dtype::fp32, {rows, cols}); };
  const op::embedding_backward::in in{{tokens.data(), 0}, view(gradient.data(), n), state.data()};
  const op::embedding_backward::out out{view(table.data(), vocabulary)};
  const std::size_t bytes = gpu::workspace_bytes<op::embedding_backward>(in, out);
  const gpu_test::device_array<std::uint8_t> room(bytes);
  gpu_test::expect(gpu::launch<op::embedding_backward>({{}, room.data(), bytes}, in, out));
  CHECK(table.read() == want);
  CHECK(room.guards_hold());
}

TEST_CASE("a number outside of the vocabulary is masked and reported") {
  const std::vector<std::int32_t> numbers = {1, 7, -5, 2};
  const gpu_test::device_array<std::int32_t> tokens(numbers);
  const gpu_test::device_array<float> table(std::vector<float>(5 * 8, 3.0f)), y(4 * 8),
      logits(std::vector<float>(4 * 5)), loss(4);
  const gpu_test::device_array<nn::step_state> state(std::vector<nn::step_state>(1));
  const gpu_test::device_array<std::uint32_t> faults(std::vector<std::uint32_t>(2));
  const gpu::device_call call{{}, nullptr, 0, faults.data()};
  const auto view = [](float* x, index_t rows, index_t cols) {
    return nn::dense_tensor(x, nn::dtype::fp32, {rows, cols});
  };
  gpu_test::expect(gpu::launch<op::embedding_forward>(
      call, {{tokens.data(), 0}, view(table.data(), 5, 8), state.data()}, {view(y.data(), 4, 8)}));
  CHECK(faults.read() == std::vector<std::uint32_t>{3, 0});
  for (index_t i = 0; i < 4 * 8; ++i)
    CHECK(y.read()[static_cast<std::size_t>(i)] == (i / 8 == 0 || i / 8 == 3 ? 3.0f : 0.0f));
  gpu_test::expect(gpu::launch<op::cross_entropy>(call, {{tokens.data(), 0}, 0, false, state.data()},
                                                  {view(logits.data(), 4, 5), loss.data()}));
  CHECK(faults.read() == std::vector<std::uint32_t>{3, 3});
  CHECK(loss.read()[1] == 0.0f);
  CHECK(loss.read()[3] > 1.0f);
}

TEST_CASE("gradients of a loss as BF16 are those of FP32, rounded") {
  // One chunk, two, many; vectors of four and single elements; NaN in one row.
  for (const index_t vocabulary : {40, 4099, 50304, 60001}) {
    CAPTURE(vocabulary);
    constexpr index_t rows = 5;
    const auto count = static_cast<std::size_t>(rows * vocabulary);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(random_stream{9, 1}.word(i) >> 8) * 0x1p-20f - 8.0f;
    }
    values[static_cast<std::size_t>(3 * vocabulary + vocabulary / 2)] = std::numeric_limits<float>::quiet_NaN();
    const gpu_test::device_array<float> logits(values), loss(rows);
    const gpu_test::device_array<std::uint16_t> narrow(std::vector<std::uint16_t>(count, 0x5A5A));
    const gpu_test::device_array<std::int32_t> targets(
        std::vector<std::int32_t>{0, nn::ignored_target, static_cast<std::int32_t>(vocabulary - 1), 7, 17});
    std::vector<nn::step_state> host(1);
    host[0].gradient_scale = 0.2f;
    const gpu_test::device_array<nn::step_state> state(host);
    const op::cross_entropy::in in{{targets.data(), 0}, 0, true, state.data()};
    const op::cross_entropy::out out{nn::dense_tensor(logits.data(), nn::dtype::fp32, {rows, vocabulary}), loss.data()};
    const std::size_t bytes = gpu::workspace_bytes<op::cross_entropy>(in, out);
    const gpu_test::device_array<std::uint8_t> room(bytes + 16);
    const auto run = [&](std::uint16_t* to) {
      gpu_test::expect(gpu::cross_entropy({{}, room.data(), bytes}, in, out, reinterpret_cast<bf16*>(to)));
      return loss.read();
    };
    const std::vector<float> narrow_loss = run(narrow.data()), wide_loss = run(nullptr), wide = logits.read();
    const std::vector<std::uint16_t> got = narrow.read();
    index_t differing = 0;
    for (std::size_t i = 0; i < count; ++i) differing += got[i] != bf16(wide[i]).bits();
    CHECK(differing == 0);
    for (const index_t row : {0, 1, 2, 4}) {
      CHECK(fp32_bits(narrow_loss[static_cast<std::size_t>(row)]) ==
            fp32_bits(wide_loss[static_cast<std::size_t>(row)]));
    }
    CHECK(std::isnan(wide_loss[3]));
    CHECK(got[static_cast<std::size_t>(vocabulary)] == 0);
    CHECK((got[static_cast<std::size_t>(3 * vocabulary)] & 0x7FC0) == 0x7FC0);
  }
}

/// Counts elements whose bits differ from the activation's functions. x takes every step-th number.
template <nn::activation which>
index_t differing_activations(std::uint32_t step, index_t count) {
  using A = nn::activation_math<which>;
  const auto same = [](float x, float y) { return fp32_bits(x) == fp32_bits(y) || (std::isnan(x) && std::isnan(y)); };
  constexpr index_t cols = 64, inputs = A::gated ? 2 : 1;
  const index_t rows = count / cols;
  std::vector<float> in(static_cast<std::size_t>(inputs * count)), dh(static_cast<std::size_t>(count));
  const auto at = [&](index_t i, index_t input) {
    return static_cast<std::size_t>((i / cols * inputs + input) * cols + i % cols);
  };
  for (index_t i = 0; i < count; ++i) {
    in[at(i, inputs - 1)] = 1.0f + 0x1p-20f * static_cast<float>(i % 4099);
    in[at(i, 0)] = fp32_from_bits(static_cast<std::uint32_t>(i) * step + 77);
    dh[static_cast<std::size_t>(i)] = 0.75f + 0x1p-20f * static_cast<float>(i % 4093);
  }
  const gpu_test::device_array<float> x(in), d(dh), h(static_cast<std::size_t>(count)), dx(in.size());
  const auto view = [&](const gpu_test::device_array<float>& t, index_t n) {
    return nn::dense_tensor(t.data(), nn::dtype::fp32, {rows, n});
  };
  const auto wide_x = view(x, inputs * cols);
  gpu_test::expect(gpu::launch<op::activation_forward>({}, {wide_x, which}, {view(h, cols)}));
  gpu_test::expect(gpu::launch<op::activation_backward>({}, {view(d, cols), wide_x, which}, {view(dx, inputs * cols)}));
  const std::vector<float> made = h.read(), gradients = dx.read();
  index_t differing = 0;
  for (index_t i = 0; i < count; ++i) {
    const float own = in[at(i, 0)], up = in[at(i, inputs - 1)], s = nn::sigmoid(A::sigmoid_input(own));
    const nn::float_pair want = A::gradients(dh[static_cast<std::size_t>(i)], own, up, s);
    differing += !same(made[static_cast<std::size_t>(i)], A::value(own, up, s)) ||
                 !same(gradients[at(i, 0)], want.first) || (A::gated && !same(gradients[at(i, 1)], want.second));
  }
  return differing;
}

TEST_CASE("activations of numbers of every magnitude, NaN and Inf among them") {
  const index_t count = gpu_test::on_device ? index_t{1} << 23 : index_t{1} << 16;
  // In order, eight neighbours take the same path. Scattered, nearly all take the general one.
  for (const std::uint32_t step :
       {static_cast<std::uint32_t>((std::uint64_t{1} << 32) / static_cast<std::uint64_t>(count)), 0x9E3779B1u}) {
    CAPTURE(step);
#define ROTOSCALE_CHECK(name) CHECK(differing_activations<nn::activation::name>(step, count) == 0);
    ROTOSCALE_ACTIVATIONS(ROTOSCALE_CHECK)
#undef ROTOSCALE_CHECK
  }
}

#if !defined(ROTOSCALE_TEST_DEVICE)

TEST_CASE("kernels leave the CPU's bytes, whatever the order of a block's threads") {
  check(row_lengths::long_ones);  // backend_ops_test.cpp runs the others in this order
  for (const auto order : {gpu::host::thread_order::shuffled, gpu::host::thread_order::reverse}) {
    if (order == gpu::host::thread_order::reverse && oracle::share() > 1) continue;
    gpu::host::set_thread_order(order);
    check(row_lengths::others);
  }
  gpu::host::set_thread_order(gpu::host::thread_order::forward);
}

#else

TEST_CASE("kernels leave the CPU's bytes") { check(row_lengths::all); }
TEST_CASE("kernels leave the CPU's bytes from graphs") {
  gpu_test::through_graphs = true;
  check(row_lengths::all);
  gpu_test::through_graphs = false;
}

#endif

}  // namespace nn_layers_test
