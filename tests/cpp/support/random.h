// Random choices that are the same on every machine (the standard's distributions are not).
#pragma once

#include <cstdint>
#include <vector>

namespace poet::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // In [0, count), or 0 where count is 0.
  int64_t below(int64_t count) {
    return count <= 0 ? 0 : static_cast<int64_t>(next() % static_cast<uint64_t>(count));
  }
  int64_t between(int64_t least, int64_t greatest) { return least + below(greatest - least + 1); }
  bool chance(double probability) { return unit() < probability; }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(below(static_cast<int64_t>(from.size())))];
  }

 private:
  uint64_t state_;
};

}  // namespace poet::testing
