#include "engine/load.h"

#include <string_view>

#include "engine/neural_runner.h"
#include "engine/scripted_model.h"

namespace nibble::engine {

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadRunner(
    const std::string& path, const LoadOptions& options) {
  constexpr std::string_view kScripted = "scripted:";
  if (path.starts_with(kScripted)) {
    return LoadScriptedModel(path.substr(kScripted.size()), options);
  }
  return NeuralRunner::Load(path, options);
}

}  // namespace nibble::engine
