// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of a model by name and shape, and their initial values. Memory is in train/weights.hpp.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/nn/random_streams.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::nn {

/// Owner of a parameter.
enum class parameter_kind { base, adapter_a, adapter_b };

/// Distribution of initial values.
struct initial_distribution {
  /// Uniform: within ± scale.
  enum class kind { constant, normal, uniform };
  kind what = kind::constant;  ///< the distribution
  double scale = 0.0;          ///< value, standard deviation or bound
};

/// A matrix or a vector. Fused projections are one matrix, and files hold its slices as separate tensors.
struct parameter {
  /// Rows that files hold as a tensor. The A of a fused adapter has one name for each part that uses it.
  struct slice {
    std::string name;         ///< in files
    index_t first_row = 0;    ///< of the matrix
    index_t rows = 0;         ///< of the slice
    bool transposed = false;  ///< files hold (cols, rows)
  };
  std::vector<slice> slices;                   ///< by first row
  index_t rows = 0;                            ///< of the matrix; 1 for a vector
  index_t cols = 0;                            ///< of the matrix, or the vector's length
  bool is_vector = false;                      ///< shape [cols] in files, no weight decay
  index_t linear = -1;                         ///< number of the linear layer that may have adapters; -1: none
  parameter_kind kind = parameter_kind::base;  ///< of the model itself, or of an adapter
  initial_distribution initial;                ///< of its values
  std::uint64_t stream = 0;                    ///< of its initial random words
  index_t base_row = 0;                        ///< of a B: first row of the layer's output that it adds to
  bool trains = true;                          ///< has a gradient, moments and an FP32 master
  index_t offset = 0;                          ///< first element in the arenas
  std::uint64_t version = 0;                   ///< changes with its values

  /// Number of elements.
  index_t size() const { return rows * cols; }
  /// Name of its first slice.
  const std::string& name() const { return slices.front().name; }
};

/// Parameters in a fixed order. A parameter's number is its index.
class parameter_list {
 public:
  /// In order.
  std::vector<parameter>& all() { return all_; }
  /// In order.
  const std::vector<parameter>& all() const { return all_; }
  /// By number.
  parameter& operator[](std::size_t i) { return all_[i]; }
  /// By number.
  const parameter& operator[](std::size_t i) const { return all_[i]; }
  /// Number of the parameter that has a slice of this name.
  std::size_t find(const std::string& name) const {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      for (const parameter::slice& s : all_[i].slices) {
        if (s.name == name) return i;
      }
    }
    throw std::out_of_range("no parameter is called " + name);
  }

  /// Adds a matrix. Returns its number.
  std::size_t add(index_t rows, index_t cols, std::vector<parameter::slice> slices, initial_distribution initial) {
    if (slices.size() == 1) slices[0].rows = rows;
    parameter& p = all_.emplace_back();
    p.slices = std::move(slices);
    p.rows = rows;
    p.cols = cols;
    p.initial = initial;
    p.stream = all_.size() - 1;
    return all_.size() - 1;
  }
  /// Adds the weight of a linear layer, (rows, cols), that may have adapters.
  std::size_t add_linear(index_t rows, index_t cols, std::vector<parameter::slice> slices,
                         initial_distribution initial) {
    const std::size_t i = add(rows, cols, std::move(slices), initial);
    all_[i].linear = linears_++;
    return i;
  }
  /// Adds a vector that starts with one value.
  std::size_t add_vector(index_t cols, std::string name, double value) {
    const std::size_t i = add(1, cols, {{std::move(name)}}, {initial_distribution::kind::constant, value});
    all_[i].is_vector = true;
    return i;
  }

  /// Number of linear layers that may have adapters.
  index_t linears() const { return linears_; }
  /// Elements of all parameters.
  index_t count() const {
    index_t n = 0;
    for (const parameter& p : all_) n += p.size();
    return n;
  }
  /// Elements of the parameters that train.
  index_t trained_count() const {
    index_t n = 0;
    for (const parameter& p : all_) n += p.trains ? p.size() : 0;
    return n;
  }

 private:
  std::vector<parameter> all_;
  index_t linears_ = 0;
};

namespace detail {

/// Number j of a normal sequence (Box and Muller).
inline double normal_number(const random_stream& random, std::size_t j, double std_dev) {
  const double u = (random.word(2 * j) + 0.5) * 0x1p-32;
  const double angle = random.word(2 * j + 1) * (0x1p-32 * 2.0 * 3.14159265358979323846);
  return std_dev * std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
}

/// Stores value(begin + j) as element j of `host`. Large tensors use all cores: one core takes a minute for a billion
/// normal numbers.
template <class Value>
void fill_numbers(std::vector<float>& host, std::size_t begin, const Value& value) {
  constexpr std::size_t chunk = std::size_t{1} << 18;
  const std::size_t chunks = (host.size() + chunk - 1) / chunk;
  thread_pool pool(chunks < 16 ? 1 : 0);
  pool.for_each(static_cast<index_t>(chunks), [&](index_t i) {
    const std::size_t first = static_cast<std::size_t>(i) * chunk, last = std::min(host.size(), first + chunk);
    for (std::size_t j = first; j < last; ++j) host[j] = static_cast<float>(value(begin + j));
  });
}

}  // namespace detail

/// Initial values of some elements from Philox, in FP64, rounded once. Equal on all machines, except for the last place
/// of std::log and std::cos in normal numbers.
inline std::vector<float> initial_values(const parameter& p, std::uint64_t seed, arena_range elements) {
  using kind = initial_distribution::kind;
  const double scale = p.initial.scale;
  std::vector<float> host(static_cast<std::size_t>(elements.count), static_cast<float>(scale));
  if (p.initial.what == kind::constant) return host;
  const random_stream random = stream_for(
      seed, p.kind == parameter_kind::base ? random_purpose::initial_weights : random_purpose::initial_adapters,
      p.stream);
  detail::fill_numbers(host, static_cast<std::size_t>(elements.first), [&](std::size_t j) {
    return p.initial.what == kind::uniform ? std::fma(scale, random.word(2 * j) * 0x1p-31, -scale)
                                           : detail::normal_number(random, j, scale);
  });
  return host;
}
/// Initial values of all elements.
inline std::vector<float> initial_values(const parameter& p, std::uint64_t seed) {
  return initial_values(p, seed, {0, p.size()});
}

}  // namespace rotoscale::nn
