// A sparse mixed-integer program, neutral of any solver: minimise cost.x subject to row_lower <= A
// x <= row_upper.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

namespace poet::planner {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What a solver's value of a binary column says: the one place where such values are rounded. They
// lie within 1e-6 of 0 or 1.
constexpr bool isYes(double value) { return value > 0.5; }

struct Term {
  int column = 0;
  double value = 0;
};

// Adds up what names one column more than once, as the states of a recipe's generators do, and
// sorts by column. Solvers refuse a row that names a column twice, or crash on it.
inline void mergeTerms(std::vector<Term>& terms) {
  std::sort(terms.begin(), terms.end(),
            [](const Term& a, const Term& b) { return a.column < b.column; });
  size_t merged = 0;
  for (const Term& term : terms) {
    if (merged > 0 && terms[merged - 1].column == term.column) {
      terms[merged - 1].value += term.value;
    } else {
      terms[merged++] = term;
    }
  }
  terms.resize(merged);
}

// Rows are stored one after another (compressed). Columns and rows are only ever appended.
struct SparseModel {
  std::vector<double> cost, lower, upper;  // by column
  std::vector<char> integer;
  std::vector<double> row_lower, row_upper;  // by row; +-kInfinity where open
  std::vector<int> row_start = {0};          // numRows() + 1
  std::vector<int> index;                    // columns
  std::vector<double> value;

  int numColumns() const { return static_cast<int>(cost.size()); }
  int numRows() const { return static_cast<int>(row_lower.size()); }

  int addColumn(double column_cost, double column_lower, double column_upper, bool is_integer) {
    cost.push_back(column_cost);
    lower.push_back(column_lower);
    upper.push_back(column_upper);
    integer.push_back(is_integer);
    return numColumns() - 1;
  }
  int addBinary(double column_cost) { return addColumn(column_cost, 0, 1, true); }

  int addRow(std::span<const Term> terms, double lower_bound, double upper_bound) {
    for (const Term& term : terms) {
      index.push_back(term.column);
      value.push_back(term.value);
    }
    row_start.push_back(static_cast<int>(index.size()));
    row_lower.push_back(lower_bound);
    row_upper.push_back(upper_bound);
    return numRows() - 1;
  }
};

}  // namespace poet::planner
