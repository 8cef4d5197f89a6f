// Which chat format a template's text is.
#pragma once

#include <optional>

#include "model/chat_template.h"
#include "model/jinja_text.h"

namespace nibble::model {

struct RecognisedChat {
  ChatFormat format;
  ChatStyle style;
};

// Nothing when the template does, or may do, something we do not render.
std::optional<RecognisedChat> RecogniseChat(const JinjaText& text);

}  // namespace nibble::model
