// QuadX and QuadDots of dot_neon-inl.h made of Dots, row by row. Included
// before it by the targets whose instructions take one row of x at a time.

struct QuadX {
  explicit QuadX(const QuadBlock& x) {
    for (int r = 0; r < kQuad; ++r) {
      for (int half = 0; half < 2; ++half) {
        codes[r][half] = vld1q_s8(x.codes[r] + 16 * half);
      }
    }
  }

  int8x16_t codes[kQuad][2];
};

template <int kBits>
struct QuadDots {
  struct Pair {
    uint8x16_t even, odd;
  };
  static Pair Arrange(uint8x16_t even, uint8x16_t odd) { return {even, odd}; }
  void Clear() {
    for (Dots<kBits>& row : rows) row.Clear();
  }
  template <int kPair>
  void Add(const Pair& codes, const QuadX& x) {
    for (int r = 0; r < kQuad; ++r) {
      rows[r].template Add<2 * kPair>(codes.even, x.codes[r][kPair / 2]);
      rows[r].template Add<2 * kPair + 1>(codes.odd, x.codes[r][kPair / 2]);
    }
  }
  void Sums(int32x4_t* of_row) const {
    for (int r = 0; r < kQuad; ++r) of_row[r] = rows[r].Sum();
  }

  Dots<kBits> rows[kQuad];
};
