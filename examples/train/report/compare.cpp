// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks the arms and measures them against the baseline. A final gap needs equally many training tokens, a curve of
// gaps equal steps. The spread over seeds decides whether two arms differ. The spread over validation windows says how
// well one model's loss is known, and nothing about a run's noise.

#include <algorithm>
#include <cmath>
#include <functional>

#include "report/parts.hpp"
#include "rotoscale/io/error.hpp"

namespace rotoscale::program::report_parts {

namespace {

std::size_t find_baseline(const std::vector<arm>& arms, const std::string& wanted) {
  const std::string& name = wanted.empty() ? "bf16" : wanted;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < arms.size(); ++i) {
    if (arms[i].name == name) return i;
    names.push_back(arms[i].name);
  }
  if (wanted.empty()) return 0;
  throw io::error("--baseline", "no arm '" + wanted + "'" + io::did_you_mean(wanted, names));
}

/// A run that was stopped early has a loss, but not one to rank against runs that saw more tokens.
bool can_rank(const arm& a, const arm& base) {
  if (!a.final_loss) return false;
  return a.status == arm_status::ok || (a.status == arm_status::stopped && a.tokens == base.tokens);
}

/// Is a's final loss lower than b's by more than the spread over seeds?
bool is_lower(const arm& a, const arm& b) {
  const auto gap = final_gap(b, a);
  return gap && gap->mean > 0 && is_resolved(*gap);
}

bool is_distinct_recipe(const arm& a, const std::string& recipe) {
  return a.schedule.size() == 1 && a.schedule.front().name == recipe;
}

/// The arm that ran `recipe` from start to end; its namesake when several did.
const arm* find_constant(const comparison& c, const std::string& recipe, const arm& except) {
  const arm* found = nullptr;
  for (const arm& a : c.arms) {
    if (&a == &except || !is_distinct_recipe(a, recipe)) continue;
    if (found == nullptr || a.name == recipe) found = &a;
  }
  return found;
}

}  // namespace

maybe window_error(const arm& a, const arm& b) {
  const std::size_t n = a.window_losses.size();
  if (n < 2 || n != b.window_losses.size()) return std::nullopt;
  double mean = 0;
  for (std::size_t i = 0; i < n; ++i) mean += (a.window_losses[i] - b.window_losses[i]) / static_cast<double>(n);
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double d = a.window_losses[i] - b.window_losses[i] - mean;
    squares += d * d;
  }
  const double error = std::sqrt(squares / static_cast<double>(n - 1) / static_cast<double>(n));
  return std::isfinite(error) ? maybe(error) : std::nullopt;
}

std::vector<difference> gap_curve(const arm& a, const arm& b) {
  std::vector<difference> curve;
  for (const eval_point& e : a.evals) {
    const auto other = std::find_if(b.evals.rbegin(), b.evals.rend(),
                                    [&](const eval_point& p) { return p.step == e.step && p.loss.has_value(); });
    if (e.loss && other != b.evals.rend()) curve.push_back({e.step, *e.loss - *other->loss});
  }
  return curve;
}

gaps_around gaps_around_switch(const arm& a, const arm& b, const switch_point& at) {
  arm before = a, after = a;
  const auto is_after = [&](const eval_point& e) {
    return e.step > at.step || (e.step == at.step && e.recipe == at.to);
  };
  std::erase_if(before.evals, is_after);
  std::erase_if(after.evals, std::not_fn(is_after));
  return {gap_curve(before, b), gap_curve(after, b)};
}

healing_partners find_partners(const comparison& c, const arm& healed) {
  healing_partners p;
  if (healed.switches.empty()) return p;
  p.reference = find_constant(c, healed.switches.back().to, healed);
  p.twin = find_constant(c, healed.switches.front().from, healed);
  if (p.reference == nullptr && &c.base() != &healed) p.reference = &c.base();
  if (p.reference == p.twin) p.twin = nullptr;
  return p;
}

json shared_field(const comparison& c, const std::string& key) {
  const auto get = [&](const arm& a) { return a.start.value(key, json()); };
  for (const arm& a : c.arms)
    if (get(a) != get(c.base())) return json();
  return get(c.base());
}

comparison compare(std::vector<arm> arms, const std::string& baseline) {
  arms = merge_seeds(std::move(arms));
  const arm base = arms[find_baseline(arms, baseline)];
  std::stable_sort(arms.begin(), arms.end(), [&](const arm& a, const arm& b) {
    const bool ranked_a = can_rank(a, base);
    const bool ranked_b = can_rank(b, base);
    return ranked_a != ranked_b ? ranked_a : ranked_a && *a.final_loss < *b.final_loss;
  });
  comparison c;
  c.arms = std::move(arms);
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const arm& a = c.arms[i];
    if (a.index == base.index) c.baseline = i;
    standing s;
    if (can_rank(a, base)) {
      s.rank = 1;
      for (std::size_t j = 0; j < i; ++j) s.rank += can_rank(c.arms[j], base) && is_lower(c.arms[j], a);
    }
    s.final = final_losses(a);
    if (a.final_loss && a.initial_loss && *a.initial_loss > 0) s.ratio = *a.final_loss / *a.initial_loss;
    s.gap = final_gap(a, base);
    if (s.gap && a.index != base.index) s.window_error = window_error(a, base);
    const maybe speed = tokens_per_second(a);
    const maybe base_speed = tokens_per_second(base);
    if (speed && base_speed) s.speed = *speed / *base_speed;
    c.standings.push_back(s);
  }
  return c;
}

}  // namespace rotoscale::program::report_parts
