#include "tests/kernels/cuda/w4_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "kernels/cuda/linear/cuda_activations.h"
#include "kernels/reference/dequant.h"
#include "kernels/reference/half.h"
#include "tests/support/random.h"

namespace nibble::test {

using kernels::DType;
using kernels::WeightView;

namespace {

constexpr int64_t kWindow = 32;  // weights whose greatest bounds them all

// f(begin, end) for parts of [0, count), on all cores.
template <typename F>
void ParallelFor(int64_t count, const F& f) {
  const int64_t threads =
      std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t share = (count + threads - 1) / threads;
  std::vector<std::jthread> workers;
  for (int64_t begin = 0; begin < count; begin += share) {
    workers.emplace_back(
        [&f, begin, end = std::min(begin + share, count)] { f(begin, end); });
  }
}

// How far from the exact result FP32 sums may be, as a factor of
// sqrt(sum of x^2 g^2), g the greatest weight of 32 around.
//
// Codes may be subnormal numbers in a product's operand, and the tensor cores
// align such a one as if it were as great as the smallest normal number: 128
// codes in BF16, 1,024 in FP16, where a greatest weight is about 7. A sum of n
// terms of random sign is about sqrt(n) terms in size; tensor cores cut off
// below its 23rd bit, aligned so, at each of the group's steps of 16. Errors of
// groups add like their terms, and so do the roundings of the two additions a
// group. See Higham & Mary, SIAM J. Sci. Comput. 41 (2019), for why sqrt(n) is
// the law for all n.
double ErrorScale(const WeightView& weight, DType x_dtype) {
  const bool integer =
      kernels::Info(weight.format).code != kernels::CodeType::kE2m1;
  const double smallest_normal = x_dtype == DType::kBF16 ? 128 : 1024;
  const double operand = integer ? (smallest_normal + 15) / 7 : 1;
  const double steps =
      static_cast<double>(std::min<int64_t>(weight.Group(), 128)) / 16 + 4;
  const double groups = static_cast<double>(weight.k) / weight.Group() + 1;
  return 0x1p-23 * operand * steps + 0x1p-24 * std::sqrt(2 * groups);
}

}  // namespace

double Decode(DType dtype, const std::byte* element) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, element, sizeof(bits));
  return dtype == DType::kBF16 ? kernels::reference::BFloat16ToFloat(bits)
                               : kernels::reference::HalfToFloat(bits);
}

std::vector<std::byte> Encode(DType dtype, std::span<const float> values) {
  const int64_t size = kernels::ElementBytes(dtype);
  std::vector<std::byte> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * size, &values[i], size);
      continue;
    }
    const uint16_t bits = dtype == DType::kBF16
                              ? kernels::reference::FloatToBFloat16(values[i])
                              : kernels::reference::FloatToHalf(values[i]);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

Inputs::Inputs(DType dtype, int64_t m, std::span<const float> values,
               std::span<const int32_t> order)
    : dtype_(dtype),
      m_(m),
      k_(static_cast<int64_t>(values.size()) / m),
      pitch_(kernels::cuda::ActivationPitch(k_)),
      columns_(values.size()) {
  const std::vector<std::byte> encoded = Encode(dtype, values);
  std::vector<std::byte> rows(static_cast<size_t>(m_ * pitch_ * 2),
                              std::byte{0xff});
  for (int64_t i = 0; i < m_; ++i) {
    for (int64_t j = 0; j < k_; ++j) {
      const std::byte* from = encoded.data() + (i * k_ + j) * 2;
      columns_[j * m_ + i] = Decode(dtype, from);
      const int64_t source = order.empty() ? j : order[j];
      std::memcpy(rows.data() + (i * pitch_ + j) * 2,
                  encoded.data() + (i * k_ + source) * 2, 2);
    }
  }
  device_ = ToDevice<std::byte>(rows);
}

std::vector<float> NormalValues(int64_t k) {
  Random random(static_cast<uint64_t>(k));
  return random.Normals(kNormalRows * k, kNormalDeviation);
}

const Inputs& Inputs::Normal(DType dtype, int64_t k) {
  static auto* const cache =
      new std::map<std::pair<DType, int64_t>, std::unique_ptr<Inputs>>();
  std::unique_ptr<Inputs>& inputs = (*cache)[{dtype, k}];
  if (inputs == nullptr) {
    inputs = std::make_unique<Inputs>(dtype, kNormalRows, NormalValues(k));
  }
  return *inputs;
}

Reference Reference::Make(const Inputs& x, const WeightView& weight,
                          std::vector<int64_t> columns) {
  Reference reference;
  reference.m = x.m();
  reference.columns = std::move(columns);
  const auto count = static_cast<int64_t>(reference.columns.size());
  reference.value.resize(count * x.m());
  reference.error.resize(count * x.m());
  const int64_t windows = (x.k() + kWindow - 1) / kWindow;
  std::vector<double> squares(windows * x.m());  // of x, by window
  for (int64_t j = 0; j < x.k(); ++j) {
    for (int64_t i = 0; i < x.m(); ++i) {
      squares[j / kWindow * x.m() + i] += x.Column(j)[i] * x.Column(j)[i];
    }
  }
  const double scale = ErrorScale(weight, x.dtype());
  ParallelFor(count, [&](int64_t begin, int64_t end) {
    std::vector<float> w(static_cast<size_t>(x.k()));
    for (int64_t c = begin; c < end; ++c) {
      kernels::reference::DequantizeRow(weight, reference.columns[c], w.data());
      double* value = reference.value.data() + c * x.m();
      double* error = reference.error.data() + c * x.m();
      for (int64_t j = 0; j < x.k(); ++j) {
        const double* column = x.Column(j);
        const double wj = w[j];
        for (int64_t i = 0; i < x.m(); ++i) value[i] += wj * column[i];
      }
      for (int64_t j = 0; j < windows; ++j) {
        double greatest = 0;
        for (int64_t i = j * kWindow; i < std::min((j + 1) * kWindow, x.k());
             ++i) {
          greatest = std::max(greatest, std::fabs(double{w[i]}));
        }
        for (int64_t i = 0; i < x.m(); ++i) {
          error[i] += greatest * greatest * squares[j * x.m() + i];
        }
      }
      for (int64_t i = 0; i < x.m(); ++i) {
        error[i] = scale * std::sqrt(error[i]);
      }
    }
  });
  return reference;
}

std::vector<int64_t> SampleColumns(int64_t n) {
  constexpr int64_t kEnds = 24;
  constexpr int64_t kBetween = 61;
  std::vector<int64_t> columns;
  const int64_t step = std::max<int64_t>((n - 2 * kEnds) / kBetween, 1);
  for (int64_t i = 0; i < n;) {
    columns.push_back(i);
    i += i < kEnds || i >= n - kEnds ? 1 : std::min(step, n - kEnds - i);
  }
  return columns;
}

}  // namespace nibble::test
