// Chat templates as text in one spelling, so that they can be compared.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble::model {

// A Jinja template as the usual environment reads it (trim_blocks and
// lstrip_blocks on), with what does not change its meaning taken out:
// comments, white space in tags, the minus signs of tags once they have acted,
// kinds of quotes, escapes in strings, 'a'+'b' for 'ab', and x.role and
// x.content for x['role'] and x['content']. Plain value.
struct JinjaText {
  std::string canonical;             // text and tags
  std::string data;                  // what stands outside tags
  std::vector<std::string> outputs;  // the insides of {{...}}, in order

  bool Contains(std::string_view part) const {
    return canonical.find(part) != std::string::npos;
  }
};

// A tag that is not closed ends the template.
JinjaText ReadJinja(std::string_view source);

}  // namespace nibble::model
