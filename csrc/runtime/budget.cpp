#include "runtime/budget.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "graph/error.h"

namespace poet {
namespace {

using Wide = unsigned __int128;

constexpr size_t kLongestText = 64;
constexpr int kMostDigits = 19;  // as many fit into 64 bits; the rest is below a byte
constexpr const char* kExpectedBytes =
    "bytes as a whole number, a size such as \"512MiB\", \"1.5GiB\" or \"800 MB\", or a share of "
    "the "
    "plain step's peak such as \"60%\"";
constexpr const char* kExpectedTime =
    "a ratio to the plain step's time such as 1.3, or a time such as \"1.5s\" or \"800ms\"";

[[noreturn]] void refuse(const char* name, const char* expected, const std::string& got,
                         const std::string& hint) {
  throw ArgumentError(detail::message(name, ": expected ", expected, "; got ", got, ". ", hint));
}

std::string quoted(std::string_view text) {
  std::string shown = "'" + std::string(text) + "'";
  if (shown.size() > kLongestText) shown = shown.substr(0, kLongestText) + "...";
  return shown;
}

// "1.5 GiB" taken apart: 15, 1, "gib".
struct Quantity {
  uint64_t mantissa = 0;
  int decimals = 0;
  bool negative = false;
  std::string unit;
};

bool isDigit(char c) { return c >= '0' && c <= '9'; }

// Digits and one point at text[at]; false where there is no digit.
bool readNumber(std::string_view text, size_t& at, Quantity& out) {
  bool any = false, point = false;
  int digits = 0;
  for (; at < text.size() && (isDigit(text[at]) || (text[at] == '.' && !point)); ++at) {
    if (text[at] == '.') {
      point = true;
      continue;
    }
    any = true;
    if (out.mantissa == 0 && text[at] == '0') {
      out.decimals += point;
    } else if (digits < kMostDigits) {
      out.mantissa = out.mantissa * 10 + static_cast<uint64_t>(text[at] - '0');
      out.decimals += point;
      ++digits;
    } else {
      out.decimals -= !point;
    }
  }
  return any;
}

// "e3", "e-3": at most three digits. Leaves `at` alone where there is no exponent.
void readExponent(std::string_view text, size_t& at, Quantity& out) {
  size_t end = at;
  if (end == text.size() || (text[end] != 'e' && text[end] != 'E')) return;
  ++end;
  const bool minus = end < text.size() && text[end] == '-';
  if (end < text.size() && (text[end] == '-' || text[end] == '+')) ++end;
  int exponent = 0;
  const size_t first = end;
  for (; end < text.size() && isDigit(text[end]) && end - first < 3; ++end) {
    exponent = exponent * 10 + (text[end] - '0');
  }
  if (end == first) return;
  out.decimals += minus ? exponent : -exponent;
  at = end;
}

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

Quantity split(std::string_view whole, const std::string& shown, const char* name,
               const char* expected) {
  const auto fail = [&] { refuse(name, expected, shown, "Write a number and its unit."); };
  if (whole.size() > kLongestText) fail();
  const std::string_view text = trimmed(whole);
  Quantity result;
  size_t at = 0;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) result.negative = text[at++] == '-';
  if (!readNumber(text, at, result)) fail();
  readExponent(text, at, result);
  for (const char c : trimmed(text.substr(at))) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (!letter && c != '%') fail();
    result.unit.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  if (result.unit.find('%') != std::string::npos && result.unit != "%") fail();
  for (; result.decimals > 0 && result.mantissa % 10 == 0; --result.decimals) result.mantissa /= 10;
  if (result.negative && result.mantissa > 0)
    refuse(name, expected, shown, "A budget cannot be negative.");
  return result;
}

// 0 for an unknown unit.
int64_t bytesOf(const std::string& unit) {
  if (unit.empty() || unit == "b" || unit == "byte" || unit == "bytes") return 1;
  const size_t power = std::string_view("kmgt").find(unit[0]);
  if (power == std::string_view::npos) return 0;
  const std::string rest = unit.substr(1);
  if (!rest.empty() && rest != "b" && rest != "ib") return 0;
  int64_t size = 1;
  for (size_t i = 0; i <= power; ++i) size *= rest == "b" ? 1000 : 1024;
  return size;
}

// mantissa * factor * 10^-decimals, rounded down; all ones where it exceeds 2^63 - 1.
Wide scaled(uint64_t mantissa, Wide factor, int decimals) {
  constexpr Wide kMost = std::numeric_limits<int64_t>::max();
  Wide product = static_cast<Wide>(mantissa) * factor;  // below 2^64 * 2^63
  for (; decimals > 0 && product > 0; --decimals) product /= 10;
  for (; decimals < 0 && product <= kMost && product > 0; ++decimals) product *= 10;
  return product > kMost ? ~Wide{0} : product;
}

}  // namespace

RamBudget::RamBudget(std::string_view text) : RamBudget(text, quoted(text)) {}

RamBudget::RamBudget(std::string_view text, std::string shown) : shown_(std::move(shown)) {
  const Quantity parts = split(text, shown_, "ram_budget", kExpectedBytes);
  mantissa_ = parts.mantissa;
  decimals_ = parts.decimals;
  share_ = parts.unit == "%";
  unit_ = share_ ? 1 : bytesOf(parts.unit);
  if (unit_ == 0) {
    refuse("ram_budget", kExpectedBytes, shown_,
           "Known units: %, B, and k, M, G, T with or without B or iB; not '" + parts.unit + "'.");
  }
  if (parts.unit.empty() && decimals_ > 0)
    refuse("ram_budget", kExpectedBytes, shown_, "Add a unit, as in \"1.5GiB\".");
  bytes(int64_t{1} << 40);  // found wrong now rather than after the first step
}

int64_t RamBudget::bytes(int64_t plain_peak_bytes) const {
  const Wide exact = share_ ? scaled(mantissa_, static_cast<Wide>(plain_peak_bytes), decimals_ + 2)
                            : scaled(mantissa_, static_cast<Wide>(unit_), decimals_);
  if (exact == 0) {
    refuse("ram_budget", kExpectedBytes, shown_, "A budget must hold at least one byte.");
  }
  if (exact > static_cast<Wide>(std::numeric_limits<int64_t>::max())) {
    refuse("ram_budget", kExpectedBytes, shown_, "A budget must lie below 2**63 bytes.");
  }
  return static_cast<int64_t>(exact);
}

RuntimeBudget::RuntimeBudget(double ratio) : amount_(ratio), ratio_(true) {
  const char* hint = std::isnan(ratio)   ? "It must be a number."
                     : std::isinf(ratio) ? "It must be finite."
                     : ratio <= 0        ? "It must be above 0."
                                         : nullptr;
  if (hint != nullptr) refuse("runtime_budget", kExpectedTime, detail::message(ratio), hint);
}

RuntimeBudget::RuntimeBudget(std::string_view text) : amount_(0), ratio_(false) {
  static constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}, {"min", 60.0}}};
  const Quantity parts = split(text, quoted(text), "runtime_budget", kExpectedTime);
  for (const auto& [unit, seconds] : kUnits) {
    if (unit == parts.unit) {
      amount_ = static_cast<double>(parts.mantissa) * std::pow(10.0, -parts.decimals) * seconds;
      if (amount_ > 0 && std::isfinite(amount_)) return;
      refuse("runtime_budget", kExpectedTime, quoted(text), "It must be a finite time above 0.");
    }
  }
  refuse("runtime_budget", kExpectedTime, quoted(text),
         parts.unit.empty() ? "Give a ratio as a number, or add a unit to a time."
                            : "Known units: us, ms, s, min; not '" + parts.unit + "'.");
}

double RuntimeBudget::seconds(double plain_seconds) const {
  if (!ratio_) return amount_;
  if (plain_seconds == 0) {
    refuse("runtime_budget", kExpectedTime, detail::message(amount_),
           "This step has no recorded times: give a time.");
  }
  return amount_ * plain_seconds;
}

std::string formatBytes(int64_t size) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (size > -1024 && size < 1024) return std::to_string(size) + " B";
  double amount = static_cast<double>(size);
  size_t unit = 0;
  for (; std::abs(amount) >= 1024 && unit + 1 < kUnits.size(); ++unit) amount /= 1024;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", amount, kUnits[unit]);
  return text.data();
}

}  // namespace poet
