#include "fuse/text.h"

namespace horizon::fuse {
namespace {

constexpr std::size_t kLongestList = 24;

}  // namespace

std::string quoted(const std::string& text) { return "'" + text + "'"; }

std::string list_text(const std::vector<std::string>& names) {
  std::string text = "[";
  for (std::size_t i = 0; i < names.size(); ++i) text += (i ? ", " : "") + quoted(names[i]);
  return text + "]";
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
