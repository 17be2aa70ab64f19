// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "field_names.hpp"

#include <algorithm>

#include "options.hpp"

namespace rotoscale::program {

namespace {

/// The fields of a run: "train.batch", "lora", "lora.rank".
struct field_visitor {
  std::vector<std::string>& fields;
  std::string section = "";

  template <class T>
  void operator()(const char* key, T& member, const char*) {
    field_visitor inner{fields, std::string(key) + "."};
    constexpr bool is_section = requires { describe(inner, member); };
    if constexpr (is_section) describe(inner, member);
    if constexpr (!is_section) fields.push_back(section + key);
    if constexpr (requires { describe(inner, *member); }) {  // a section that may be null
      typename T::value_type held;
      if (section.empty()) describe(inner, held);
    }
  }
};

const std::vector<std::string>& all_fields() {
  static const std::vector<std::string> fields = [] {
    std::vector<std::string> found;
    run_options run;
    describe(field_visitor{found}, run);
    return found;
  }();
  return fields;
}

bool is_field(const std::string& text) {
  return std::find(all_fields().begin(), all_fields().end(), text) != all_fields().end();
}

/// The field of a model or of training whose key this is, or nothing.
std::string field_of_key(const std::string& key) {
  for (const char* section : {"model.", "train."}) {
    if (is_field(section + key)) return section + key;
  }
  return "";
}

}  // namespace

std::string flag_of(const std::string& field) {
  const bool is_adapters = field.starts_with("lora.");
  std::string flag = (is_adapters ? "--lora-" : "--") + field.substr(field.rfind('.') + 1);  // npos + 1 is 0
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

void field_names::from_file(const std::string& file, const nlohmann::ordered_json& json, const std::string& section) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const std::string field = section + key;
    if (is_field(field)) files_[field] = {file, key};
    if (!value.is_object()) continue;
    for (const auto& [inner, ignored] : value.items()) {
      if (is_field(field + "." + inner)) files_[field + "." + inner] = {file, key + "." + inner};
    }
  }
}

void field_names::from_flag(const std::string& flag, const std::string& typed) {
  if (flag == "--recipe") {  // is --schedule's other name, and wins
    schedule_flag_ = flag;
    files_["schedule"] = {"", flag};
  }
  for (const std::string& field : all_fields()) {
    if (flag_of(field) == flag) files_[field] = {"", typed};
  }
}

std::string field_names::schedule() const {
  const place* const from = find_file("schedule");
  return from != nullptr ? from->file + ": " + from->key : schedule_flag_;
}

const field_names::place* field_names::find_file(const std::string& field) const {
  const auto found = files_.find(field);
  return found == files_.end() || found->second.file.empty() ? nullptr : &found->second;
}

std::string field_names::name(const std::string& field, const std::string& file) const {
  const auto found = files_.find(field);
  if (found == files_.end()) {  // a default has the name that would set it there
    return file.empty() ? flag_of(field) : field.substr(field.rfind('.') + 1);
  }
  const place& from = found->second;
  return from.file.empty() || from.file == file ? from.key : from.key + " (" + from.file + ")";
}

std::string field_names::text(const std::string& fault, const std::string& file) const {
  const char* const letters = "abcdefghijklmnopqrstuvwxyz_0123456789.";
  const std::string product = " * ";
  std::string out;
  for (std::size_t at = 0; at < fault.size();) {
    const std::size_t end = std::min(fault.find_first_not_of(letters, at), fault.size());
    std::string word = fault.substr(at, std::max(end - at, std::size_t{1}));
    const bool is_factor = fault.compare(end, product.size(), product) == 0 ||
                           (at >= product.size() && fault.compare(at - product.size(), product.size(), product) == 0);
    const std::string field = is_field(word) ? word : field_of_key(word);
    const bool stands_alone = at == 0 || fault[at - 1] != '-';  // "--batch" is a flag already
    const bool is_named = word.find_first_of("._") != word.npos || is_factor;
    at += word.size();
    out += !field.empty() && stands_alone && is_named ? name(field, file) : word;
  }
  return out;
}

io::error field_names::error(const std::string& fault) const {
  const std::size_t end = std::min(fault.find(": "), fault.size());
  const std::string what = fault.substr(std::min(end + 2, fault.size()));
  std::string field = fault.substr(0, end), rest;
  while (!is_field(field) && field.rfind('.') != field.npos) {  // "model.rope_scaling.factor"
    rest.insert(0, field.substr(field.rfind('.')));
    field.resize(field.rfind('.'));
  }
  const place* const from = find_file(field);
  if (from == nullptr) return {name(field) + rest, text(what)};
  return {from->file, from->key + rest + ": " + text(what, from->file)};
}

}  // namespace rotoscale::program
