// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// JSON for "described" structs. A struct lists its fields once, in a function `describe(visitor, object)` found by ADL.
// It calls visitor("key", object.member, "help text with unit") for each field; visitors read and write the struct. No
// other header includes nlohmann's.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"

namespace rotoscale::io {

namespace detail {

using json = nlohmann::ordered_json;

struct any_visitor {
  template <class Member>
  void operator()(const char*, Member&, const char*) {}
};

template <class T>
concept described = requires(T& object, any_visitor visitor) {
  describe(visitor, object);
};

/// A type with named values, as enumerations have: to_string, from_string and names (called with any value), found by
/// ADL.
template <class E>
concept named_enum = (std::is_enum_v<E> || std::is_class_v<E>)&&requires(E value, E& out, std::string_view text) {
  { to_string(value) } -> std::convertible_to<std::string_view>;
  { from_string(text, out) } -> std::convertible_to<bool>;
  { names(value) } -> std::convertible_to<std::vector<std::string>>;
};

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <class T>
inline constexpr bool always_false = false;

/// The double with the shortest decimal form that reads back as `value`: 0.1f is written 0.1, not 0.10000000149011612.
inline double shortest_double(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double shortest = 0;
  std::from_chars(text, end, shortest);
  // Rounding to double and then to float may differ from rounding once. NaN and Inf have no decimal form.
  return std::isfinite(value) && static_cast<float>(shortest) == value ? shortest : static_cast<double>(value);
}

template <class T>
json write_value(const T& value) {
  if constexpr (std::same_as<T, float>) {
    return json(shortest_double(value));
  } else if constexpr (std::same_as<T, bool> || std::integral<T> || std::same_as<T, double> ||
                       std::same_as<T, std::string>) {
    return json(value);
  } else if constexpr (named_enum<T>) {
    return json(std::string(to_string(value)));
  } else if constexpr (is_optional<T>) {
    return value ? write_value(*value) : json(nullptr);
  } else if constexpr (is_vector<T>) {
    json array = json::array();
    for (const typename T::value_type& element : value) array.push_back(write_value(element));
    return array;
  } else if constexpr (described<T>) {
    json object = json::object();
    // describe takes a mutable object because it also serves reading; this visitor does not write.
    describe([&object](std::string_view key, auto& member,
                       const auto&...) { object[std::string(key)] = write_value(std::as_const(member)); },
             const_cast<T&>(value));
    return object;
  } else {
    static_assert(always_false<T>, "no JSON form: give the type a describe() or, for an enum, to_string and names");
  }
}

/// Position of a value for messages: file and path of keys.
struct place {
  std::string where;
  std::string path;

  place key(std::string_view name) const { return {where, (path.empty() ? "" : path + ".") + printable(name)}; }
  place element(std::size_t i) const { return {where, path + "[" + std::to_string(i) + "]"}; }
  [[noreturn]] void fail(const std::string& what) const {
    throw error(path.empty() ? where : where + ": " + path, what);
  }
};

inline std::string kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null: return "null";
    case json::value_t::boolean: return "a boolean";
    case json::value_t::string: return "a string";
    case json::value_t::array: return "an array";
    case json::value_t::object: return "an object";
    default: return value.is_number() ? "the number " + value.dump() : "something else";
  }
}

[[noreturn]] inline void fail_type(const char* expected, const json& found, const place& at) {
  at.fail(std::string("expected ") + expected + ", found " + kind_of(found));
}

template <std::integral T>
void read_integer(const json& value, T& out, const place& at) {
  if (!value.is_number_integer()) fail_type("an integer", value, at);
  const auto assign = [&](auto number) {
    if (!std::in_range<T>(number)) {
      at.fail(value.dump() + " is out of range: " + std::to_string(std::numeric_limits<T>::min()) + " to " +
              std::to_string(std::numeric_limits<T>::max()));
    }
    out = static_cast<T>(number);
  };
  if (value.is_number_unsigned()) {
    assign(value.get<std::uint64_t>());
  } else {
    assign(value.get<std::int64_t>());
  }
}

template <std::floating_point T>
void read_float(const json& value, T& out, const place& at) {
  if (!value.is_number()) fail_type("a number", value, at);
  const double number = value.get<double>();
  if (!std::isfinite(number)) at.fail("expected a finite number");
  // From here on a double rounds to Inf as float: the midpoint of the greatest float and 2^128.
  if (std::same_as<T, float> && std::abs(number) >= 0x1.ffffffp+127) {
    at.fail(value.dump() + " is out of range of 32-bit floating point");
  }
  out = static_cast<T>(number);
}

template <named_enum E>
void read_enum(const json& value, E& out, const place& at) {
  if (!value.is_string()) fail_type("a name (a string)", value, at);
  const std::string& name = value.get_ref<const std::string&>();
  if (!from_string(std::string_view(name), out)) {
    at.fail("unknown value '" + printable(name) + "'" + did_you_mean(name, names(E{})));
  }
}

template <class T>
void read_value(const json& value, T& out, const place& at);

template <described T>
void read_object(const json& value, T& out, const place& at) {
  if (!value.is_object()) fail_type("an object", value, at);
  std::vector<std::string> keys;
  describe([&keys](std::string_view key, auto&, const auto&...) { keys.emplace_back(key); }, out);
  for (const auto& [key, unused] : value.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    at.key(key).fail("unknown key" + did_you_mean(key, keys));
  }
  describe(
      [&](std::string_view key, auto& member, const auto&...) {
        const auto found = value.find(std::string(key));
        if (found != value.end()) read_value(*found, member, at.key(key));
      },
      out);
}

template <class T>
void read_value(const json& value, T& out, const place& at) {
  if constexpr (std::same_as<T, bool>) {
    if (!value.is_boolean()) fail_type("true or false", value, at);
    out = value.get<bool>();
  } else if constexpr (std::integral<T>) {
    read_integer(value, out, at);
  } else if constexpr (std::floating_point<T>) {
    read_float(value, out, at);
  } else if constexpr (std::same_as<T, std::string>) {
    if (!value.is_string()) fail_type("a string", value, at);
    out = value.get<std::string>();
  } else if constexpr (named_enum<T>) {
    read_enum(value, out, at);
  } else if constexpr (is_optional<T>) {
    if (value.is_null()) return out.reset();
    typename T::value_type held = out ? *out : typename T::value_type{};
    read_value(value, held, at);
    out = std::move(held);
  } else if constexpr (is_vector<T>) {
    if (!value.is_array()) fail_type("an array", value, at);
    T elements;
    for (const json& item : value) {
      typename T::value_type element{};
      read_value(item, element, at.element(elements.size()));
      elements.push_back(std::move(element));
    }
    out = std::move(elements);
  } else if constexpr (described<T>) {
    read_object(value, out, at);
  } else {
    static_assert(always_false<T>, "no JSON form: give the type a describe() or, for an enum, from_string and names");
  }
}

/// Why text is no JSON at an offset: "syntax error at '}'".
inline std::string syntax_fault(std::string_view text, std::size_t offset) {
  if (offset >= text.size()) return "syntax error: the text ends too early";
  return "syntax error at '" + printable(text.substr(offset, 1)) + "'";
}

/// Parser callback that keeps every value.
struct keep_all {
  template <class Event, class Json>
  bool operator()(int, Event, Json&) {
    return true;
  }
};

/// Parser callback that rejects duplicate keys (nlohmann would keep one) and excessive nesting.
template <class Json, class Next>
class parse_guard {
 public:
  parse_guard(std::string where, Next& next) : where_(std::move(where)), next_(next) {}

  bool operator()(int depth, typename Json::parse_event_t event, Json& parsed) {
    using event_t = typename Json::parse_event_t;
    if (event == event_t::object_start || event == event_t::array_start) {
      if (open_.size() >= 128) throw error(where_, "nested too deep");
      open_.emplace_back();
    } else if (event == event_t::object_end || event == event_t::array_end) {
      open_.pop_back();
    } else if (event == event_t::key) {
      const std::string& key = parsed.template get_ref<const std::string&>();
      if (!open_.back().insert(key).second) throw error(where_, "the key '" + printable(key) + "' is given twice");
    }
    return next_(depth, event, parsed);
  }

 private:
  std::string where_;
  Next& next_;
  std::vector<std::unordered_set<std::string>> open_;
};

/// Parses one document. `line` is its line number in the file, or 0 if it is the whole file. `next`: see parse_guard.
template <class Json, class Next = keep_all>
Json parse_as(std::string_view text, const std::string& file, std::size_t line = 0, Next next = {}) {
  const std::string where = line == 0 ? file : file + ": line " + std::to_string(line);
  const auto fail_at = [&](std::size_t offset, const std::string& what) {
    const std::string_view before = text.substr(0, offset);
    const auto row = std::max<std::size_t>(line, 1) + std::size_t(std::count(before.begin(), before.end(), '\n'));
    const auto column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    throw error(file, "line " + std::to_string(row) + ", column " + std::to_string(column) + ": " + what);
  };
  // nlohmann's parser stops at a zero byte and would accept anything after it.
  if (const auto zero = text.find('\0'); zero != text.npos) fail_at(zero, "a zero byte");
  parse_guard<Json, Next> guard(where, next);
  Json parsed;
  try {
    parsed = Json::parse(text.begin(), text.end(), std::ref(guard));
  } catch (const nlohmann::detail::parse_error& e) {
    const std::size_t offset = e.byte == 0 ? 0 : e.byte - 1;
    fail_at(offset, syntax_fault(text, offset));
  } catch (const nlohmann::detail::out_of_range&) {
    throw error(where, "a number is beyond the range of FP64");
  }
  return parsed;
}

/// JSON text, on one line if `indent` is negative.
template <class Json>
std::string text_as(const Json& value, const std::string& where, int indent) {
  try {
    return value.dump(indent);
  } catch (const nlohmann::detail::type_error&) {
    throw error(where, "cannot be written as JSON: a string is not UTF-8");
  }
}

#if defined(ROTOSCALE_COMPILED)
extern template json parse_as<json>(std::string_view, const std::string&, std::size_t, keep_all);
extern template std::string text_as<json>(const json&, const std::string&, int);
#endif

}  // namespace detail

/// Parses one JSON document. Messages name `file` and, if the file has a document per line, `line` (from 1; else 0).
inline nlohmann::ordered_json parse_json(std::string_view text, const std::string& file, std::size_t line = 0) {
  return detail::parse_as<nlohmann::ordered_json>(text, file, line);
}

/// Limit on the bytes of a document for read_json: parsed, it takes many times its size.
inline constexpr std::uint64_t json_max_bytes = std::uint64_t{64} << 20;

/// Reads a JSON file, without decompression. Throws io::error with file and position for invalid JSON.
inline nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  const std::string text = read_raw_file(path, json_max_bytes);
  if (const char* kind = foreign_content(text)) throw error(path.string(), std::string("is ") + kind);
  return parse_json(text, path.string());
}

/// JSON as text, on one line if `indent` is negative. NaN and Inf become null, since JSON has neither.
inline std::string json_text(const nlohmann::ordered_json& value, const std::string& where, int indent = -1) {
  return detail::text_as(value, where, indent);
}

/// Writes an indented file with a final newline; it appears whole or not at all.
inline void write_json(const std::filesystem::path& path, const nlohmann::ordered_json& value) {
  write_file_atomically(path, json_text(value, path.string(), 2) + "\n");
}

/// A described struct as a JSON object, fields in the described order. Every finite number reads back exactly.
template <class T>
nlohmann::ordered_json to_json(const T& object) {
  return detail::write_value(object);
}

/// Reads a described struct. Members without a key keep their values. On error `object` is unchanged.
template <class T>
void from_json(const nlohmann::ordered_json& value, T& object, const std::string& where) {
  T read = object;
  detail::read_value(value, read, detail::place{where, ""});
  object = std::move(read);
}

}  // namespace rotoscale::io
