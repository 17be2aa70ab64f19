// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The section "What this run says": sentences made from the numbers alone, by thresholds that do not depend on the
// outcome. Where the numbers decide nothing, the text says so.

#include <algorithm>
#include <cmath>
#include <functional>

#include "report/parts.hpp"

namespace rotoscale::llama_program::report_parts {

namespace {

/// An arm counts as learning when its final loss is below this share of its initial loss.
constexpr double learning_bar = 0.60;

std::string nats(double value) { return fixed(value, 4) + " nats"; }
std::string signed_nats(double value) { return signed_fixed(value, 4) + " nats"; }

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
      others.push_back(a.name + " has no initial loss in its log, so whether it learned cannot be said.");
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
    if (c.standings[i].rank > 0) ranked.push_back(a.name + " (" + fixed(*a.final_loss, 4) + ")");
    if (c.standings[i].rank == 0 && a.final_loss && a.status == arm_status::stopped) {
      apart += " " + a.name + " was stopped at step " + std::to_string(a.step) + " with " + nats(*a.final_loss) +
               "; the baseline saw a different number of tokens, so it is not ranked.";
    }
  }
  if (ranked.empty()) return "No arm finished with a loss, so there is no ranking." + apart;
  if (ranked.size() == 1)
    return "Only one arm finished with a loss that can be ranked: " + ranked.front() + "." + apart;
  return "By final validation loss in nats per token, lowest first: " + join(ranked) + "." + apart;
}

std::string neighbours(const comparison& c) {
  std::vector<std::string> close;
  std::vector<std::string> unknown;
  int pairs = 0;
  for (std::size_t i = 0; i + 1 < c.arms.size() && c.standings[i + 1].rank > 0; ++i) {
    const arm& a = c.arms[i];
    const arm& b = c.arms[i + 1];
    const maybe gap = final_gap(b, a);
    const maybe error = paired_error(b, a);
    ++pairs;
    if (!gap || !error) {
      unknown.push_back(a.name + " and " + b.name);
    } else if (std::fabs(*gap) < 2 * *error || *gap == 0) {
      close.push_back(a.name + " and " + b.name + " differ by " + nats(std::fabs(*gap)) +
                      ", with a paired standard error of " + fixed(*error, 4));
    }
  }
  if (pairs == 0) return "";
  std::string s;
  for (const std::string& pair : close) s += (s.empty() ? "" : " ") + pair + ": not resolved by this run.";
  if (!unknown.empty()) {
    s += (s.empty() ? "" : " ") + std::string("For ") + join(unknown) +
         " the logs hold no common validation windows after equally many tokens, so whether their difference is "
         "resolved cannot be said.";
  }
  if (!close.empty() || !unknown.empty()) {
    if (static_cast<int>(close.size() + unknown.size()) < pairs) {
      s += " All other neighbours in the ranking are at least two paired standard errors apart.";
    }
    return s;
  }
  return pairs == 1 ? "The two ranked arms are at least two paired standard errors apart."
                    : "All neighbours in the ranking are at least two paired standard errors apart.";
}

std::string gap_at(const char* what, const difference& d) {
  return signed_nats(d.value) + " at " + what + " (step " + std::to_string(d.step) + ")";
}

/// The last difference before the switch and the first after it. A point at the switch step lies on the side of the
/// recipe that it was evaluated under.
std::string around_switch(const arm& a, const arm& reference, const switch_point& at) {
  arm before = a;
  const auto is_after = [&](const eval_point& e) {
    return e.step > at.step || (e.step == at.step && e.recipe == at.to);
  };
  before.evals.erase(std::remove_if(before.evals.begin(), before.evals.end(), is_after), before.evals.end());
  arm after = a;
  after.evals.erase(std::remove_if(after.evals.begin(), after.evals.end(), std::not_fn(is_after)), after.evals.end());
  const auto left = gap_curve(before, reference);
  const auto right = gap_curve(after, reference);
  std::vector<std::string> parts;
  if (!left.empty()) parts.push_back(gap_at("the last common evaluation before the switch", left.back()));
  if (!right.empty()) parts.push_back(gap_at("the first after it", right.front()));
  if (parts.empty()) return "The two have no evaluation at a common step around the switch.";
  return "Its gap to " + reference.name + " was " + join(parts) + ".";
}

std::string gap_at_end(const arm& a, const arm& reference) {
  const maybe gap = final_gap(a, reference);
  const bool over = a.status == arm_status::ok || a.status == arm_status::stopped;
  if (gap && over && (reference.status == arm_status::ok || reference.status == arm_status::stopped)) {
    const maybe error = paired_error(a, reference);
    return "At the end (step " + std::to_string(a.step) + ") it was " + signed_fixed(*gap, 4) +
           (error ? " ± " + fixed(*error, 4) : "") + " nats.";
  }
  const auto curve = gap_curve(a, reference);
  const std::string unfinished = "The two did not both finish after equally many tokens, so there is no gap at the end";
  return curve.empty() ? unfinished + "."
                       : unfinished + "; it was " + gap_at("their last common evaluation", curve.back()) + ".";
}

std::string healing(const comparison& c, const arm& a) {
  const healing_partners partners = find_partners(c, a);
  std::string s;
  for (const switch_point& at : a.switches) {
    s += (s.empty() ? a.name : " It") + " switched from " + at.from + " to " + at.to + " at step " +
         std::to_string(at.step) + (at.reason.empty() ? "" : " (" + at.reason + ")") + ".";
    if (at.loss_before && at.loss_after) {
      s += " On the same weights the loss went from " + fixed(at.loss_before, 4) + " to " + fixed(at.loss_after, 4) +
           " nats at once.";
    }
    if (partners.reference != nullptr) s += " " + around_switch(a, *partners.reference, at);
  }
  if (partners.reference == nullptr) return s + " There is no arm to measure it against.";
  s += " " + gap_at_end(a, *partners.reference);
  if (partners.reference->schedule.size() != 1 || partners.reference->schedule.front().name != a.switches.back().to) {
    s += " (No arm ran " + a.switches.back().to + " from the start; " + partners.reference->name + " is the baseline.)";
  }
  if (partners.twin == nullptr) return s;
  const maybe unhealed = final_gap(*partners.twin, *partners.reference);
  if (!unhealed) return s;
  const maybe error = paired_error(*partners.twin, *partners.reference);
  return s + " Its twin without the switch, " + partners.twin->name + ", ended at " + signed_fixed(*unhealed, 4) +
         (error ? " ± " + fixed(*error, 4) : "") + " nats.";
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
      return config.is_object() ? config.value(section, json()) : json();
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
  const json seed = shared_field(c, "seed");
  const std::string seeds = seed.is_null() ? "One run per arm" : "One seed (" + value_text(seed) + ")";
  return seeds +
         " on one small model: a different seed, data order, size or length of training can change both gaps and "
         "ranking. The paired standard error covers only the choice of validation windows, not seeds: a difference of "
         "more than two of them says something about these trained models, not yet about their recipes.";
}

}  // namespace

std::vector<std::string> findings(const comparison& c) {
  std::vector<std::string> paragraphs = {learning(c), ranking(c), neighbours(c)};
  for (const arm& a : c.arms) {
    if (!a.switches.empty()) paragraphs.push_back(healing(c, a));
    for (std::size_t i = a.switches.size() + 1; i < a.schedule.size(); ++i) {
      const schedule_entry& e = a.schedule[i];
      if (!e.trigger.empty()) {
        paragraphs.push_back(a.name + ": what starts its switch to " + e.name + " (" + e.trigger + ") has not been seen.");
      } else if (e.from_step > a.step) {
        paragraphs.push_back(a.name + " never reached its planned switch to " + e.name + " at step " +
                             std::to_string(e.from_step) + ".");
      }
    }
  }
  paragraphs.push_back(unequal_terms(c));
  paragraphs.push_back(caveat(c));
  paragraphs.erase(std::remove(paragraphs.begin(), paragraphs.end(), std::string()), paragraphs.end());
  return paragraphs;
}

}  // namespace rotoscale::llama_program::report_parts
