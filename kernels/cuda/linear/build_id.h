// Which linear kernels this build has.
#pragma once

#include <string_view>

namespace nibble::kernels::cuda {

// A hash of the kernels' source: plans measured with another are void.
std::string_view LinearBuildId();

}  // namespace nibble::kernels::cuda
