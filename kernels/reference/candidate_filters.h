// Steps 10 to 14 of docs/sampling.md on an explicit list of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/reference/vocab_ops.h"

namespace nibble::kernels::reference {

// Sum of the weights.
double TotalWeight(const std::vector<Candidate>& kept);

// typical_p; `kept` is the whole distribution of weight `total`.
void KeepTypical(float typical_p, double total, std::vector<Candidate>* kept);

// top_p; `kept` may leave out tokens that top_p cannot reach, `total` may not.
void KeepTopP(float top_p, double total, std::vector<Candidate>* kept);

void KeepMinP(float min_p, std::vector<Candidate>* kept);

// Sorts `kept` by id and draws with u in [0, 1).
int32_t DrawById(double u, std::vector<Candidate>* kept);

}  // namespace nibble::kernels::reference
