#pragma once

#include <string>
#include <vector>

namespace horizon::fuse {

/// `text` on one line, control characters escaped, and cut if it is long. Expects UTF-8.
std::string printable(const std::string& text);

/// 'conv', printable
std::string quoted(const std::string& text);

/// ['conv', 'bn'], printable; long lists are cut, with a count.
std::string list_text(const std::vector<std::string>& names);

/// "a, b or c"; long lists are cut, with a count.
std::string joined(const std::vector<std::string>& words, const std::string& last_separator = ", ");

}  // namespace horizon::fuse
