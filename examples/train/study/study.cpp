// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "study/study.hpp"

#include <algorithm>
#include <set>

#include "rotoscale/io/error.hpp"

namespace rotoscale::program {

namespace {

using json = nlohmann::ordered_json;

/// Takes a value that has no fixed form out of its object; `kinds`: what it may be.
json take(json& object, const char* key, json otherwise, const std::string& where, bool may_be_text) {
  if (!object.is_object() || !object.contains(key)) return otherwise;
  json value = object.at(key);
  object.erase(key);
  const bool fits = value.is_object() || (may_be_text && (value.is_string() || value.is_array()));
  if (!fits) throw io::error(where, std::string(key) + (may_be_text ? ": a name or an object" : ": not an object"));
  return value;
}

/// File names are made of it.
bool is_plain(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
           c == '.';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), plain);
}

void check_arms(const study_file& s, const std::string& where) {
  if (s.arms.empty()) throw io::error(where, "arms: a study needs one");
  std::set<std::string> names;
  for (const study_arm& a : s.arms) {
    if (!is_plain(a.name)) throw io::error(where, "arms: '" + io::printable(a.name) + "' is not a plain name");
    // A fork follows the arm that it leaves, so that runs in order find their checkpoint.
    if (a.fork && !names.contains(a.fork->arm)) {
      throw io::error(where, a.name + ".fork.arm: no earlier arm '" + io::printable(a.fork->arm) + "'");
    }
    if (!names.insert(a.name).second) throw io::error(where, "arms: two are named '" + a.name + "'");
  }
  if (!names.contains(s.baseline)) {
    throw io::error(where, "baseline: no arm '" + io::printable(s.baseline) + "'" +
                               io::did_you_mean(s.baseline, {names.begin(), names.end()}));
  }
}

}  // namespace

study_file read_study(const std::filesystem::path& path) {
  const std::string where = path.string();
  json content = io::read_json(where);
  study_file s;
  s.options = take(content, "options", json::object(), where, false);
  std::vector<study_arm> raw;
  if (content.is_object() && content.contains("arms") && content["arms"].is_array()) {
    for (json& arm : content["arms"]) {
      study_arm a;
      a.schedule = take(arm, "schedule", "", where, true);
      a.options = take(arm, "options", json::object(), where, false);
      raw.push_back(std::move(a));
    }
  }
  io::from_json(content, s, where);
  for (std::size_t i = 0; i < raw.size() && i < s.arms.size(); ++i) {
    s.arms[i].options = std::move(raw[i].options);
    s.arms[i].schedule = raw[i].schedule == "" ? json(s.arms[i].name) : std::move(raw[i].schedule);
  }
  if (s.baseline.empty() && !s.arms.empty()) s.baseline = s.arms.front().name;
  if (s.seeds < 1 || s.seeds > 10000) throw io::error(where, "seeds: not between 1 and 10000");
  if (s.last_evaluations < 1) throw io::error(where, "last_evaluations: below 1");
  if (s.target < 0 || s.tokens_per_s < 0) throw io::error(where, "target and tokens_per_s must not be negative");
  check_arms(s, where);
  return s;
}

json study_json(study_file study) {
  json content = io::to_json(study);
  content["options"] = study.options;
  for (std::size_t i = 0; i < study.arms.size(); ++i) {
    json& arm = content["arms"][i];
    if (!study.arms[i].fork) arm.erase("fork");
    arm["schedule"] = study.arms[i].schedule;
    arm["options"] = study.arms[i].options;
  }
  return content;
}

}  // namespace rotoscale::program
