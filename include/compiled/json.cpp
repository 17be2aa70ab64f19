// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rotoscale/io/json.hpp"

namespace rotoscale::io::detail {

template json parse_as<json>(std::string_view, const std::string&, std::size_t, keep_all);
template std::string text_as<json>(const json&, const std::string&, int);

}  // namespace rotoscale::io::detail
