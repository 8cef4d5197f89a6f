// The part of cuBLASLt's C interface that we call, declared by ourselves: its
// header belongs to a package of several hundred MB that building does not
// need otherwise. Numbers and structs are those of cublasLt.h, versions 12
// and 13, where they are part of the ABI.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace nibble::kernels::cuda::cublas_lt {

using Status = int;  // cublasStatus_t; 0 is success
using Handle = void*;
using Descriptor = void*;  // of an operation, a layout or a preference

inline constexpr int kCompute32F = 68;               // CUBLAS_COMPUTE_32F
inline constexpr int kCompute32I = 72;               // CUBLAS_COMPUTE_32I
inline constexpr int32_t kOpT = 1;                   // CUBLAS_OP_T
inline constexpr int kDescTransA = 3;                // ..._DESC_TRANSA
inline constexpr int kDescScaleA = 17;               // ..._A_SCALE_POINTER
inline constexpr int kDescScaleB = 18;               // ..._B_SCALE_POINTER
inline constexpr int kDescFastAccumulation = 25;     // ..._FAST_ACCUM
inline constexpr int kDescScaleModeA = 31;           // ..._A_SCALE_MODE
inline constexpr int kDescScaleModeB = 32;           // ..._B_SCALE_MODE
inline constexpr int32_t kScaleTensor = 0;           // ..._SCALE_SCALAR_32F
inline constexpr int32_t kScaleRow = 3;              // ..._SCALE_OUTER_VEC_32F
inline constexpr int32_t kScaleVector128 = 4;        // ..._SCALE_VEC128_32F
inline constexpr int32_t kScaleBlock128 = 5;         // ..._SCALE_BLK128x128_32F
inline constexpr int kPreferenceWorkspaceBytes = 1;  // ..._MAX_WORKSPACE_BYTES

struct Algorithm {
  uint64_t data[8];
};

struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

// The library's functions, named as there without "cublasLt". Types of data
// are cudaDataType_t, of computation cublasComputeType_t.
struct Api {
  size_t (*GetVersion)();
  Status (*Create)(Handle*);
  Status (*Destroy)(Handle);
  Status (*MatmulDescCreate)(Descriptor*, int compute_type, int scale_type);
  Status (*MatmulDescSetAttribute)(Descriptor, int attribute, const void* value,
                                   size_t bytes);
  Status (*MatmulDescDestroy)(Descriptor);
  Status (*MatrixLayoutCreate)(Descriptor*, int type, uint64_t rows,
                               uint64_t columns, int64_t leading);
  Status (*MatrixLayoutDestroy)(Descriptor);
  Status (*MatmulPreferenceCreate)(Descriptor*);
  Status (*MatmulPreferenceSetAttribute)(Descriptor, int attribute,
                                         const void* value, size_t bytes);
  Status (*MatmulPreferenceDestroy)(Descriptor);
  Status (*MatmulAlgoGetHeuristic)(Handle, Descriptor operation, Descriptor a,
                                   Descriptor b, Descriptor c, Descriptor d,
                                   Descriptor preference, int requested,
                                   HeuristicResult* results, int* found);
  Status (*Matmul)(Handle, Descriptor operation, const void* alpha,
                   const void* a, Descriptor a_layout, const void* b,
                   Descriptor b_layout, const void* beta, const void* c,
                   Descriptor c_layout, void* d, Descriptor d_layout,
                   const Algorithm* algorithm, void* workspace,
                   size_t workspace_bytes, CUstream_st* stream);
};

}  // namespace nibble::kernels::cuda::cublas_lt
