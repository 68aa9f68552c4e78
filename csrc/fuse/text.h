#pragma once

#include <string>
#include <vector>

namespace horizon::fuse {

/// 'conv'
std::string quoted(const std::string& text);

/// ['conv', 'bn']
std::string list_text(const std::vector<std::string>& names);

/// "a, b or c"; long lists are cut, with a count.
std::string joined(const std::vector<std::string>& words, const std::string& last_separator = ", ");

}  // namespace horizon::fuse
