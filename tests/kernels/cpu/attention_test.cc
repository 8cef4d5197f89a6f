// Attention of the CPU backend against the reference, and against itself with
// the rows cut up in other ways.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "base/checked_math.h"
#include "kernels/reference/half.h"
#include "kernels/reference/ops.h"
#include "tests/kernels/cpu/cpu_test_util.h"
#include "tests/support/tolerance.h"

namespace nibble::test {
namespace {

using kernels::AttentionShape;
using kernels::KvLayerView;
using kernels::QuantFormat;
using kernels::TensorView;
using kernels::cpu::CpuActivations;

struct Shape {
  int32_t heads, kv_heads, head_dim, page_size;
};

// Some rows of a sequence in one step.
struct Share {
  int32_t sequence;
  int32_t first;  // position
  int32_t rows;
};

// Sequences with their keys and values in scattered pages and a query for
// every position.
class World final {
 public:
  World(const Shape& shape, std::vector<int32_t> lengths, int threads)
      : shape_(shape), lengths_(std::move(lengths)) {
    backend_ = MakeBackend(threads);
    op_ =
        MakeOp(*backend_, RandomWeight(QuantFormat::kF32, 1, Width(), random_));
    int32_t pages = 0;
    for (const int32_t length : lengths_) {
      pages += DivideUp(length, shape.page_size);
    }
    std::vector<int32_t> ids(pages);
    std::iota(ids.begin(), ids.end(), 0);
    for (int32_t i = pages - 1; i > 0; --i) {
      std::swap(ids[i], ids[random_.Int(0, i)]);
    }
    for (const int32_t length : lengths_) {
      const int32_t count = DivideUp(length, shape.page_size);
      page_ids_.emplace_back(ids.end() - count, ids.end());
      ids.resize(ids.size() - count);
      queries_.push_back(random_.Normals(length * Width()));
    }
    const int64_t elements =
        int64_t{pages} * shape.page_size * shape.kv_heads * shape.head_dim;
    for (auto* to : {&k_, &v_}) {
      for (int64_t i = 0; i < elements; ++i) {
        to->push_back(kernels::reference::FloatToHalf(random_.Normal()));
      }
    }
  }

  int64_t Width() const { return int64_t{shape_.heads} * shape_.head_dim; }
  KvLayerView Kv() {
    return {.k = k_.data(),
            .v = v_.data(),
            .dtype = kernels::DType::kF16,
            .page_size = shape_.page_size,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim};
  }
  AttentionShape Heads() const {
    // Twice the usual scale makes the weights uneven.
    return {.heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .scale = 2 / std::sqrt(static_cast<float>(shape_.head_dim))};
  }
  uint16_t* Value(int32_t sequence, int32_t position) {
    const int64_t page = page_ids_[sequence][position / shape_.page_size];
    return v_.data() + (page * shape_.page_size + position % shape_.page_size) *
                           shape_.kv_heads * shape_.head_dim;
  }

  // The rows of one step: results [rows of all shares][Width()].
  std::vector<float> Step(const std::vector<Share>& shares) {
    std::vector<int32_t> positions, row_begin = {0}, page_begin = {0}, ids;
    std::vector<float> q;
    for (const Share& share : shares) {
      for (int32_t i = 0; i < share.rows; ++i) {
        positions.push_back(share.first + i);
        const auto from =
            queries_[share.sequence].begin() + (share.first + i) * Width();
        q.insert(q.end(), from, from + Width());
      }
      row_begin.push_back(static_cast<int32_t>(positions.size()));
      const std::vector<int32_t>& pages = page_ids_[share.sequence];
      ids.insert(
          ids.end(), pages.begin(),
          pages.begin() + DivideUp(share.first + share.rows, shape_.page_size));
      page_begin.push_back(static_cast<int32_t>(ids.size()));
    }
    const auto rows = static_cast<int32_t>(positions.size());
    const std::vector<int64_t> slots(rows, 0);
    backend_->BeginStep({.rows = rows,
                         .positions = positions,
                         .slots = slots,
                         .row_begin = row_begin,
                         .page_begin = page_begin,
                         .page_ids = ids});
    const auto out = backend_->MakeActivations(rows + 1, Width()).value();
    auto& cpu = static_cast<CpuActivations&>(*out);
    std::fill_n(cpu.FloatRow(0), (rows + 1) * Width(), kNaN);
    backend_->Attention(TensorView::F32(q.data(), rows, Width()), Kv(), Heads(),
                        out.get());
    EXPECT_TRUE(std::isnan(cpu.FloatRow(rows)[0])) << "wrote a row too many";
    return {cpu.FloatRow(0), cpu.FloatRow(0) + rows * Width()};
  }

  std::vector<float> Reference(int32_t sequence, int32_t position) {
    std::vector<float> out(Width());
    kernels::reference::AttentionOneRow(
        {.q = queries_[sequence].data() + position * Width(),
         .position = position,
         .page_ids = page_ids_[sequence]},
        Kv(), Heads(), out.data());
    return out;
  }

 private:
  Random random_{21};
  Shape shape_;
  std::vector<int32_t> lengths_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::LinearOp> op_;
  std::vector<std::vector<int32_t>> page_ids_;  // [sequences]
  std::vector<std::vector<float>> queries_;     // [sequences][length * Width]
  std::vector<uint16_t> k_, v_;
};

class AttentionTest : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(
    All, AttentionTest,
    ::testing::Values(Shape{9, 3, 64, 16}, Shape{4, 4, 80, 1},
                      Shape{6, 2, 72, 5}, Shape{8, 1, 128, 7},
                      Shape{3, 3, 33, 64}, Shape{5, 1, 2, 3}));

TEST_P(AttentionTest, MatchesTheReference) {
  World world(GetParam(), {1, 63, 64, 65, 200, 131}, 2);
  const std::vector<Share> shares = {{0, 0, 1},  {1, 62, 1},  {2, 63, 1},
                                     {3, 64, 1}, {4, 199, 1}, {5, 20, 111},
                                     {1, 0, 40}, {4, 100, 33}};
  const std::vector<float> got = world.Step(shares);
  int64_t at = 0;
  for (const Share& share : shares) {
    for (int32_t i = 0; i < share.rows; ++i, at += world.Width()) {
      const std::vector<float> expected =
          world.Reference(share.sequence, share.first + i);
      // Scores of size s are off by s epsilon sqrt(head_dim), and weights by
      // as much relative to themselves; s stays below 50 here.
      const double bound = 50 * kEpsilonF32 * 2 *
                           std::sqrt(static_cast<double>(GetParam().head_dim));
      ASSERT_LT(
          RelativeError(std::span<const float>(got).subspan(at, world.Width()),
                        expected),
          bound)
          << share.sequence << " at " << share.first + i;
    }
  }
}

TEST_P(AttentionTest, ARowDoesNotDependOnItsStep) {
  for (const int threads : {1, 2, 4}) {
    World world(GetParam(), {150, 70, 9}, threads);
    const std::vector<float> whole = world.Step({{0, 0, 150}});
    std::vector<float> pieces;
    int32_t first = 0;
    for (const int32_t rows : {1, 7, 63, 1, 2, 60, 16}) {
      // The piece stands between rows of other sequences.
      const std::vector<float> step =
          world.Step({{1, 69, 1}, {0, first, rows}, {2, 0, rows % 9 + 1}});
      pieces.insert(pieces.end(), step.begin() + world.Width(),
                    step.begin() + (1 + rows) * world.Width());
      first += rows;
    }
    ASSERT_EQ(first, 150);
    EXPECT_TRUE(SameBits(whole, pieces)) << threads << " threads";
  }
}

TEST_P(AttentionTest, ThreadsDoNotChangeBits) {
  const std::vector<Share> shares = {{0, 149, 1}, {1, 0, 70}, {2, 8, 1}};
  const std::vector<float> one =
      World(GetParam(), {150, 70, 9}, 1).Step(shares);
  for (const int threads : {2, 3, 7}) {
    EXPECT_TRUE(
        SameBits(one, World(GetParam(), {150, 70, 9}, threads).Step(shares)));
  }
}

// A lone row's keys are shared out to the threads, in a batch they are not.
TEST_P(AttentionTest, SharingOutKeysDoesNotChangeBits) {
  const std::vector<int32_t> lengths = {600, 65, 300, 5, 1, 128, 129};
  std::vector<Share> all;
  for (int32_t i = 0; i < 7; ++i) all.push_back({i, lengths[i] - 1, 1});
  const std::vector<float> batch = World(GetParam(), lengths, 1).Step(all);
  for (const int threads : {1, 2, 4, 13}) {
    World world(GetParam(), lengths, threads);
    EXPECT_TRUE(SameBits(batch, world.Step(all))) << threads << " threads";
    for (int32_t i = 0; i < 7; ++i) {
      EXPECT_TRUE(SameBits(std::span<const float>(batch).subspan(
                               i * world.Width(), world.Width()),
                           world.Step({all[i]})))
          << threads << " threads, length " << lengths[i];
    }
  }
}

TEST_P(AttentionTest, LaterPositionsStayUnseen) {
  World world(GetParam(), {90, 30}, 2);
  const std::vector<float> clean = world.Step({{0, 0, 90}, {1, 0, 30}});
  const uint16_t kHalfNaN = 0x7e00;
  std::fill_n(world.Value(0, 71), GetParam().kv_heads * GetParam().head_dim,
              kHalfNaN);
  const std::vector<float> broken = world.Step({{0, 0, 90}, {1, 0, 30}});
  const int64_t width = world.Width();
  const std::span<const float> a(clean), b(broken);
  EXPECT_TRUE(SameBits(a.subspan(0, 71 * width), b.subspan(0, 71 * width)));
  EXPECT_TRUE(SameBits(a.subspan(90 * width), b.subspan(90 * width)));
  for (int64_t i = 71 * width; i < 90 * width; ++i) {
    ASSERT_TRUE(std::isnan(broken[i]));
  }
}

TEST(CpuAttentionTest, NoRowsIsNoWork) {
  World world({4, 2, 32, 4}, {3}, 2);
  EXPECT_TRUE(world.Step({}).empty());
}

}  // namespace
}  // namespace nibble::test
