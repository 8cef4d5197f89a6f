// Steps 11 to 14 of docs/sampling.md on an explicit list of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/reference/vocab_ops.h"

namespace nibble::kernels::reference {

// The tokens that are still kept, in ascending order of id. Owned by a
// Sampler; keeps its capacity from row to row.
class KeptTokens final {
 public:
  // Starts anew: the caller fills the empty list by ascending id, then says
  // how much the distribution weighs. The list may leave tokens out that the
  // steps to come are certain to drop; their weight still counts.
  std::vector<Candidate>& Reset();
  void SetTotal(double total) { total_ = total; }
  // The total of a list that is whole.
  void SumTotal();

  void KeepTypical(float typical_p);
  void KeepTopP(float top_p);
  void KeepMinP(float min_p);

  // The token that u in [0, 1) draws. At least one must be kept.
  int32_t Draw(double u) const;

 private:
  template <typename Before>
  void KeepShare(float share, Before before);

  std::vector<Candidate> tokens_;
  std::vector<Candidate> order_;  // scratch of KeepShare
  double total_ = 0;
};

}  // namespace nibble::kernels::reference
