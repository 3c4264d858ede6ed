// Budgets as people write them, for programs without Python. The texts of the errors are those of
// the Python package.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "graph/export.h"

namespace poet {

// Most bytes that may be resident at once: a number of bytes, "512MiB", "1.5GiB", "800 MB", "2g",
// or "60%" of the plain step's peak. A unit alone ("2g") is binary; kB, MB ... are decimal.
class POET_API RamBudget {
 public:
  // Throws ArgumentError where the text cannot be understood, or is not positive.
  RamBudget(std::string_view text);  // NOLINT(google-explicit-constructor): an option's value
  RamBudget(const std::string& text) : RamBudget(std::string_view(text)) {}  // NOLINT
  RamBudget(const char* text) : RamBudget(std::string_view(text)) {}         // NOLINT
  template <std::integral Bytes>
  RamBudget(Bytes bytes) : RamBudget(std::to_string(bytes), std::to_string(bytes)) {}  // NOLINT

  // Bytes, rounded down, >= 1. Throws ArgumentError where a share of this peak is less than a byte.
  int64_t bytes(int64_t plain_peak_bytes) const;
  bool isShare() const { return share_; }

 private:
  RamBudget(std::string_view text, std::string shown);

  std::string shown_;  // in errors
  // budget = mantissa_ * unit_ / 10^decimals_, or that many per cent of the peak.
  uint64_t mantissa_ = 0;
  int decimals_ = 0;
  int64_t unit_ = 1;
  bool share_ = false;
};

// Longest that the step may take: a ratio to the plain step's time (1.3), or a time with its unit:
// "1.5s", "800ms", "250us", "2min".
class POET_API RuntimeBudget {
 public:
  // Throw ArgumentError for what cannot be understood, is not positive or not finite.
  RuntimeBudget(double ratio);           // NOLINT(google-explicit-constructor)
  RuntimeBudget(std::string_view text);  // NOLINT(google-explicit-constructor)
  RuntimeBudget(const std::string& text) : RuntimeBudget(std::string_view(text)) {}  // NOLINT
  RuntimeBudget(const char* text) : RuntimeBudget(std::string_view(text)) {}         // NOLINT

  // Throws ArgumentError where the ratio has nothing to be a ratio to.
  double seconds(double plain_seconds) const;

 private:
  double amount_;
  bool ratio_;
};

// When a call without a plan that cannot be kept inside the budget throws BudgetError rather than
// go on above it. Never once an optimizer's op has run, or anything else that cannot be put back.
enum class Strictness : uint8_t {
  kNever,
  kFirstCall,  // the first call, if it is certain that no plan would do
  kAlways,
  // Likewise, and no allocation of the thread that runs the step exceeds the budget, whether the
  // call has a plan or an optimizer's op has run: see Note [Hard budgets].
  kHard
};

// "117.8 MiB", or plain bytes below 1 KiB.
POET_API std::string formatBytes(int64_t size);

}  // namespace poet
