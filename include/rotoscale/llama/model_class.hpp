// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A Llama-3-style decoder, forward and backward by hand, against nn::backend only. Linear layers follow the recipe, the
// head its own (by default BF16, FP32 under a recipe of FP32); norms, RoPE and attention compute in FP32 on activations
// that are stored as the recipe says. All memory is laid out before the first pass; a pass only puts operations on a
// queue.
#pragma once

#include <optional>
#include <stdexcept>

#include "rotoscale/llama/parameters.hpp"
#include "rotoscale/llama/rope_table.hpp"
#include "rotoscale/llama/statistics.hpp"
#include "rotoscale/llama/stored_activations.hpp"
#include "rotoscale/nn/adapter.hpp"
#include "rotoscale/nn/head_loss.hpp"
#include "rotoscale/nn/presets.hpp"

namespace rotoscale::llama {

/// What a model is laid out for.
struct model_options {
  index_t batch = 1;          ///< sequences of a pass
  index_t sequence = 1;       ///< tokens of a sequence
  bool training = true;       ///< room for gradients, moments and what a backward pass needs
  index_t head_chunk = 2048;  ///< tokens whose logits exist at once; a larger pass adds the head's gradient in parts
  recompute_part recompute = recompute_part::none;  ///< what the backward pass computes once more
  kept_format kept = kept_format::as_computed;      ///< what is kept for it, stored as
  bool statistics = false;                          ///< room for what observed steps leave
  bool lends_gradients = true;      ///< where a step is one pass, logits may lie where gradients come to be afterwards
  index_t cache = 0;                ///< tokens of the one sequence whose keys and values are kept
  std::optional<lora_config> lora;  ///< adapters beside frozen layers; null: none
  std::function<bool(const parameter&)> trains;  ///< which parameters do; null: all, or with `lora` the adapters
};

/// Where the operands of a linear layer's weight lie under a recipe.
struct weight_location {
  std::size_t number = 0;       ///< of the parameter
  index_t layer = 0;            ///< of the linear layer
  bool trains = true;           ///< is it made anew from a master after each update?
  bool has_source = false;      ///< are its FP32 values kept?
  std::size_t offset = 0;       ///< in the arena of quantized weights
  std::size_t bytes = 0;        ///< of the operands
  void* at = nullptr;           ///< null while counting
  nn::operand_request request;  ///< what they are
  nn::delayed_scaling fp8;      ///< rule of their FP8 scales
};

/// Llama: forward and backward pass over memory that a cursor hands out.
class model {
 public:
  using category = nn::memory_category;  ///< shorthand
  /// Called when the gradients of elements [first, first + count) of the arena are complete.
  using gradients_ready = std::function<void(index_t first, index_t count)>;

  /// Shapes and names; no memory yet. Throws std::invalid_argument for options that exclude each other.
  model(nn::backend& ops, const model_config& config, model_options options)
      : ops_(&ops), config_(config), options_(std::move(options)), parameters_(config, trains(), options_.lora) {
    if (const auto fault = find_fault(config_, options_.recompute, options_.kept)) throw std::invalid_argument(*fault);
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;

  /// Its configuration.
  const model_config& config() const { return config_; }
  /// What it is laid out for.
  const model_options& options() const { return options_; }
  /// Names and shapes.
  const parameter_list& parameters() const { return parameters_; }
  /// Linear layers, the output head included; adapters stand beside them.
  index_t linear_count() const { return 4 * config_.num_hidden_layers + 1; }
  /// Tokens of a pass.
  index_t tokens() const { return options_.batch * options_.sequence; }

  /// Lays everything out for a recipe, which must live as long as it is used: over nothing to count, then over arenas.
  /// FP32 values stay where they were; so do quantized weights, which are void unless the recipe is the one before.
  /// Throws std::invalid_argument if the backend refuses a GEMM's contract.
  void lay_out(nn::memory_cursor& memory, const nn::recipe& r, bool same_recipe = false);

  /// Other extents in the same arenas, as long as they fit: for passes without a backward pass.
  void resize(index_t batch, index_t sequence) {
    options_.batch = batch;
    options_.sequence = sequence;
  }

  /// After lay_out over arenas: gives the queue of the passes its workspace, and uploads what only the host can
  /// compute.
  void prepare(nn::queue q) const {
    const rope_table table = make_rope_table(config_, positions());
    ops_->set_workspace(q, workspace_, workspace_bytes_);
    const auto& segments = parameters_.segments();
    ops_->upload(q, segments_, segments.data(), segments.size() * sizeof segments[0]);
    ops_->upload(q, cosine_, table.cosine.data(), table.cosine.size() * sizeof(float));
    ops_->upload(q, sine_, table.sine.data(), table.sine.size() * sizeof(float));
    ops_->synchronize(q);
  }

  /// Where each token's document begins in its sequence, for the passes that follow; no data: sequences are documents.
  /// Throws std::invalid_argument where keys and values are kept.
  void use_documents(const nn::token_source& starts) {
    if (starts.data != nullptr && options_.cache != 0) throw std::invalid_argument("a cache keeps one document");
    starts_ = starts;
  }

  /// Granularity, in tokens, of passes that continue a sequence: one that begins at a multiple, and holds a multiple or
  /// all the rest, has the bytes of a whole pass; 0: none has under this recipe, or nothing is kept.
  index_t cache_rows() const { return cache_rows_; }

  /// The parameters that train.
  nn::parameter_arena arena() const {
    return {masters_, gradients_, m_, v_, parameters_.arena_size(), parameters_.segments(), segments_};
  }
  /// Before a step's first pass: gradients of zero, but where its logits come first.
  void clear_gradients(nn::queue q) const;
  /// Of FP8 operands.
  const nn::delayed_scaling_state& scales() const { return scales_; }
  /// Of FP8 operands.
  nn::delayed_scaling_state& scales() { return scales_; }

  /// Of each linear layer: those of the model, the head behind them, then those that adapters are made of.
  const std::vector<weight_location>& weights() const { return weights_; }
  /// FP32 values of a parameter in backend memory: those kept, or those loaded last.
  nn::const_tensor_view loaded(std::size_t number) const {
    return sources_[number].empty() ? dense(staging_, parameters_[number]) : sources_[number];
  }
  /// Gives up the operands of all weights, until the next lay_out.
  void release_weights();
  /// The operands of linear layer i were written from elsewhere, and are those of the parameter's values.
  void note_written(std::size_t i) { prepared_[i] = {parameters_[weights_[i].number].version, true}; }
  /// Weights that have a source are quantized again before the next pass, changed or not.
  void void_weights();

  /// Sets values of a parameter from element `first` on; they count once its last element is set. A weight without an
  /// FP32 source then goes into its operands.
  void load(const nn::pass& p, std::size_t number, index_t first, std::span<const float> values);
  /// A parameter's values. Throws std::logic_error where there is no FP32 source.
  std::vector<float> values(nn::queue q, std::size_t number) const {
    return values(q, number, 0, parameters_[number].rows);
  }
  /// Those of rows [first_row, first_row + rows).
  std::vector<float> values(nn::queue q, std::size_t number, index_t first_row, index_t rows) const;
  /// A parameter's gradient or a moment, from that arena.
  std::vector<float> arena_values(nn::queue q, const float* from, std::size_t number) const {
    return arena_values(q, from, number, 0, parameters_[number].rows);
  }
  /// Those of rows [first_row, first_row + rows).
  std::vector<float> arena_values(nn::queue q, const float* from, std::size_t number, index_t first_row,
                                  index_t rows) const {
    const parameter& p = parameters_[number];
    return download(q, from + p.offset + first_row * p.cols, rows * p.cols);
  }
  /// The inverse, from element `first` of the parameter on.
  void set_arena_values(nn::queue q, float* to, std::size_t number, std::span<const float> values,
                        index_t first = 0) const {
    ops_->upload(q, to + parameters_[number].offset + first, values.data(), values.size_bytes());
    ops_->synchronize(q);
  }

  /// Quantizes every weight that has changed since it was quantized last.
  void requantize(const nn::pass& p);
  /// After an update of all that trains.
  void note_update() {
    for (parameter& p : parameters_.all()) p.version += p.trains;
  }

  /// Losses of the micro-batch into loss(); with p.training also the gradients of the head and of its input.
  void forward(const nn::pass& p, const nn::token_source& tokens, const nn::token_source& targets);
  /// Adds to every gradient; follows a forward pass with p.training.
  void backward(const nn::pass& p, const nn::token_source& tokens, const gradients_ready& ready = nullptr);
  /// Calls use(logits) for the tokens [first, first + count) of a pass in order, a chunk of the head at a time:
  /// [tokens, vocabulary] in backend memory, which the next chunk overwrites. Of a sequence's tokens from p.past on,
  /// where there is a cache: those in front have been through such passes.
  template <class Use>
  void logits(const nn::pass& p, const nn::token_source& tokens, index_t first, index_t count, const Use& use);

  /// Of each token, after forward.
  float* loss() const { return loss_; }
  /// Of each linear layer, by number, and behind them of each matrix of an adapter, after an observed step; null where
  /// options().statistics is not set.
  const linear_statistics* statistics() const { return statistics_; }
  /// Of how many.
  index_t observed_count() const { return observed_number(parameters_.all().size()); }
  /// The place of an adapter's matrix among them, by its parameter's number.
  index_t observed_number(std::size_t parameter) const {
    return linear_count() + static_cast<index_t>(parameter - parameters_.base_count());
  }
  /// Linear layer `i` of linear_count(): query, key and value, output, gate and up, down of each decoder layer; the
  /// head.
  const nn::linear& linear_layer(index_t i) const {
    if (i + 1 == linear_count()) return head_;
    const layer& l = layers_[static_cast<std::size_t>(i / 4)];
    const nn::linear* const all[] = {&l.qkv, &l.o, &l.gate_up, &l.down};
    return *all[i % 4];
  }

  /// For logs: a linear layer in the middle, where the recipe is not exempted, and the head.
  const nn::linear& inner_linear() const { return layers_[layers_.size() / 2].qkv; }
  /// For logs: a linear layer that the recipe leaves in BF16; null: it leaves none.
  const nn::linear* bf16_linear() const {
    for (const layer& l : layers_) {
      if (&l.qkv.current() == &exempt_recipe_) return &l.qkv;
    }
    return nullptr;
  }
  /// For logs: an adapter's first matrix; null: there are no adapters.
  const nn::linear* adapter_linear() const {
    for (index_t i = 0; i + 1 < linear_count(); ++i) {
      const auto& own = static_cast<const nn::adapted_linear&>(linear_layer(i));
      if (!own.adapters.empty()) return &own.adapters.front().a();
    }
    return nullptr;
  }
  /// The output head.
  const nn::linear& head() const { return head_; }
  /// Under which contract attention runs.
  const nn::attention_contract& attention() const { return attention_; }

 private:
  struct layer {
    layer_parameters numbers;
    nn::adapted_linear qkv, o, gate_up, down;
    nn::tensor_view input, normed1, qkv_out, attended, middle, normed2, gate_up_out, hidden;
    float *rstd1 = nullptr, *lse = nullptr, *rstd2 = nullptr;
    nn::tensor_view cache;  ///< [tokens, keys | values], behind RoPE
    /// What is kept in 8 bits, and where it is computed.
    struct packed_tensor {
      std::unique_ptr<nn::operand_set> set;  ///< 8 bits
      nn::tensor_view whole;                 ///< shared by all layers
    };
    std::vector<packed_tensor> packed;
  };

  std::function<bool(const parameter&)> trains() const {
    if (options_.training) return options_.trains;
    return [](const parameter&) { return false; };
  }
  static nn::const_tensor_view dense(const float* data, const parameter& p) {
    return nn::dense_tensor(const_cast<float*>(data), nn::dtype::fp32, {p.rows, p.cols});
  }
  nn::const_tensor_view source(std::size_t number) const { return sources_[number]; }
  const float* gain(std::size_t number) const { return static_cast<const float*>(sources_[number].data); }
  /// A parameter's gradient; empty where it is frozen.
  nn::tensor_view gradient(std::size_t number) const {
    const parameter& p = parameters_[number];
    if (!p.trains || gradients_ == nullptr) return {};
    return nn::dense_tensor(gradients_ + p.offset, nn::dtype::fp32, {p.rows, p.cols});
  }
  float* gain_gradient(std::size_t number) const { return static_cast<float*>(gradient(number).data); }
  /// Gradients of an adapter's matrices.
  nn::adapter_gradients gradients_of(const adapter_parameters& beside) const {
    return {gradient(beside.a), gradient(beside.b)};
  }
  bool packs() const { return options_.training && options_.kept != kept_format::as_computed; }
  /// Does the backward pass compute this part again?
  bool recomputes(recompute_part part) const {
    return options_.recompute == part || options_.recompute == recompute_part::layer;
  }
  float epsilon() const { return static_cast<float>(config_.rms_norm_eps); }
  std::vector<float> download(nn::queue q, const float* from, index_t count) const;

  /// The recipe of decoder layer i: layers at the ends may be left in BF16.
  const nn::linear_recipe& recipe_of(const nn::recipe& r, int i) const {
    const bool exempt = i < r.bf16_first_layers || i >= config_.num_hidden_layers - r.bf16_last_layers;
    return exempt ? exempt_recipe_ : r;
  }

  /// Of a sequence.
  index_t positions() const { return std::max(options_.sequence, options_.cache); }

  // model_cache.hpp
  void lay_out_cache(nn::memory_cursor& memory);
  void find_cache_rows();
  void keep_keys(const nn::pass& p, const layer& l) const;

  // model_layout.hpp
  void make_linears(const nn::recipe& r);
  void lay_out_parameters(nn::memory_cursor& memory);
  void lay_out_weights(nn::memory_cursor& memory, bool keep, const nn::recipe& r);
  void lay_out_decoder(nn::memory_cursor& memory);
  void lay_out_streams(nn::memory_cursor& memory);
  nn::tensor_view keep(nn::memory_cursor& memory, layer& l, nn::tensor_view shared);
  nn::tensor_view made_for(nn::memory_cursor& memory, const nn::linear& consumer, nn::tensor_view shared) const;
  void lay_out_inputs(nn::memory_cursor& memory, nn::linear& consumer, nn::tensor_view x);
  void lay_out_adapters(nn::memory_cursor& memory, nn::adapted_linear& beside);
  void lay_out_attention(nn::memory_cursor& memory, layer& l);
  void lay_out_mlp(nn::memory_cursor& memory, layer& l);
  template <class Part>
  void lay_out_part(nn::memory_cursor& memory, bool shared, const Part& part);
  void lay_out_gradients(nn::memory_cursor& memory);
  nn::workspace_request largest_operations();
  void make_adapters(nn::adapted_linear& beside, std::size_t of_layer, layer_linear linear);
  template <class Function>
  void for_each_adapted(const Function& f);
  template <class Function>
  void for_each_linear(const Function& f);

  // model_head.hpp
  void lay_out_head(nn::memory_cursor& memory);
  std::optional<nn::memory_cursor> borrow_gradients(const nn::memory_cursor& memory);
  void fill_gradients(nn::queue q, index_t first, index_t count) const;

  // model_pass.hpp
  nn::attention_tensors attention_of(const nn::pass& p, const layer& l) const;
  void quantize_weight(const nn::pass& p, std::size_t i, const nn::linear& l, nn::const_tensor_view source) const;
  void run_decoder(const nn::pass& p, const nn::token_source& tokens);
  void run_attention(const nn::pass& p, const layer& l) const;
  void join_attention(const nn::pass& p, const layer& l) const;
  void run_mlp(const nn::pass& p, const layer& l) const;
  void restore_layer(nn::pass p, const layer& l) const;
  void forward_layer(const nn::pass& p, layer& l, const float* next_gain, nn::tensor_view output,
                     nn::tensor_view normed, float* rstd, const nn::quantize_target& to);
  void norm_again(const nn::pass& p, nn::const_tensor_view x, const float* gain, nn::tensor_view y) const;
  void backward_layer(const nn::pass& p, layer& l);
  nn::head_args head_arguments(const nn::pass& p, const nn::token_source& targets) const;

  // model_statistics.hpp
  std::size_t lay_out_statistics(nn::memory_cursor& memory);
  void lay_out_head_probe(nn::memory_cursor& memory);
  nn::tensor_view hidden_again(const layer& l) const;
  void observe(const nn::pass& p, const nn::linear& l, nn::tensor_role tensor, nn::operand_set* set,
               nn::const_tensor_view source) const;
  void observe_inputs(const nn::pass& p, const nn::linear& l, std::size_t number, nn::const_tensor_view x) const;
  void probe_gradient(const nn::pass& p, const nn::linear& l, index_t observed, nn::const_tensor_view x,
                      nn::const_tensor_view dy) const;
  void compare_gradient(const nn::pass& p, const nn::linear& l, index_t observed, std::size_t number) const;
  void observe_adapter(const nn::pass& p, const nn::adapter& beside, const adapter_parameters& numbers,
                       nn::const_tensor_view dy) const;
  void backward_linear(const nn::pass& p, const layer& l, layer_linear which, nn::const_tensor_view x,
                       nn::const_tensor_view dy, nn::tensor_view dx) const;
  void observe_head_loss(const nn::pass& p, const nn::head_args& args) const;

  nn::backend* ops_;
  model_config config_;
  model_options options_;
  parameter_list parameters_;

  nn::linear_recipe head_recipe_, adapter_recipe_, exempt_recipe_;
  nn::attention_contract attention_;
  nn::token_source starts_;
  nn::dtype stored_ = nn::dtype::fp32;  ///< activations
  nn::delayed_scaling_state scales_;
  std::vector<layer> layers_;
  nn::linear head_;
  std::vector<std::unique_ptr<nn::operand_set>> head_x_, head_dlogits_;
  std::vector<nn::head_chunk> head_chunks_;

  nn::parameter_arena::segment* segments_ = nullptr;
  float *masters_ = nullptr, *gradients_ = nullptr, *m_ = nullptr, *v_ = nullptr;
  index_t lent_first_ = 0, lent_count_ = 0;     ///< gradients where the head's memory lies until they are begun
  std::vector<nn::const_tensor_view> sources_;  ///< FP32 values of each parameter; empty: operands only
  struct prepared {
    std::uint64_t version = 0;
    bool valid = false;
  };
  std::vector<prepared> prepared_;        ///< which version each linear layer's operands are of, by for_each_linear
  std::vector<weight_location> weights_;  ///< by for_each_linear
  std::vector<bool> keeps_source_;        ///< of each parameter: are its FP32 values kept?
  float *cosine_ = nullptr, *sine_ = nullptr;
  float* staging_ = nullptr;
  index_t cache_rows_ = 0;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;

  nn::tensor_view last_, normed_, hidden_, branch_, logits_;
  nn::tensor_view qkv_out_, attended_, middle_, gate_up_out_;  ///< of all layers, where each is kept in 8 bits
  nn::tensor_view d_residual_, d_qkv_, d_attended_, d_gate_up_, d_hidden_;
  float *rstd_ = nullptr, *loss_ = nullptr;

  /// FP32 operands of a weight gradient; no contract: the backend has none for them.
  struct gradient_probe {
    std::unique_ptr<nn::operand_set> x, dy;
    std::optional<nn::gemm_contract> contract;
    float* gradient = nullptr;  ///< what it writes
  };
  std::vector<gradient_probe> probes_;  ///< as statistics()
  linear_statistics* statistics_ = nullptr;
  float* head_probe_gradient_ = nullptr;
};

}  // namespace rotoscale::llama
