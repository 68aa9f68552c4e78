#include "fuse/text.h"

#include <algorithm>

namespace horizon::fuse {
namespace {

constexpr std::size_t kLongestList = 24;
constexpr std::size_t kLongestName = 200;

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string printable(const std::string& text) {
  std::size_t end = text.size();
  if (end > kLongestName) {
    end = kLongestName;
    while (end > 0 && continues_character(text[end])) --end;
  }
  std::string result;
  for (std::size_t i = 0; i < end; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != 0x7F) {
      result += text[i];
      continue;
    }
    constexpr char kDigits[] = "0123456789abcdef";
    result += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  if (end < text.size()) result.append("… (").append(std::to_string(text.size())).append(" bytes)");
  return result;
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  result += printable(text);
  result += "'";
  return result;
}

std::string list_text(const std::vector<std::string>& names) {
  std::vector<std::string> words;
  const std::size_t shown = std::min(names.size(), kLongestList + 2);
  words.reserve(shown);
  for (std::size_t i = 0; i < shown; ++i) words.push_back(quoted(names[i]));
  if (shown == names.size()) return std::string("[").append(joined(words)).append("]");
  words.resize(kLongestList);
  std::string text = "[";
  text += joined(words);
  text += ", … (";
  text += std::to_string(names.size());
  text += " in all)]";
  return text;
}

std::string joined(const std::vector<std::string>& words, const std::string& last_separator) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i == kLongestList && words.size() > kLongestList + 1) {
      return text + ", … (" + std::to_string(words.size()) + " in all)";
    }
    if (i > 0) text += i + 1 == words.size() ? last_separator : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace horizon::fuse
