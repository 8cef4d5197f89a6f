#include "bench/gpu_check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include "base/check.h"
#include "kernels/reference/half.h"

namespace nibble::bench {

using kernels::DType;

void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  const int64_t wanted = std::min<int64_t>(
      count, std::max(1u, std::thread::hardware_concurrency()));
  for (int64_t i = 0; i < wanted; ++i) {
    threads.emplace_back([&] {
      for (int64_t at = next++; at < count; at = next++) body(at);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

double Dot(std::span<const double> x, const float* w) {
  constexpr size_t kLanes = 8;  // independent sums, or latency is all there is
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += x[i + lane] * static_cast<double>(w[i + lane]);
    }
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  for (; i < x.size(); ++i) sum += x[i] * static_cast<double>(w[i]);
  return sum;
}

void ErrorSum::Add(double result, double reference) {
  difference_ += (result - reference) * (result - reference);
  reference_ += reference * reference;
}

double ErrorSum::Relative() const {
  return std::sqrt(difference_ / reference_);
}

LinearReference::LinearReference(const Weights& weights, Shape shape,
                                 DType x_dtype, std::span<const uint16_t> x)
    : shape_(shape), x_dtype_(x_dtype), x_(x), w_(shape.n * shape.k) {
  const UnpackRow unpack = weights.ReadRows(0, shape.n);
  ParallelFor(shape.n,
              [&](int64_t row) { unpack(row, w_.data() + row * shape.k); });
}

float LinearReference::ToFloat(uint16_t bits) const {
  return x_dtype_ == DType::kF16 ? kernels::reference::HalfToFloat(bits)
                                 : kernels::reference::BFloat16ToFloat(bits);
}

std::vector<double> LinearReference::XRow(int64_t row) const {
  std::vector<double> values(shape_.k);
  for (int64_t i = 0; i < shape_.k; ++i) {
    values[i] = ToFloat(x_[row * shape_.k + i]);
  }
  return values;
}

const std::vector<double>& LinearReference::YRow(int64_t row) {
  auto [entry, missing] = y_rows_.try_emplace(row);
  std::vector<double>& y = entry->second;
  if (missing) {
    y.resize(shape_.n);
    const std::vector<double> x = XRow(row);
    ParallelFor(shape_.n,
                [&](int64_t n) { y[n] = Dot(x, w_.data() + n * shape_.k); });
  }
  return y;
}

double LinearReference::RelativeError(std::span<const uint16_t> y, int64_t m) {
  constexpr int kRandomOutputs = 300;
  NIBBLE_CHECK_EQ(static_cast<int64_t>(y.size()), m * shape_.n);
  std::atomic<bool> nan = false;
  ParallelFor(m, [&](int64_t row) {
    for (int64_t n = 0; n < shape_.n; ++n) {
      if (std::isnan(ToFloat(y[row * shape_.n + n]))) nan = true;
    }
  });
  if (nan) return std::numeric_limits<double>::quiet_NaN();
  ErrorSum error;
  for (const int64_t row : std::set<int64_t>{0, m / 2, m - 1}) {
    const std::vector<double>& reference = YRow(row);
    for (int64_t n = 0; n < shape_.n; ++n) {
      error.Add(ToFloat(y[row * shape_.n + n]), reference[n]);
    }
  }
  std::mt19937_64 random(static_cast<uint64_t>(m));
  std::vector<int64_t> places(kRandomOutputs);
  for (int64_t& place : places) {
    place = static_cast<int64_t>(random() % y.size());
  }
  std::vector<double> references(kRandomOutputs);
  ParallelFor(kRandomOutputs, [&](int64_t i) {
    references[i] = Dot(XRow(places[i] / shape_.n),
                        w_.data() + places[i] % shape_.n * shape_.k);
  });
  for (int i = 0; i < kRandomOutputs; ++i) {
    error.Add(ToFloat(y[places[i]]), references[i]);
  }
  return error.Relative();
}

}  // namespace nibble::bench
