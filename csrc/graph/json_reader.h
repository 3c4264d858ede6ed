// Reading JSON that nobody vouches for, and writing it. Internal to the readers and writers of
// graphs and schedules; not part of the API.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/ids.h"

namespace poet::json {

using Json = nlohmann::json;
// Keeps the order of its keys: for writing (its look-up is linear: never parse into one).
using OrderedJson = nlohmann::ordered_json;

// Note [Reading hostile files]
// A reader yields the structure or throws FormatError, whatever the bytes are. Hence: nesting is
// bounded, a repeated or unknown key is an error (a reader that takes the last one of two hides
// damage), integers are read as integers and checked before they are narrowed, and nothing is
// allocated in proportion to a number that stands in the file, only to the file's own size
// (kMaxFileOps bounds the one exception: a schedule's lists have one entry an op).
inline constexpr int kMaxDepth = 8;
inline constexpr int64_t kMaxFileOps = int64_t{1} << 20;

// On one line. A name that is no UTF-8 is written with replacement characters rather than not at
// all.
std::string dump(const OrderedJson& json);

// `what` opens every message: "graph", "schedule".
Json parse(std::string_view text, std::string_view what);

// Checks {"format": format, "version": version} of an object.
void checkHeader(const Json& document, std::string_view format, int version);

int64_t asInteger(const Json& json, const std::string& where, int64_t least, int64_t greatest);
double asNumber(const Json& json, const std::string& where);
const std::string& asText(const Json& json, const std::string& where);
const Json::array_t& asList(const Json& json, const std::string& where);

// One object: every key that is asked for is remembered, and finish() refuses what nobody asked
// for.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string where);

  const Json* find(const char* key);     // nullptr where it is missing
  const Json& require(const char* key);  // FormatError where it is missing
  std::string path(const char* key) const { return where_ + "." + key; }

  int64_t integer(const char* key, int64_t least, int64_t greatest = kLargest);
  int64_t integerOr(const char* key, int64_t missing, int64_t least, int64_t greatest = kLargest);
  double number(const char* key);
  double numberOr(const char* key, double missing);
  std::string text(const char* key);
  std::string textOr(const char* key, std::string missing);
  bool flagOr(const char* key, bool missing);
  uint64_t hex(const char* key);  // 16 hexadecimal digits

  // A list of indices in [0, count); empty where the key is missing.
  template <class IdType>
  std::vector<IdType> ids(const char* key, int64_t count) {
    std::vector<IdType> result;
    for (int64_t index : indices(key, count)) result.emplace_back(index);
    return result;
  }
  std::vector<int64_t> indices(const char* key, int64_t count);

  void finish() const;

 private:
  static constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const Json& json_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
};

// 16 hexadecimal digits, lower case.
std::string toHex(uint64_t number);

}  // namespace poet::json
