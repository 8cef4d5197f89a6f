// A model that answers from a script: docs/scripted-model.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/load.h"
#include "engine/model_runner.h"

namespace nibble::engine {

// Reads a scripted model from a JSON file. What the file says about pages and
// rows wins over `options`. Errors name the file and the field.
absl::StatusOr<std::unique_ptr<ModelRunner>> LoadScriptedModel(
    const std::string& path, const LoadOptions& options);

// The same from JSON text; `origin` names it in errors.
absl::StatusOr<std::unique_ptr<ModelRunner>> ParseScriptedModel(
    std::string_view json, std::string_view origin, const LoadOptions& options);

}  // namespace nibble::engine
