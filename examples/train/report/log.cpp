// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reads one run's log: checks every known record, drops records that a resume superseded, and derives the report's
// values. A log that ends early is an incomplete arm, not an error.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "report/parts.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/io/jsonl.hpp"

namespace rotoscale::program::report_parts {

namespace {

/// Line number of a record. The reader skips blank lines, so record numbers are smaller.
std::size_t line_of_record(const std::string& file, std::size_t index) {
  std::istringstream text(io::read_file(file));
  std::size_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string::npos && index-- == 0) break;
  }
  return number;
}

/// One record with the place it came from, for messages.
class record {
 public:
  record(const json& value, const std::string& file, std::size_t index) : value_(value), file_(file), index_(index) {
    if (!value_.is_object()) fail("not a JSON object, so this is no training log");
    event_ = text("event");
  }

  const std::string& event() const { return event_; }
  const json& value() const { return value_; }

  [[noreturn]] void fail(const std::string& what) const {
    const std::string kind = event_.empty() ? "" : "\"" + event_ + "\" record: ";
    throw io::error(file_ + ": line " + std::to_string(line_of_record(file_, index_)) + ": " + kind + what);
  }

  const json* find(const std::string& key) const {
    const auto at = value_.find(key);
    return at == value_.end() ? nullptr : &*at;
  }

  std::string text(const std::string& key) const {
    const json* v = find(key);
    if (v == nullptr || !v->is_string()) fail("no text \"" + key + "\", so this is no training log of this version");
    return v->get<std::string>();
  }

  std::string text_or_empty(const std::string& key) const { return find(key) == nullptr ? "" : text(key); }

  std::int64_t count(const std::string& key) const {
    const json* v = find(key);
    if (v == nullptr || !v->is_number_integer()) fail("\"" + key + "\" is missing or not an integer");
    const auto n = v->get<std::int64_t>();
    if (n < 0) fail("\"" + key + "\" is negative");
    return n;
  }

  /// No value for null, missing and non-finite numbers: JSON has no NaN, and a diverged run has no loss.
  maybe number(const std::string& key) const {
    const json* v = find(key);
    if (v == nullptr || v->is_null()) return std::nullopt;
    if (!v->is_number()) fail("\"" + key + "\" is not a number");
    const double x = v->get<double>();
    return std::isfinite(x) ? maybe(x) : std::nullopt;
  }

 private:
  const json& value_;
  const std::string& file_;
  std::size_t index_;
  std::string event_;
};

template <class Point, class Same>
void put(std::vector<Point>& points, Point point, Same same) {
  // Steps nearly always ascend, so that no search is needed. A replacement is appended as well: of two points of one
  // step the later record must remain the later point.
  if (!points.empty() && points.back().step >= point.step) {
    const auto old = std::find_if(points.rbegin(), points.rend(), [&](const Point& p) { return same(p, point); });
    if (old != points.rend()) points.erase(std::next(old).base());
  }
  points.push_back(std::move(point));
}

/// The event of a record.
std::string kind_text(const json& object) {
  const auto kind = object.find("kind");
  return kind != object.end() && kind->is_string() ? kind->get<std::string>() : "";
}

std::vector<schedule_entry> read_schedule(const record& r) {
  const json* list = r.find("schedule");
  if (list == nullptr || !list->is_array() || list->empty()) r.fail("\"schedule\" is missing or not a list");
  std::vector<schedule_entry> schedule;
  for (const json& item : *list) {
    const auto step = item.is_object() ? item.find("from_step") : item.end();
    const auto recipe = item.is_object() ? item.find("recipe") : item.end();
    if (step == item.end() || !step->is_number_integer() || recipe == item.end() || !recipe->is_object() ||
        !recipe->contains("name") || !recipe->at("name").is_string()) {
      r.fail("an entry of \"schedule\" needs an integer \"from_step\" and a \"recipe\" with a \"name\"");
    }
    schedule_entry entry{step->get<std::int64_t>(), recipe->at("name").get<std::string>(), ""};
    const auto trigger = item.find("trigger");
    if (trigger != item.end() && trigger->is_object()) entry.trigger = kind_text(*trigger);
    schedule.push_back(std::move(entry));
  }
  return schedule;
}

void read_start(arm& a, const record& r) {
  const std::string name = r.text("name");
  if (name.empty()) r.fail("the arm has an empty name");
  if (!a.name.empty() && name != a.name) r.fail("arm \"" + name + "\" in the log of \"" + a.name + "\"");
  a.name = name;
  a.start = r.value();
  a.schedule = read_schedule(r);
}

void drop_end(arm& a) {
  a.status = arm_status::incomplete;
  a.final_loss = a.best_loss = a.seconds = std::nullopt;
  a.window_losses.clear();
}

void rewind(arm& a, std::int64_t step) {
  const auto is_later = [&](const auto& point) { return point.step > step; };
  std::erase_if(a.train, is_later);
  std::erase_if(a.evals, is_later);
  std::erase_if(a.switches, is_later);
  std::erase_if(a.noise, is_later);
  drop_end(a);
}

void read_end(arm& a, const record& r) {
  const std::string status = r.text("status");
  if (status == "ok" || status == "target") {
    a.status = arm_status::ok;
  } else if (status == "diverged") {
    a.status = arm_status::diverged;
  } else if (status == "stopped" || status == "interrupted" || status == "failed") {
    a.status = arm_status::stopped;
  } else {
    r.fail("unknown status \"" + status + "\"");
  }
  a.step = r.count("step");
  a.tokens = r.count("tokens");
  a.seconds = r.number("seconds");
  a.final_loss = r.number("final_val_loss");
  a.best_loss = r.number("best_val_loss");
  if (r.find("final_average_val_loss") != nullptr) a.average_loss = r.number("final_average_val_loss");
  a.window_losses.clear();
  const json* windows = r.find("window_losses");
  if (windows == nullptr || windows->is_null()) return;
  if (!windows->is_array()) r.fail("\"window_losses\" is not a list");
  for (const json& w : *windows) {
    if (!w.is_number() && !w.is_null()) r.fail("\"window_losses\" holds something that is not a number");
    a.window_losses.push_back(w.is_number() ? w.get<double>() : std::nan(""));
  }
}

/// The trigger that started a phase; empty: its step did.
std::string reason_text(const record& r) {
  const json* const reason = r.find("reason");
  if (reason == nullptr || !reason->is_object()) return "";
  const std::string kind = kind_text(*reason);
  const auto value = reason->find("value");
  return kind == "step" ? "" : kind + (value != reason->end() && value->is_number() ? " " + value->dump() : "");
}

void read_record(arm& a, const record& r) {
  const auto same_step = [](const auto& x, const auto& y) { return x.step == y.step; };
  if (r.event() == "step") {
    put(a.train, train_point{r.count("step"), r.count("tokens"), r.number("loss"), r.number("seconds")}, same_step);
  } else if (r.event() == "eval") {
    put(a.evals, eval_point{r.count("step"), r.count("tokens"), r.number("val_loss"), r.text_or_empty("recipe")},
        [](const eval_point& x, const eval_point& y) { return x.step == y.step && x.recipe == y.recipe; });
  } else if (r.event() == "switch") {
    switch_point at{r.count("step"), r.text("from"), r.text("to"), r.number("val_loss_before"), std::nullopt, "", 0};
    if (r.find("val_loss_after") != nullptr) at.loss_after = r.number("val_loss_after");
    at.reason = reason_text(r);
    put(a.switches, at, same_step);
  } else if (r.event() == "noise") {
    put(a.noise, noise_point{r.count("step"), r.number("gradient_to_noise")}, same_step);
  } else if (r.event() == "resume" || r.event() == "rollback") {
    rewind(a, r.count("step"));
  } else if (r.event() == "end") {
    read_end(a, r);
  }
  // Other events are left alone, so that a newer trainer may log more.
}

/// The loss that a switch was decided on is an evaluation, whether or not it was also logged as one.
void add_switch_evaluations(arm& a) {
  for (const switch_point& s : a.switches) {
    const auto at = std::find_if(a.evals.begin(), a.evals.end(), [&](const eval_point& e) { return e.step >= s.step; });
    if (!s.loss_before || (at != a.evals.end() && at->step == s.step && at->recipe != s.to)) continue;
    const auto t = std::find_if(a.train.begin(), a.train.end(), [&](const train_point& p) { return p.step == s.step; });
    eval_point before{s.step, std::nullopt, s.loss_before, s.from};
    if (t != a.train.end()) before.tokens = t->tokens;
    a.evals.insert(at, before);
  }
}

/// The curve ends with the final loss, which the table ranks by: an evaluation at the last step may read fewer windows.
void end_with_final_loss(arm& a) {
  if (!a.final_loss) return;
  if (a.evals.empty() || a.evals.back().step != a.step) {
    const auto phase = std::find_if(a.schedule.rbegin(), a.schedule.rend(),
                                    [&](const schedule_entry& e) { return e.from_step <= a.step; });
    a.evals.push_back({a.step, a.tokens, {}, phase == a.schedule.rend() ? "" : phase->name});
  }
  a.evals.back().loss = a.final_loss;
}

void finish(arm& a) {
  const auto by_step = [](const auto& x, const auto& y) { return x.step < y.step; };
  std::stable_sort(a.train.begin(), a.train.end(), by_step);
  std::stable_sort(a.evals.begin(), a.evals.end(), by_step);
  std::stable_sort(a.switches.begin(), a.switches.end(), by_step);
  add_switch_evaluations(a);
  end_with_final_loss(a);
  if (a.status == arm_status::incomplete) {
    a.step = a.tokens = 0;
    if (!a.evals.empty()) {
      a.step = a.evals.back().step;
      a.tokens = a.evals.back().tokens.value_or(0);
    }
    if (!a.train.empty() && a.train.back().step >= a.step) {
      a.step = a.train.back().step;
      a.tokens = a.train.back().tokens;
      a.seconds = a.train.back().seconds;
    }
  }
  if (!a.evals.empty() && a.evals.front().step == 0) a.initial_loss = a.evals.front().loss;
  a.seeds = {{a.start.value("seed", json()), a.final_loss, a.tokens, a.status}};
  if (!a.best_loss) {
    for (const eval_point& e : a.evals)
      if (e.loss && (!a.best_loss || *e.loss < *a.best_loss)) a.best_loss = e.loss;
  }
}

std::string log_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (!fs::exists(path, ignored)) throw io::error(path + ": no such log file or run directory");
    return path;
  }
  const std::string file = (fs::path(path) / "log.jsonl").string();
  if (!fs::exists(file, ignored)) throw io::error(path + ": no log.jsonl in this directory");
  return file;
}

}  // namespace

arm read_arm(const std::string& path) {
  arm a;
  a.file = log_file(path);
  const std::vector<json> values = io::read_jsonl(a.file);
  if (values.empty()) throw io::error(a.file + ": empty log");
  std::vector<record> records;
  for (std::size_t i = 0; i < values.size(); ++i) records.emplace_back(values[i], a.file, i);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const record& r = records[i];
    if (i == 0 && r.event() != "start") r.fail("a training log begins with a \"start\" record");
    if (r.event() == "start") {
      // A second start that no resume follows is a new run from step 0 written to the same file.
      const bool resumed = i + 1 < records.size() && records[i + 1].event() == "resume";
      if (i > 0 && !resumed) rewind(a, -1);
      read_start(a, r);
    } else {
      read_record(a, r);
    }
  }
  finish(a);
  a.observations = read_observations((std::filesystem::path(a.file).parent_path() / "statistics.jsonl").string());
  return a;
}

std::string recipe_text(const arm& a) {
  std::string s;
  for (const schedule_entry& e : a.schedule) {
    if (!s.empty()) s += " -> ";
    s += e.name;
    if (e.from_step > 0) s += " @" + (e.trigger.empty() ? std::to_string(e.from_step) : e.trigger);
  }
  return s;
}

const char* status_text(arm_status status) {
  switch (status) {
    case arm_status::ok: return "ok";
    case arm_status::stopped: return "stopped";
    case arm_status::diverged: return "diverged";
    case arm_status::incomplete: break;
  }
  return "incomplete";
}

bool trains_adapters(const arm& a) {
  const auto config = a.start.find("config");
  if (config == a.start.end() || !config->is_object()) return false;
  const auto lora = config->find("lora");
  return lora != config->end() && lora->is_object();
}

const char* model_section(const json& config) {
  const auto gpt2 = config.find("gpt2");
  return gpt2 != config.end() && gpt2->is_object() ? "gpt2" : "model";
}

maybe tokens_per_second(const arm& a) {
  if (!a.seconds || !(*a.seconds > 0) || a.tokens <= 0) return std::nullopt;
  return static_cast<double>(a.tokens) / *a.seconds;
}

}  // namespace rotoscale::program::report_parts
