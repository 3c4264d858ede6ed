// The score by which dynamic tensor rematerialization chooses what to evict: for the policy over a
// recorded step (dtr.cpp) and for the one in a live step (runtime/online_policy.cpp).
//
// Paper: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021 (arXiv 2006.09616), section
// 4.1: evict the value with the least h = cost / (bytes x staleness).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace poet::methods {

enum class DtrCost {
  kNeighbourhood,  // h_DTR: of the evicted values without which it cannot come back, and of those
                   // that cannot come back without it
  kComponents,     // h_DTR-eq: of the union-find components of evicted values around it; a value
                   // that comes back takes its own cost out, without splitting them
  kLocal           // h_DTR-local: its own alone
};

// `Values` says what the numbers 0, 1, ... stand for:
//   double secondsOf(int v)        seconds that its recipe takes
//   forInputs(int v, f)            calls f(u) for what its recipe reads; nothing without a recipe
//   forDependents(int v, f)        calls f(u) for what recipes make that read it
template <class Values>
class DtrScores {
 public:
  DtrScores(const Values& values, DtrCost kind) : values_(values), kind_(kind) {}

  // Values are numbered up to `count` from here on.
  void resize(size_t count) {
    evicted_.resize(count, 0);
    mark_.resize(count, 0);
    touched_.resize(count, 0);
    if (kind_ == DtrCost::kNeighbourhood) {
      before_.resize(count, kUnknown);
      behind_.resize(count, kUnknown);
    }
    while (component_.size() < count) component_.push_back(newComponent());
  }

  void noteTouch(int v, double clock_seconds) { touched_[at(v)] = clock_seconds; }

  // What v's recipe takes, reads or makes beside it is no longer what it was.
  void noteChange(int v) {
    if (!has_sums_) return;
    before_[at(v)] = behind_[at(v)] = kUnknown;
    forEachByEvicted(
        v, [&](int w, auto&& take) { values_.forDependents(w, take); },
        [&](int u) { before_[at(u)] = kUnknown; });
    forEachByEvicted(
        v, [&](int w, auto&& take) { values_.forInputs(w, take); },
        [&](int u) { behind_[at(u)] = kUnknown; });
  }

  void noteEviction(int v) {
    evicted_[at(v)] = 1;
    noteChange(v);
    if (kind_ != DtrCost::kComponents) return;
    cost_of_[at(rootOf(component_[at(v)]))] += values_.secondsOf(v);
    forNeighbours(v, [&](int u) {
      if (evicted_[at(u)]) join(component_[at(u)], component_[at(v)]);
    });
  }

  void noteReturn(int v) {
    if (!evicted_[at(v)]) return;
    evicted_[at(v)] = 0;
    noteChange(v);
    if (kind_ != DtrCost::kComponents) return;
    cost_of_[at(rootOf(component_[at(v)]))] -= values_.secondsOf(v);
    component_[at(v)] = newComponent();
  }

  // Seconds that the eviction of v is charged with.
  double costOf(int v) {
    double cost = values_.secondsOf(v);
    if (kind_ == DtrCost::kNeighbourhood) cost += neighbourhoodCost(v);
    if (kind_ == DtrCost::kComponents) cost += componentsCost(v);
    return cost;
  }

  // Seconds since it was last touched, on the policy's clock.
  double stalenessOf(int v, double clock_seconds) const {
    return stalenessSince(touched_[at(v)], clock_seconds);
  }
  static double stalenessSince(double touched_seconds, double clock_seconds) {
    return std::max(clock_seconds - touched_seconds, kLeastSeconds);
  }

  double scoreOf(int v, int64_t bytes, double clock_seconds) {
    return costOf(v) / (static_cast<double>(bytes) * stalenessOf(v, clock_seconds));
  }

 private:
  static constexpr double kLeastSeconds = 1e-9;
  static constexpr double kUnknown = -1;

  static size_t at(int v) { return static_cast<size_t>(v); }

  // e*: what must be computed again for v, and what must be with v before it comes back. Both sums
  // are kept until something evicted that they may count changes: on a chain of n values, each
  // eviction looks at n of them again, not at n for each of n.
  double neighbourhoodCost(int v) {
    has_sums_ = true;
    if (before_[at(v)] < 0)
      before_[at(v)] = sumFrom(v, [&](int w, auto&& take) { values_.forInputs(w, take); });
    if (behind_[at(v)] < 0)
      behind_[at(v)] = sumFrom(v, [&](int w, auto&& take) { values_.forDependents(w, take); });
    return before_[at(v)] + behind_[at(v)];
  }

  template <class Step>
  double sumFrom(int v, const Step& step) {
    double cost = 0;
    forEachByEvicted(v, step, [&](int u) {
      if (evicted_[at(u)]) cost += values_.secondsOf(u);
    });
    return cost;
  }

  // Those that steps from v come to by way of evicted ones; these once, and the others at which it
  // ends as well, maybe often.
  template <class Step, class Use>
  void forEachByEvicted(int v, const Step& step, const Use& use) {
    ++round_;
    todo_.assign(1, v);
    while (!todo_.empty()) {
      const int w = todo_.back();
      todo_.pop_back();
      step(w, [&](int u) {
        if (mark_[at(u)] == round_) return;
        use(u);
        if (!evicted_[at(u)]) return;
        mark_[at(u)] = round_;
        todo_.push_back(u);
      });
    }
  }

  double componentsCost(int v) {
    double cost = 0;
    todo_.clear();  // roots seen
    forNeighbours(v, [&](int u) {
      if (!evicted_[at(u)]) return;
      const int root = rootOf(component_[at(u)]);
      if (std::find(todo_.begin(), todo_.end(), root) != todo_.end()) return;
      todo_.push_back(root);
      cost += cost_of_[at(root)];
    });
    return cost;
  }

  template <class Visit>
  void forNeighbours(int v, const Visit& visit) {
    values_.forInputs(v, visit);
    values_.forDependents(v, visit);
  }

  int newComponent() {
    up_.push_back(static_cast<int>(up_.size()));
    cost_of_.push_back(0);
    return up_.back();
  }
  int rootOf(int c) {
    while (up_[at(c)] != c) c = up_[at(c)] = up_[at(up_[at(c)])];
    return c;
  }
  void join(int a, int b) {
    a = rootOf(a);
    b = rootOf(b);
    if (a == b) return;
    up_[at(a)] = b;
    cost_of_[at(b)] += cost_of_[at(a)];
  }

  const Values& values_;
  const DtrCost kind_;
  std::vector<char> evicted_;
  std::vector<int> mark_;
  std::vector<double> touched_;  // seconds of the policy's clock
  std::vector<double> before_;   // seconds of what must be computed again for it, or kUnknown
  std::vector<double> behind_;   // likewise, of what waits for it
  std::vector<int> component_;   // by value
  std::vector<int> up_;
  std::vector<double> cost_of_;  // by root
  std::vector<int> todo_;
  int round_ = 0;
  bool has_sums_ = false;  // somebody has asked for one: until then no change matters
};

}  // namespace poet::methods
