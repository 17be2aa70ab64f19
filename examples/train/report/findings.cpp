// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The section "What this run says": sentences from the numbers alone, by thresholds that do not depend on the outcome.
// If the numbers decide nothing, the text says so.

#include <algorithm>
#include <cmath>
#include <iterator>

#include "report/parts.hpp"
#include "report/published.hpp"

namespace rotoscale::program::report_parts {

namespace {

/// An arm counts as learning when its final loss is below this share of its initial loss.
constexpr double learning_bar = 0.60;

std::string nats(double value) { return fixed(value, 4) + " nats"; }
std::string signed_nats(double value, int decimals) { return signed_fixed(value, decimals) + " nats"; }

std::string unfinished_text(const arm& a) {
  if (a.status == arm_status::diverged) {
    return a.name + " diverged by step " + std::to_string(a.step) + "; it is not ranked.";
  }
  if (a.status != arm_status::incomplete) return a.name + " ended without a finite final loss; it is not ranked.";
  std::string s = a.name + " is incomplete: its log has no end record (the run was cut short or is still going)";
  const auto last =
      std::find_if(a.evals.rbegin(), a.evals.rend(), [](const eval_point& e) { return e.loss.has_value(); });
  if (last != a.evals.rend()) {
    s += "; its last evaluation, at step " + std::to_string(last->step) + ", was " + nats(*last->loss);
  }
  return s + ".";
}

std::string learning(const comparison& c) {
  std::vector<std::string> learn;
  std::vector<std::string> others;
  double least = 1e300;
  double most = 0;
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const arm& a = c.arms[i];
    const maybe& ratio = c.standings[i].ratio;
    if (!a.final_loss || a.status == arm_status::diverged || a.status == arm_status::incomplete) {
      others.push_back(unfinished_text(a));
    } else if (!ratio) {
      others.push_back(a.name + " has no initial loss in its log, so it is unknown whether it learned.");
    } else if (*ratio < learning_bar) {
      learn.push_back(a.name);
      least = std::min(least, *ratio);
      most = std::max(most, *ratio);
    } else {
      others.push_back(a.name + " did not learn by this measure: its final loss is " + fixed(100 * *ratio, 1) +
                       " % of its initial loss.");
    }
  }
  std::string s = "Learning means here that the final validation loss is below 60 % of the initial one. ";
  if (learn.empty()) {
    s += "No arm reached that.";
  } else {
    const bool all = learn.size() == c.arms.size();
    s +=
        all && learn.size() > 1 ? "Every arm learned: " : (learn.size() == 1 ? "One arm learned: " : "These learned: ");
    s += join(learn) + ", ending at " + fixed(100 * least, 1);
    s += (learn.size() > 1 ? " % to " + fixed(100 * most, 1) : "") + " % of the initial loss.";
  }
  for (const std::string& other : others) s += " " + other;
  return s;
}

std::string ranking(const comparison& c) {
  std::vector<std::string> ranked;
  std::string apart;
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const arm& a = c.arms[i];
    const standing& p = c.standings[i];
    if (p.rank > 0) {
      const maybe deviation = p.final ? p.final->deviation : std::nullopt;
      ranked.push_back(a.name + " (" + fixed(*a.final_loss, 4) + (deviation ? ", s.d. " + fixed(*deviation, 4) : "") +
                       ")");
    }
    if (p.rank == 0 && a.final_loss && a.status == arm_status::stopped) {
      apart += " " + a.name + " was stopped at step " + std::to_string(a.step) + " with " + nats(*a.final_loss) +
               "; the baseline saw a different number of tokens, so it is not ranked.";
    }
  }
  if (ranked.empty()) return "No arm finished with a loss, so there is no ranking." + apart;
  if (ranked.size() == 1)
    return "Only one arm finished with a loss that can be ranked: " + ranked.front() + "." + apart;
  return std::string(has_several_seeds(c)
                         ? "By final validation loss in nats per token, means over seeds, lowest first: "
                         : "By final validation loss in nats per token, lowest first: ") +
         join(ranked) + "." + apart;
}

/// Adjacent arms in the order of losses with an unresolved difference, and the reason.
std::string neighbours(const comparison& c) {
  std::string s;
  int pairs = 0, close = 0, single = 0;
  for (std::size_t i = 0; i + 1 < c.arms.size() && c.standings[i + 1].rank > 0; ++i) {
    const arm &a = c.arms[i], &b = c.arms[i + 1];
    const auto gap = final_gap(b, a);
    ++pairs;
    if (gap) single += gap->count == 1;
    if (gap && is_resolved(*gap)) continue;
    ++close;
    s += s.empty() ? "" : " ";
    if (!gap) {
      s += "For " + a.name + " and " + b.name +
           " no two runs have equal seeds and equally many tokens, so their difference is unknown.";
    } else if (gap->half_width) {
      s += b.name + " minus " + a.name + " is " + estimate_text(*gap) + " nats over " + std::to_string(gap->count) +
           " seeds: not resolved.";
    } else {
      s += a.name + " and " + b.name + " differ by " + fixed(std::fabs(gap->mean), gap_decimals(gap->half_width)) +
           " nats: not resolved by one seed.";
    }
  }
  if (pairs == 0) return "";
  if (close < pairs) {
    s += (s.empty() ? "" : " ") + std::string(close > 0   ? "All other neighbours in the order differ by more than "
                                              : pairs > 1 ? "All neighbours in the order differ by more than "
                                                          : "The two differ by more than ");
    s += single == pairs ? "what seeds are known to move (" + fixed(one_seed_resolution, 2) + " nats)."
         : single == 0   ? "their interval of 95 % over seeds."
                         : "their interval of 95 % over seeds, or where there is one seed than " +
                             fixed(one_seed_resolution, 2) + " nats.";
  }
  return s;
}

/// Gaps to the baseline with their intervals, for several seeds.
std::string gaps(const comparison& c) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const auto& gap = c.standings[i].gap;
    if (i == c.baseline || !gap || !gap->half_width) continue;
    parts.push_back(c.arms[i].name + " " + estimate_text(*gap) + " (" + std::to_string(gap->count) + " seeds, s.d. " +
                    fixed(*gap->deviation, 4) + ")");
  }
  if (parts.empty()) return "";
  return "Differences to " + c.base().name +
         " in nats, means over pairs of equal seeds with their interval of 95 % (Student's t): " + join(parts) + ".";
}

/// " a: least 1.20, at step 3; 1 of 4 measured steps below it."; "" without measurements.
std::string stalls(const std::string& name, const std::vector<noise_point>& measured) {
  int below = 0;
  const noise_point* least = nullptr;
  for (const noise_point& n : measured) {
    below += *n.ratio < stall_ratio;
    if (least == nullptr || *n.ratio < *least->ratio) least = &n;
  }
  if (least == nullptr) return "";
  return " " + name + ": least " + fixed(*least->ratio, 2) + ", at step " + std::to_string(least->step) + "; " +
         std::to_string(below) + " of " + std::to_string(measured.size()) + " observed steps below it.";
}

/// The ratios of an arm's statistics, of all gradients of a step.
std::vector<noise_point> ratios_of(const arm& a, const char* event) {
  std::vector<noise_point> found;
  for (const observation& o : a.observations) {
    const auto ratio = o.numbers.find("norm_to_noise");
    if (o.event == event && ratio != o.numbers.end()) found.push_back({o.step, ratio->second});
  }
  return found;
}

/// Measurements of all GEMMs, by statistics and by triggers. Both have the same value of a step.
std::vector<noise_point> noise_of_all(const arm& a) {
  std::vector<noise_point> found = ratios_of(a, "noise_step");
  for (const noise_point& n : a.noise) {
    const bool known = std::any_of(found.begin(), found.end(), [&](const noise_point& o) { return o.step == n.step; });
    if (n.ratio && !known) found.push_back(n);
  }
  std::sort(found.begin(), found.end(), [](const noise_point& x, const noise_point& y) { return x.step < y.step; });
  return found;
}

/// Observed steps whose gradients drown in quantization noise: in each weight gradient's own GEMM, and in all GEMMs. Of
/// adapters the former are BF16 GEMMs and say nothing of the base.
std::string stalls(const comparison& c) {
  std::string own, all;
  std::vector<std::string> adapted, unmeasured;
  for (const arm& a : c.arms) {
    const std::string measured = stalls(a.name, noise_of_all(a));
    all += measured;
    if (!trains_adapters(a)) own += stalls(a.name, ratios_of(a, "step"));
    if (!trains_adapters(a) || a.observations.empty()) continue;
    adapted.push_back(a.name);
    if (measured.empty()) unmeasured.push_back(a.name);
  }
  std::string s;
  if (!own.empty()) s += " The GEMM of each weight gradient against FP32 over the same tensors, all together." + own;
  if (!all.empty()) s += " All gradients against a backward pass in BF16, which has the noise of all GEMMs." + all;
  if (!adapted.empty()) {
    s +=
        " Of " + join(adapted) +
        " the \"gradient\" records are those of the adapters, whose own GEMMs are BF16: their noise is not that of the "
        "quantized base, and no step of them is counted.";
  }
  if (!unmeasured.empty()) {
    s += " What the base does to the gradients of " + join(unmeasured) +
         " was not measured (train --statistics-noise does).";
  }
  if (s.empty()) return s;
  return "Gradient norm over quantization noise; below √3 = 1.73 training is expected to stall (arXiv 2505.19115)." + s;
}

std::string gap_at(const char* what, const difference& d, const arm& a) {
  return signed_nats(d.value, gap_decimals(a)) + " at " + what + " (step " + std::to_string(d.step) + ")";
}

/// The last difference before the switch and the first after it.
std::string around_switch(const arm& a, const arm& reference, const switch_point& at) {
  const auto [left, right] = gaps_around_switch(a, reference, at);
  std::vector<std::string> parts;
  if (!left.empty()) parts.push_back(gap_at("the last common evaluation before the switch", left.back(), a));
  if (!right.empty()) parts.push_back(gap_at("the first after it", right.front(), a));
  if (parts.empty()) return "The two have no evaluation at a common step around the switch.";
  return "Its gap to " + reference.name + " was " + join(parts) + ".";
}

std::string gap_at_end(const arm& a, const arm& reference) {
  const auto gap = final_gap(a, reference);
  const bool over = a.status == arm_status::ok || a.status == arm_status::stopped;
  if (gap && over && (reference.status == arm_status::ok || reference.status == arm_status::stopped)) {
    return "At the end (step " + std::to_string(a.step) + ") it was " + estimate_text(*gap) + " nats.";
  }
  const auto curve = gap_curve(a, reference);
  const std::string unfinished = "The two did not both finish after equally many tokens, so there is no gap at the end";
  return curve.empty() ? unfinished + "."
                       : unfinished + "; it was " + gap_at("their last common evaluation", curve.back(), a) + ".";
}

/// Share of the gap that remains at the first evaluation after the switch.
std::string left_of_gap(const gaps_around& gaps, std::int64_t switch_step, std::int64_t steps, int decimals) {
  const difference &before = gaps.before.back(), &after = gaps.after.front();
  return signed_nats(before.value, decimals) + " before the switch, " + signed_nats(after.value, decimals) + " " +
         std::to_string(after.step - switch_step) + " steps (" +
         fixed(100.0 * static_cast<double>(after.step - switch_step) / static_cast<double>(steps), 1) +
         " % of the run) after it";
}

/// The shape of the last healing, for comparison with AMD's.
std::string shape(const arm& a, const arm& reference) {
  const switch_point& at = a.switches.back();
  const gaps_around gaps = gaps_around_switch(a, reference, at);
  if (gaps.before.empty() || gaps.after.empty()) return "";
  std::string s = "Shape of healing: " + left_of_gap(gaps, at.step + at.spread, a.step, gap_decimals(a));
  if (!(gaps.before.back().value > 0)) {
    s += "; before the switch there was no gap above zero, so nothing to heal";
  } else if (a.seeds.size() == 1 && gaps.before.back().value < one_seed_resolution) {
    s += ", of a gap that is less than one seed resolves";
  }
  return " " + s + ".";
}

/// AMD's published curve, independent of the arms.
std::string published_healing(const comparison& c) {
  if (std::all_of(c.arms.begin(), c.arms.end(), [](const arm& a) { return a.switches.empty(); })) return "";
  const gaps_around gaps = amd_gaps_around_switch();
  return "Published, of another model: AMD's Llama 2 70B LoRA (MLPerf Training v6.0, MXFP4 healed to FP8 after step " +
         std::to_string(amd_switch_step) + " of " + std::to_string(amd_run_steps) +
         ", mean of three runs against ten FP8 runs of v5.1 with another learning rate and schedule): " +
         left_of_gap(gaps, amd_switch_step, amd_run_steps, 4) + ". Only the shape can be compared.";
}

std::string healing(const comparison& c, const arm& a) {
  const healing_partners partners = find_partners(c, a);
  std::string s;
  for (const switch_point& at : a.switches) {
    s += (s.empty() ? a.name : " It") + " switched from " + at.from + " to " + at.to +
         (at.spread == 0 ? " at step " : " at steps ") + std::to_string(at.step) +
         (at.spread == 0 ? "" : " to " + std::to_string(at.step + at.spread) + ", by seed") +
         (at.reason.empty() ? "" : " (" + at.reason + ")") + ".";
    if (at.loss_before && at.loss_after) {
      s += " On the same weights the loss went from " + fixed(at.loss_before, 4) + " to " + fixed(at.loss_after, 4) +
           " nats at once.";
    }
    if (partners.reference != nullptr) s += " " + around_switch(a, *partners.reference, at);
  }
  if (partners.reference == nullptr) return s + " There is no arm to measure it against.";
  s += " " + gap_at_end(a, *partners.reference) + shape(a, *partners.reference);
  if (partners.reference->schedule.size() != 1 || partners.reference->schedule.front().name != a.switches.back().to) {
    s += " (No arm ran " + a.switches.back().to + " from the start; " + partners.reference->name + " is the baseline.)";
  }
  if (partners.twin == nullptr) return s;
  const auto unhealed = final_gap(*partners.twin, *partners.reference);
  if (!unhealed) return s;
  s += " Its twin without the switch, " + partners.twin->name + ", ended at " + estimate_text(*unhealed) + " nats.";
  const auto healed = final_gap(a, *partners.twin);
  if (!healed || is_resolved(*healed)) return s;
  return s + " The two ends are closer than " +
         (healed->half_width ? "their interval over seeds." : "one seed resolves.");
}

std::string value_text(const json& v) { return v.is_string() ? v.get<std::string>() : v.dump(); }

/// Differences between the arms' settings, without which the comparison would mislead.
std::string unequal_terms(const comparison& c) {
  std::vector<std::string> parts;
  for (const char* key :
       {"seed", "commit", "version", "device", "compiler", "threads", "parameters", "train_tokens", "val_tokens"}) {
    if (!shared_field(c, key).is_null() || c.base().start.value(key, json()).is_null()) continue;
    std::vector<std::string> values;
    for (const arm& a : c.arms) values.push_back(a.name + " " + value_text(a.start.value(key, json())));
    parts.push_back(std::string(key) + " (" + join(values) + ")");
  }
  for (const char* section : {"model", "data", "train"}) {
    const auto get = [&](const arm& a) {
      const json config = a.start.value("config", json::object());
      const std::string own = section == std::string("model") ? model_section(config) : section;
      json found = config.is_object() ? config.value(own, json()) : json();
      if (found.is_object()) found.erase("seed");  // has a separate line
      return found;
    };
    const bool equal = std::all_of(c.arms.begin(), c.arms.end(), [&](const arm& a) { return get(a) == get(c.base()); });
    if (!equal) parts.push_back(std::string("the configuration's \"") + section + "\" section");
  }
  const bool tokens = std::all_of(c.arms.begin(), c.arms.end(), [&](const arm& a) {
    return a.status != arm_status::ok || c.base().status != arm_status::ok || a.tokens == c.base().tokens;
  });
  if (!tokens) parts.push_back("the number of tokens trained on");
  return parts.empty() ? "" : "The arms differ in more than their recipe, so compare with care: " + join(parts) + ".";
}

std::string caveat(const comparison& c) {
  const std::string rest =
      " on one small model: another size or length of training can change both gaps and ranking. The spread over "
      "validation windows says how well these models' losses are known, nothing of what another seed would give.";
  if (has_several_seeds(c)) return "These are a few seeds" + rest;
  const json seed = shared_field(c, "seed");
  const std::string seeds = seed.is_null() ? "One run per arm" : "One seed (" + value_text(seed) + ")";
  return seeds + rest +
         " Gaps of such a model move by several hundredths of a nat between seeds (of twelve arms with two seeds, one "
         "gap moved from 0.02 to 0.06), so nothing closer than " +
         fixed(one_seed_resolution, 2) + " nats is ranked here; several seeds of an arm resolve more.";
}

}  // namespace

std::vector<std::string> findings(const comparison& c) {
  std::vector<std::string> paragraphs = {learning(c), ranking(c), neighbours(c), gaps(c)};
  for (const arm& a : c.arms) {
    if (!a.switches.empty()) paragraphs.push_back(healing(c, a));
    for (std::size_t i = a.switches.size() + 1; i < a.schedule.size(); ++i) {
      const schedule_entry& e = a.schedule[i];
      if (!e.trigger.empty()) {
        paragraphs.push_back(a.name + ": what starts its switch to " + e.name + " (" + e.trigger +
                             ") has not been seen" + (a.seeds.size() > 1 ? " by every seed." : "."));
      } else if (e.from_step > a.step) {
        paragraphs.push_back(a.name + " never reached its planned switch to " + e.name + " at step " +
                             std::to_string(e.from_step) + ".");
      }
    }
  }
  paragraphs.push_back(published_healing(c));
  paragraphs.push_back(stalls(c));
  paragraphs.push_back(unequal_terms(c));
  paragraphs.push_back(caveat(c));
  paragraphs.erase(std::remove(paragraphs.begin(), paragraphs.end(), std::string()), paragraphs.end());
  return paragraphs;
}

}  // namespace rotoscale::program::report_parts
