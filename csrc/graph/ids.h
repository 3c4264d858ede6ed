// Typed indices. An OpId is a position in Graph::ops(), a ValueId a position in Graph::values().
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace poet {

template <class Tag>
struct Id {
  int32_t index = -1;

  constexpr Id() = default;
  explicit constexpr Id(int64_t i) : index(static_cast<int32_t>(i)) {}
  constexpr bool valid() const { return index >= 0; }
  constexpr auto operator<=>(const Id&) const = default;
};

struct OpTag;
struct ValueTag;
using OpId = Id<OpTag>;
using ValueId = Id<ValueTag>;

inline constexpr OpId kNoOp{};
inline constexpr ValueId kNoValue{};

inline bool contains(std::span<const ValueId> list, ValueId id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}
inline bool contains(std::span<const OpId> list, OpId id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

}  // namespace poet

template <class Tag>
struct std::hash<poet::Id<Tag>> {
  size_t operator()(poet::Id<Tag> id) const noexcept { return std::hash<int32_t>()(id.index); }
};
