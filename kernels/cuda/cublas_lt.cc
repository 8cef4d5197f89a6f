#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <library_types.h>

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/cublas_lt_api.h"
#include "kernels/cuda/runtime.h"

namespace nibble::kernels::cuda {
namespace {

using cublas_lt::Api;
using cublas_lt::Descriptor;
using cublas_lt::HeuristicResult;

// What NVIDIA advises for Hopper; several of its kernels need it.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

constexpr const char* kLibraryNames[] = {"libcublasLt.so.13",
                                         "libcublasLt.so.12"};

absl::Status ToStatus(const char* call, cublas_lt::Status status) {
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cuBLASLt: ", call, " answers with status ", status));
}

absl::StatusOr<void*> OpenLibrary(const std::string& path) {
  std::vector<std::string> names;
  if (!path.empty() && path.find(".so") != std::string::npos) {
    names.push_back(path);
  } else {
    const std::string folder = path.empty() ? "" : absl::StrCat(path, "/");
    for (const char* name : kLibraryNames) {
      names.push_back(absl::StrCat(folder, name));
    }
  }
  std::string reasons;
  for (const std::string& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return library;
    }
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", dlerror());
  }
  return absl::NotFoundError(absl::StrCat("cuBLASLt: ", reasons));
}

template <typename Function>
absl::Status Find(void* library, std::string_view name, Function** function) {
  const std::string symbol = absl::StrCat("cublasLt", std::string(name));
  *function = reinterpret_cast<Function*>(dlsym(library, symbol.c_str()));
  if (*function != nullptr) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("cuBLASLt lacks ", symbol));
}

absl::StatusOr<Api> FindFunctions(void* library) {
  Api api;
  const auto find = [library](std::string_view name, auto** function) {
    return Find(library, name, function);
  };
  for (const absl::Status& status : {
           find("GetVersion", &api.GetVersion),
           find("Create", &api.Create),
           find("Destroy", &api.Destroy),
           find("MatmulDescCreate", &api.MatmulDescCreate),
           find("MatmulDescSetAttribute", &api.MatmulDescSetAttribute),
           find("MatmulDescDestroy", &api.MatmulDescDestroy),
           find("MatrixLayoutCreate", &api.MatrixLayoutCreate),
           find("MatrixLayoutDestroy", &api.MatrixLayoutDestroy),
           find("MatmulPreferenceCreate", &api.MatmulPreferenceCreate),
           find("MatmulPreferenceSetAttribute",
                &api.MatmulPreferenceSetAttribute),
           find("MatmulPreferenceDestroy", &api.MatmulPreferenceDestroy),
           find("MatmulAlgoGetHeuristic", &api.MatmulAlgoGetHeuristic),
           find("Matmul", &api.Matmul),
       }) {
    NIBBLE_RETURN_IF_ERROR(status);
  }
  return api;
}

int CudaType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kI8:
      return CUDA_R_8I;
    case DType::kI32:
      return CUDA_R_32I;
  }
  NIBBLE_CHECK(false);
  return 0;
}

int InputType(const CublasLtProblem& problem) {
  return problem.fp8.has_value() ? CUDA_R_8F_E4M3 : CudaType(problem.input);
}

}  // namespace

struct CublasLt::State {
  Api api;
  cublas_lt::Handle handle = nullptr;
  DeviceBuffer workspace;

  ~State() {
    if (handle != nullptr) api.Destroy(handle);
  }
};

CublasLt::CublasLt(std::unique_ptr<State> state) : state_(std::move(state)) {}
CublasLt::CublasLt(CublasLt&&) noexcept = default;
CublasLt& CublasLt::operator=(CublasLt&&) noexcept = default;
CublasLt::~CublasLt() = default;

absl::StatusOr<CublasLt> CublasLt::Open(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(void* library, OpenLibrary(path));
  auto state = std::make_unique<State>();
  NIBBLE_ASSIGN_OR_RETURN(state->api, FindFunctions(library));
  NIBBLE_RETURN_IF_ERROR(
      ToStatus("cublasLtCreate", state->api.Create(&state->handle)));
  NIBBLE_ASSIGN_OR_RETURN(state->workspace,
                          DeviceBuffer::Make(kWorkspaceBytes));
  return CublasLt(std::move(state));
}

int64_t CublasLt::version() const {
  return static_cast<int64_t>(state_->api.GetVersion());
}

// cuBLASLt thinks in columns: a row-major y[m, n] is its D[n, m], and with
// A = w, stored as [k, n], and B = x, stored as [k, m], D = A^T B.
struct CublasLtMatmul::State {
  const CublasLt::State* library = nullptr;
  Descriptor operation = nullptr;
  Descriptor w_layout = nullptr;
  Descriptor x_layout = nullptr;
  Descriptor y_layout = nullptr;
  std::vector<HeuristicResult> algorithms;
  bool integers = false;  // sums, and the factors of products and of y

  absl::Status Describe(const CublasLtProblem& problem);
  absl::Status DescribeFp8(const CublasLtFp8& fp8);
  absl::Status Search(int max_algorithms);
  ~State();
};

CublasLtMatmul::State::~State() {
  const Api& api = library->api;
  if (operation != nullptr) api.MatmulDescDestroy(operation);
  for (const Descriptor layout : {w_layout, x_layout, y_layout}) {
    if (layout != nullptr) api.MatrixLayoutDestroy(layout);
  }
}

absl::Status CublasLtMatmul::State::DescribeFp8(const CublasLtFp8& fp8) {
  int32_t w_mode = cublas_lt::kScaleTensor, x_mode = cublas_lt::kScaleTensor;
  if (fp8.scales == CublasLtFp8::Scales::kRow) {
    w_mode = x_mode = cublas_lt::kScaleRow;
  } else if (fp8.scales == CublasLtFp8::Scales::kBlock) {
    w_mode = cublas_lt::kScaleBlock128;
    x_mode = cublas_lt::kScaleVector128;
  }
  const auto fast =
      static_cast<int8_t>(fp8.sums == CublasLtFp8::Sums::kFast ? 1 : 0);
  const auto set = [this](int attribute, const auto& value) {
    return ToStatus("MatmulDescSetAttribute",
                    library->api.MatmulDescSetAttribute(operation, attribute,
                                                        &value, sizeof(value)));
  };
  NIBBLE_RETURN_IF_ERROR(set(cublas_lt::kDescScaleModeA, w_mode));
  NIBBLE_RETURN_IF_ERROR(set(cublas_lt::kDescScaleModeB, x_mode));
  NIBBLE_RETURN_IF_ERROR(set(cublas_lt::kDescScaleA, fp8.w_scales));
  NIBBLE_RETURN_IF_ERROR(set(cublas_lt::kDescScaleB, fp8.x_scales));
  return set(cublas_lt::kDescFastAccumulation, fast);
}

absl::Status CublasLtMatmul::State::Describe(const CublasLtProblem& problem) {
  const Api& api = library->api;
  integers = !problem.fp8.has_value() && problem.input == DType::kI8;
  NIBBLE_RETURN_IF_ERROR(
      ToStatus("MatmulDescCreate",
               api.MatmulDescCreate(
                   &operation,
                   integers ? cublas_lt::kCompute32I : cublas_lt::kCompute32F,
                   integers ? CUDA_R_32I : CUDA_R_32F)));
  NIBBLE_RETURN_IF_ERROR(ToStatus(
      "MatmulDescSetAttribute",
      api.MatmulDescSetAttribute(operation, cublas_lt::kDescTransA,
                                 &cublas_lt::kOpT, sizeof(cublas_lt::kOpT))));
  if (problem.fp8.has_value()) {
    NIBBLE_RETURN_IF_ERROR(DescribeFp8(*problem.fp8));
  }
  const auto layout = [&](Descriptor* made, int type, int64_t rows,
                          int64_t columns) {
    return ToStatus("MatrixLayoutCreate",
                    api.MatrixLayoutCreate(made, type, rows, columns, rows));
  };
  const int input = InputType(problem);
  NIBBLE_RETURN_IF_ERROR(layout(&w_layout, input, problem.k, problem.n));
  NIBBLE_RETURN_IF_ERROR(layout(&x_layout, input, problem.k, problem.m));
  return layout(&y_layout, CudaType(problem.output), problem.n, problem.m);
}

absl::Status CublasLtMatmul::State::Search(int max_algorithms) {
  const Api& api = library->api;
  Descriptor preference = nullptr;
  NIBBLE_RETURN_IF_ERROR(ToStatus("MatmulPreferenceCreate",
                                  api.MatmulPreferenceCreate(&preference)));
  const uint64_t workspace_bytes = library->workspace.bytes();
  cublas_lt::Status status = api.MatmulPreferenceSetAttribute(
      preference, cublas_lt::kPreferenceWorkspaceBytes, &workspace_bytes,
      sizeof(workspace_bytes));
  algorithms.resize(max_algorithms);
  int found = 0;
  if (status == 0) {
    status = api.MatmulAlgoGetHeuristic(
        library->handle, operation, w_layout, x_layout, y_layout, y_layout,
        preference, max_algorithms, algorithms.data(), &found);
  }
  api.MatmulPreferenceDestroy(preference);
  NIBBLE_RETURN_IF_ERROR(ToStatus("MatmulAlgoGetHeuristic", status));
  algorithms.resize(found);
  std::erase_if(algorithms, [](const HeuristicResult& result) {
    return result.state != 0;
  });
  if (!algorithms.empty()) return absl::OkStatus();
  return absl::NotFoundError("cuBLASLt offers no algorithm");
}

CublasLtMatmul::CublasLtMatmul(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
CublasLtMatmul::CublasLtMatmul(CublasLtMatmul&&) noexcept = default;
CublasLtMatmul& CublasLtMatmul::operator=(CublasLtMatmul&&) noexcept = default;
CublasLtMatmul::~CublasLtMatmul() = default;

absl::StatusOr<CublasLtMatmul> CublasLtMatmul::Make(
    const CublasLt& library, const CublasLtProblem& problem,
    int max_algorithms) {
  NIBBLE_CHECK(max_algorithms > 0);
  auto state = std::make_unique<State>();
  state->library = library.state_.get();
  NIBBLE_RETURN_IF_ERROR(state->Describe(problem));
  NIBBLE_RETURN_IF_ERROR(state->Search(max_algorithms));
  return CublasLtMatmul(std::move(state));
}

int CublasLtMatmul::algorithms() const {
  return static_cast<int>(state_->algorithms.size());
}

absl::Status CublasLtMatmul::Run(int algorithm, const void* x, const void* w,
                                 void* y, CUstream_st* stream) const {
  NIBBLE_CHECK(algorithm >= 0 && algorithm < algorithms());
  const CublasLt::State& library = *state_->library;
  const float one = 1, zero = 0;
  const int32_t integer_one = 1, integer_zero = 0;
  const void* alpha =
      state_->integers ? static_cast<const void*>(&integer_one) : &one;
  const void* beta =
      state_->integers ? static_cast<const void*>(&integer_zero) : &zero;
  const HeuristicResult& chosen = state_->algorithms[algorithm];
  return ToStatus(
      "Matmul", library.api.Matmul(library.handle, state_->operation, alpha, w,
                                   state_->w_layout, x, state_->x_layout, beta,
                                   y, state_->y_layout, y, state_->y_layout,
                                   &chosen.algorithm, library.workspace.data(),
                                   library.workspace.bytes(), stream));
}

}  // namespace nibble::kernels::cuda
