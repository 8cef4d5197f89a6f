#include "tests/kernels/cuda/quantize_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <sstream>

#include "base/checked_math.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/w4_reference.h"
#include "tests/support/random.h"

namespace nibble::test {

using kernels::DType;
using kernels::Fp8;
using kernels::Int8Range;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::QuantizeArgs;
using kernels::cuda::QuantizeCode;
using kernels::cuda::QuantizeOp;
using kernels::cuda::Stream;

namespace {

constexpr uint8_t kPoison = 0xa5;
constexpr int64_t kGuardBytes = 256;
constexpr int64_t kGap = 16;  // elements between rows of inputs, bytes of codes

const char* Name(QuantizeOp op) {
  switch (op) {
    case QuantizeOp::kPlain:
      return "plain";
    case QuantizeOp::kNorm:
      return "norm";
    case QuantizeOp::kAddNorm:
      return "add_norm";
    case QuantizeOp::kSiluMul:
      return "silu_mul";
  }
  return "?";
}

const char* Name(DType dtype) {
  return dtype == DType::kBF16 ? "bf16" : dtype == DType::kF16 ? "f16" : "f32";
}

std::string CodeName(const QuantizeCase& c) {
  const std::string fp8 = c.fp8 == Fp8::kE4m3 ? "e4m3" : "e5m2";
  switch (c.code) {
    case QuantizeCode::kInt8Token:
      return c.range == Int8Range::kSymmetric ? "int8_token"
                                              : "int8_token_asym";
    case QuantizeCode::kFp8Token:
      return fp8 + "_token";
    case QuantizeCode::kFp8Tensor:
      return fp8 + "_tensor";
    case QuantizeCode::kFp8Block:
      return fp8 + "_block";
    case QuantizeCode::kQ8:
      return "q8_" + std::to_string(c.q8_group);
  }
  return "?";
}

// Device memory between guards, all of it poisoned.
class Guarded final {
 public:
  explicit Guarded(int64_t bytes)
      : bytes_(bytes),
        buffer_(
            DeviceBuffer::Make(RoundUp(bytes, kGuardBytes) + 2 * kGuardBytes)
                .value()) {
    NIBBLE_CUDA_CHECK(cudaMemset(buffer_.data(), kPoison, buffer_.bytes()));
  }

  template <typename T>
  T* data() const {
    return reinterpret_cast<T*>(buffer_.data() + kGuardBytes);
  }

  // The contents; "" or which guard was hit goes to `problem`.
  std::vector<std::byte> Read(const char* name, std::string* problem) const {
    std::vector<std::byte> all(buffer_.bytes());
    NIBBLE_CUDA_CHECK(cudaMemcpy(all.data(), buffer_.data(), all.size(),
                                 cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < all.size(); ++i) {
      const bool guard = i < kGuardBytes || i >= kGuardBytes + size_t(bytes_);
      if (guard && all[i] != std::byte{kPoison}) {
        *problem = std::string("wrote outside of ") + name;
      }
    }
    return {all.begin() + kGuardBytes, all.begin() + kGuardBytes + bytes_};
  }

 private:
  int64_t bytes_;
  DeviceBuffer buffer_;
};

// Rows [m, k] of the type, kGap elements of NaN between them.
std::vector<std::byte> Pitched(DType dtype, std::span<const float> values,
                               int64_t m, int64_t k) {
  const int64_t size = kernels::ElementBytes(dtype);
  std::vector<std::byte> bytes(m * (k + kGap) * size, std::byte{0xff});
  const std::vector<std::byte> plain = Encode(dtype, values);
  for (int64_t row = 0; row < m; ++row) {
    std::memcpy(bytes.data() + row * (k + kGap) * size,
                plain.data() + row * k * size, k * size);
  }
  return bytes;
}

int64_t ScaleGroups(const QuantizeCase& c) {
  switch (c.code) {
    case QuantizeCode::kFp8Block:
      return DivideUp(c.k, kernels::kScaleBlock);
    case QuantizeCode::kQ8:
      return 2 * DivideUp(c.k, kernels::kSumBlock);
    default:
      return 1;
  }
}

std::vector<float> RoundedTo(DType dtype, std::vector<float> values) {
  const std::vector<std::byte> bytes = Encode(dtype, values);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(
        Decode(dtype, bytes.data() + i * kernels::ElementBytes(dtype)));
  }
  return values;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

bool QuantizeCase::IsNorm() const {
  return op == QuantizeOp::kNorm || op == QuantizeOp::kAddNorm;
}

bool QuantizeCase::IsFp8() const {
  return code != QuantizeCode::kInt8Token && code != QuantizeCode::kQ8;
}

std::string QuantizeCase::ToString() const {
  std::ostringstream text;
  text << Name(op) << " " << Name(dtype) << " " << CodeName(*this) << " " << m
       << "x" << k;
  return text.str();
}

std::vector<QuantizeCase> AllQuantizeCases(int64_t m, int64_t k) {
  std::vector<QuantizeCase> codes;
  for (const Int8Range range :
       {Int8Range::kSymmetric, Int8Range::kAsymmetric}) {
    codes.push_back({.code = QuantizeCode::kInt8Token, .range = range});
  }
  for (const Fp8 fp8 : {Fp8::kE4m3, Fp8::kE5m2}) {
    for (const QuantizeCode code :
         {QuantizeCode::kFp8Token, QuantizeCode::kFp8Tensor,
          QuantizeCode::kFp8Block}) {
      codes.push_back({.code = code, .fp8 = fp8});
    }
  }
  for (const int group : {32, 256}) {
    codes.push_back({.code = QuantizeCode::kQ8, .q8_group = group});
  }
  std::vector<QuantizeCase> cases;
  for (QuantizeCase c : codes) {
    c.m = m;
    c.k = k;
    for (const QuantizeOp op : {QuantizeOp::kPlain, QuantizeOp::kNorm,
                                QuantizeOp::kAddNorm, QuantizeOp::kSiluMul}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        c.op = op;
        c.dtype = dtype;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

QuantizeInputs QuantizeInputs::Make(const QuantizeCase& c, uint64_t seed) {
  Random random(seed);
  QuantizeInputs inputs;
  const int64_t count = c.m * c.k;
  inputs.x = random.Normals(count);
  inputs.weight = random.Normals(c.k);
  for (int64_t row = 0; row < c.m; ++row) {
    const std::span<float> x(inputs.x.data() + row * c.k, c.k);
    switch (row % 6) {
      case 1:  // great channels
        for (int64_t i = 3; i < c.k; i += 97) x[i] *= 100;
        break;
      case 2:
        for (float& value : x) value = std::fabs(value);
        break;
      case 3:
        for (float& value : x) value *= 1e-3f;
        break;
      case 4:
        for (float& value : x) value *= 300;
        break;
      case 5:
        std::ranges::fill(x, 0.0f);
        break;
      default:
        break;
    }
  }
  inputs.x = RoundedTo(c.dtype, std::move(inputs.x));
  if (c.op == QuantizeOp::kSiluMul) {
    inputs.up = RoundedTo(c.dtype, random.Normals(count));
  }
  if (c.op == QuantizeOp::kAddNorm) {
    inputs.residual = RoundedTo(c.dtype, random.Normals(count, 3.0f));
  }
  inputs.given_scale = 1.0f / static_cast<float>(random.Int(100, 1000));
  return inputs;
}

bool QuantizeResult::operator==(const QuantizeResult& other) const {
  return codes == other.codes && SameBits(scales, other.scales) &&
         zeros == other.zeros && SameBits(residual, other.residual) &&
         std::bit_cast<uint32_t>(greatest) ==
             std::bit_cast<uint32_t>(other.greatest) &&
         problem == other.problem;
}

QuantizeResult RunQuantize(
    const QuantizeCase& c, const QuantizeInputs& inputs,
    const kernels::cuda::QuantizeLaunchOptions& options) {
  static const auto* const device =
      new kernels::cuda::DeviceInfo(kernels::cuda::ListDevices().value().at(0));
  const Stream stream;
  const int64_t size = kernels::ElementBytes(c.dtype);
  const int64_t pitch = c.k + kGap;
  const int64_t code_pitch = RoundUp<int64_t>(c.k, 16) + kGap;
  const int64_t groups = ScaleGroups(c);
  const bool blocks = c.code == QuantizeCode::kFp8Block;
  const int64_t scale_pitch = blocks ? kernels::BlockScalePitch(c.m) : groups;
  const int64_t scale_rows = blocks ? groups : c.m;
  const bool given = c.code == QuantizeCode::kFp8Tensor;
  const bool asymmetric =
      c.code == QuantizeCode::kInt8Token && c.range == Int8Range::kAsymmetric;

  const auto upload = [&](std::span<const float> values) {
    return values.empty()
               ? DeviceBuffer()
               : ToDevice<std::byte>(Pitched(c.dtype, values, c.m, c.k));
  };
  const DeviceBuffer x = upload(inputs.x);
  const DeviceBuffer up = upload(inputs.up);
  const DeviceBuffer weight = ToDevice<float>(inputs.weight);
  const Guarded residual(inputs.residual.empty() ? 0 : c.m * pitch * size);
  if (!inputs.residual.empty()) {
    const auto bytes = Pitched(c.dtype, inputs.residual, c.m, c.k);
    NIBBLE_CUDA_CHECK(cudaMemcpy(residual.data<std::byte>(), bytes.data(),
                                 bytes.size(), cudaMemcpyHostToDevice));
  }
  const Guarded codes(c.m * code_pitch);
  const Guarded scales(given ? 4 : 4 * scale_pitch * scale_rows);
  const Guarded zeros(asymmetric ? 4 * c.m : 0);
  const Guarded greatest(4);
  NIBBLE_CUDA_CHECK(cudaMemset(greatest.data<float>(), 0, 4));
  if (given) {
    NIBBLE_CUDA_CHECK(cudaMemcpy(scales.data<float>(), &inputs.given_scale, 4,
                                 cudaMemcpyHostToDevice));
  }
  NIBBLE_CUDA_CHECK(cudaDeviceSynchronize());

  const QuantizeArgs args{
      .op = c.op,
      .dtype = c.dtype,
      .x = x.data(),
      .ldx = pitch,
      .up = up.data(),
      .residual = inputs.residual.empty() ? nullptr : residual.data<void>(),
      .ldr = inputs.residual.empty() ? 0 : pitch,
      .weight = c.IsNorm() ? weight.as<float>() : nullptr,
      .eps = c.IsNorm() ? inputs.eps : 0,
      .m = c.m,
      .k = c.k,
      .code = c.code,
      .fp8 = c.fp8,
      .range = c.range,
      .q8_group = c.q8_group,
      .codes = codes.data<void>(),
      .ldc = code_pitch,
      .scales = scales.data<float>(),
      .zeros = asymmetric ? zeros.data<int32_t>() : nullptr,
      .greatest = given ? greatest.data<float>() : nullptr};
  kernels::cuda::LaunchQuantize(args, *device, stream, options);
  stream.Synchronize();

  QuantizeResult result;
  std::string& problem = result.problem;
  const std::vector<std::byte> code_bytes = codes.Read("codes", &problem);
  for (int64_t row = 0; row < c.m; ++row) {
    const std::byte* from = code_bytes.data() + row * code_pitch;
    for (int64_t i = 0; i < code_pitch; ++i) {
      if (i < c.k) {
        result.codes.push_back(static_cast<uint8_t>(from[i]));
      } else if (from[i] != (i < RoundUp<int64_t>(c.k, 16)
                                 ? std::byte{0}
                                 : std::byte{kPoison})) {
        problem = "padding of codes in row " + std::to_string(row);
      }
    }
  }
  const std::vector<std::byte> scale_bytes = scales.Read("scales", &problem);
  for (int64_t i = 0; i < scale_rows && !given; ++i) {
    for (int64_t j = 0; j < scale_pitch; ++j) {
      uint32_t bits;
      std::memcpy(&bits, scale_bytes.data() + 4 * (i * scale_pitch + j), 4);
      const bool padding = blocks && j >= c.m;
      if (padding != (bits == 0x01010101u * kPoison)) problem = "scales";
      if (!padding) result.scales.push_back(std::bit_cast<float>(bits));
    }
  }
  const std::vector<std::byte> zero_bytes = zeros.Read("zeros", &problem);
  result.zeros.resize(zero_bytes.size() / 4);
  std::memcpy(result.zeros.data(), zero_bytes.data(), zero_bytes.size());
  const std::vector<std::byte> rows = residual.Read("residual", &problem);
  for (int64_t row = 0; row < c.m && !rows.empty(); ++row) {
    for (int64_t i = 0; i < pitch; ++i) {
      const std::byte* at = rows.data() + (row * pitch + i) * size;
      if (i < c.k) {
        result.residual.push_back(static_cast<float>(Decode(c.dtype, at)));
      } else if (*at != std::byte{0xff}) {
        problem = "gap of residual in row " + std::to_string(row);
      }
    }
  }
  const std::vector<std::byte> most = greatest.Read("greatest", &problem);
  std::memcpy(&result.greatest, most.data(), 4);
  return result;
}

}  // namespace nibble::test
