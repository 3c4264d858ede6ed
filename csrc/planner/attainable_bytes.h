// Budgets, rounded down to what sums of whole sizes can come to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace poet::planner {

struct MemoryItem;

// Note [Whole sizes]
// Most sizes of a network are multiples of a few others, so what a step has in memory is fixed_s +
// k g + rest, with g a common divisor of most sizes and the rest at most what all sizes leave over
// when they are divided by g. Nothing lies between the last such sum within the budget and the
// budget, so that sum may stand in the budget's place: every plan that keeps the one keeps the
// other, and fractions of values have less room. Rounding of this kind is Chvatal's and Gomory's
// (1958, 1973), of single rows. docs/planner.md has the proof and what it gains.

// For each of `fixed` (bytes by micro-step that no choice changes): the most that the step can have
// in memory, those included, if it keeps the budget. Sums go over any of the items that are alive
// there. The budget itself where nothing better is known, as where the fixed bytes exceed it.
std::vector<int64_t> attainableBytes(std::span<const MemoryItem> items,
                                     std::span<const int64_t> fixed, int64_t budget_bytes);

}  // namespace poet::planner
