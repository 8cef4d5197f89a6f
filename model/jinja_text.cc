#include "model/jinja_text.h"

#include <algorithm>
#include <cctype>

namespace nibble::model {
namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// The length of the string literal that `text` begins with, quotes included.
size_t LiteralLength(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == text[0]) {
      return i + 1;
    }
  }
  return text.size();
}

std::string DecodeLiteral(std::string_view inside) {
  std::string out;
  for (size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] != '\\' || i + 1 == inside.size()) {
      out += inside[i];
      continue;
    }
    const char kind = inside[++i];
    out += kind == 'n' ? '\n' : kind == 't' ? '\t' : kind == 'r' ? '\r' : kind;
  }
  return out;
}

// The inside of a tag in its one spelling.
std::string CanonicalInside(std::string_view inside) {
  std::string out;
  size_t literal_end = 0;  // of the latest literal in `out`
  for (size_t i = 0; i < inside.size();) {
    const char c = inside[i];
    if (c == '\'' || c == '"') {
      const size_t length = LiteralLength(inside.substr(i));
      const size_t closing = length > 1 ? 1 : 0;
      // 'a'+'b': go on in the literal before.
      if (literal_end > 0 && out.size() == literal_end + 1 &&
          out.back() == '+') {
        out.resize(literal_end - 1);
      } else {
        out += '\'';
      }
      out += DecodeLiteral(inside.substr(i + 1, length - 1 - closing));
      out += '\'';
      literal_end = out.size();
      i += length;
      continue;
    }
    if (kSpaces.find(c) == std::string_view::npos) out += c;
    ++i;
    for (const std::string_view name : {"role", "content"}) {
      const size_t end = i + name.size();
      if (c == '.' && inside.substr(i, name.size()) == name &&
          (end >= inside.size() || !IsNameCharacter(inside[end]))) {
        out.pop_back();
        out.append("['").append(name).append("']");
        i = end;
      }
    }
  }
  return out;
}

struct Tag {
  size_t begin;  // of its opening brace
  size_t end;    // after its closing brace
  char kind;     // '{', '%' or '#'
  std::string_view inside;
  bool strip_before;  // {%-
  bool strip_after;   // -%}
  bool keep_before;   // {%+
  bool IsBlock() const { return kind != '{'; }
};

// The first tag at or after `from`; its begin is source.size() when there is
// none.
Tag NextTag(std::string_view source, size_t from) {
  Tag tag{source.size(), source.size(), '{', {}, false, false, false};
  for (size_t at = from; at + 1 < source.size(); ++at) {
    const char kind = source[at + 1];
    if (source[at] != '{' || (kind != '{' && kind != '%' && kind != '#')) {
      continue;
    }
    tag.begin = at;
    tag.kind = kind;
    break;
  }
  if (tag.begin == source.size()) return tag;
  const char closing = tag.kind == '{' ? '}' : tag.kind;
  size_t inside = tag.begin + 2;
  size_t at = inside;
  while (at < source.size() &&
         !(source[at] == closing && source.substr(at + 1, 1) == "}")) {
    const bool literal =
        tag.kind != '#' && (source[at] == '\'' || source[at] == '"');
    at += literal ? LiteralLength(source.substr(at)) : 1;
  }
  tag.end = std::min(at + 2, source.size());
  size_t inside_end = std::min(at, source.size());
  if (inside < inside_end && source[inside] == '-') tag.strip_before = true;
  if (inside < inside_end && source[inside] == '+') tag.keep_before = true;
  if (tag.strip_before || tag.keep_before) ++inside;
  if (inside < inside_end && source[inside_end - 1] == '-') {
    tag.strip_after = true;
    --inside_end;
  }
  tag.inside = source.substr(inside, inside_end - inside);
  return tag;
}

// What stays of the text between two tags (null: the template's ends).
std::string_view StripData(std::string_view data, const Tag* before,
                           const Tag* after) {
  bool line_begins = before == nullptr;
  if (before != nullptr && before->strip_after) {
    data.remove_prefix(std::min(data.find_first_not_of(kSpaces), data.size()));
  } else if (before != nullptr && before->IsBlock() &&
             data.substr(0, 1) == "\n") {
    data.remove_prefix(1);  // trim_blocks
    line_begins = true;
  }
  if (after == nullptr) return data;
  if (after->strip_before) {
    return data.substr(0, data.find_last_not_of(kSpaces) + 1);
  }
  if (after->IsBlock() && !after->keep_before) {  // lstrip_blocks
    const size_t kept = data.find_last_not_of(" \t") + 1;
    if (kept > 0) line_begins = data[kept - 1] == '\n';
    if (line_begins) return data.substr(0, kept);
  }
  return data;
}

}  // namespace

JinjaText ReadJinja(std::string_view source) {
  // The environment drops one newline at the end.
  if (source.ends_with('\n')) source.remove_suffix(1);
  JinjaText text;
  Tag before{};
  bool has_before = false;
  for (size_t at = 0; at < source.size();) {
    const Tag tag = NextTag(source, at);
    const bool found = tag.begin < source.size();
    const std::string_view data =
        StripData(source.substr(at, tag.begin - at),
                  has_before ? &before : nullptr, found ? &tag : nullptr);
    text.data += data;
    text.canonical += data;
    if (!found) break;
    if (tag.kind != '#') {
      const std::string inside = CanonicalInside(tag.inside);
      const bool output = tag.kind == '{';
      text.canonical += output ? "{{" : "{%";
      text.canonical += inside;
      text.canonical += output ? "}}" : "%}";
      if (output) text.outputs.push_back(inside);
    }
    before = tag;
    has_before = true;
    at = tag.end;
  }
  return text;
}

}  // namespace nibble::model
