// The functions of HiGHS that poet calls, from a shared library that is opened at run time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace poet::planner {

// Note [HiGHS is loaded, not linked]
// A wheel cannot know where its user's HiGHS lies: pip puts highsbox's and highspy's libraries
// below some site-packages, a distribution puts its own elsewhere, and most machines have none. So
// the library is opened by path when a solve first asks for it; poet builds and runs without. Only
// the C interface is used: highsbox is built with the old C++ ABI, and C++ names differ between
// versions. The types below are those of highs_c_api.h (1.5 to 1.15);
// tests/cpp/planner/highs_api_test.cpp compares them wherever the header is found.
struct HighsApi {
  void* (*create)();
  void (*destroy)(void*);
  const char* (*version)();
  int (*getSizeofHighsInt)(const void*);
  int (*setBoolOptionValue)(void*, const char*, int);
  int (*setIntOptionValue)(void*, const char*, int);
  int (*setDoubleOptionValue)(void*, const char*, double);
  int (*setStringOptionValue)(void*, const char*, const char*);
  int (*passLp)(void*, int columns, int rows, int entries, int format, int sense, double offset,
                const double* cost, const double* lower, const double* upper,
                const double* row_lower, const double* row_upper, const int* start,
                const int* index, const double* value);
  int (*passMip)(void*, int columns, int rows, int entries, int format, int sense, double offset,
                 const double* cost, const double* lower, const double* upper,
                 const double* row_lower, const double* row_upper, const int* start,
                 const int* index, const double* value, const int* integrality);
  int (*addRows)(void*, int rows, const double* lower, const double* upper, int entries,
                 const int* start, const int* index, const double* value);
  int (*setSolution)(void*, const double* x, const double* row, const double* reduced,
                     const double* dual);
  int (*zeroAllClocks)(const void*);
  int (*run)(void*);
  int (*getModelStatus)(const void*);
  int (*getIntInfoValue)(const void*, const char*, int*);
  int (*getInt64InfoValue)(const void*, const char*, int64_t*);
  int (*getDoubleInfoValue)(const void*, const char*, double*);
  double (*getObjectiveValue)(const void*);
  int (*getSolution)(const void*, double* x, double* reduced, double* row, double* dual);
};

// Constants of highs_c_api.h.
inline constexpr int kHighsError = -1;
inline constexpr int kHighsRowwise = 2;
inline constexpr int kHighsMinimize = 1;
inline constexpr int kHighsModelEmpty = 6;
inline constexpr int kHighsOptimal = 7;
inline constexpr int kHighsInfeasible = 8;
inline constexpr int kHighsSolutionFeasible = 2;
// Of the option simplex_dual_edge_weight_strategy; only its documentation names it.
inline constexpr int kHighsDevexWeights = 1;

// Nullopt where the library is missing or has other functions than expected, and then `why_not`
// says which. An empty path: $POET_HIGHS_LIBRARY, or what the system's loader knows as libhighs.so.
// What was opened stays open until the process ends.
std::optional<HighsApi> loadHighs(const std::string& path, std::string& why_not);

}  // namespace poet::planner
