#include "methods/chain_schedule.h"

#include <algorithm>

#include "graph/error.h"

namespace poet::methods {
namespace {

using planner::Problem;
using planner::ReplayPlan;

class ChainWalk {
 public:
  ChainWalk(const Problem& problem, PlanWalk& walk, const Chain& chain,
            const std::vector<Step>& steps)
      : problem_(problem), walk_(walk), chain_(chain), steps_(steps), pages_(chain.size(), 0) {
    for (const Step& step : steps) {
      if (step.word == Word::kPageIn) pages_[static_cast<size_t>(step.link)] = 1;
    }
  }

  void run() {
    std::vector<char> ran(chain_.size(), 0);
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      if (step.word == Word::kBackward) {
        runBackward(i);
      } else if (step.word == Word::kPageIn || step.word == Word::kPageInAll) {
        pageIn(step);
      } else if (!ran[static_cast<size_t>(step.link)]) {
        ran[static_cast<size_t>(step.link)] = 1;
        walk_.advanceTo(link(step).last_stage + 1);
        settle(step);
      } else {
        replay(i);
      }
    }
  }

 private:
  const Link& link(const Step& step) const { return chain_[static_cast<size_t>(step.link)]; }
  int boundaryBefore(const Step& step) const {
    return step.link == 0 ? -1 : chain_[static_cast<size_t>(step.link) - 1].boundary;
  }
  // Is it touched by a first execution yet to come?
  bool isAwaited(int v) const { return problem_.plainTouchFrom(v, walk_.stage()) >= 0; }

  // The link's own values, its boundary last.
  std::vector<int> valuesOf(const Step& step) const {
    std::vector<int> values = link(step).inside;
    if (link(step).boundary >= 0) values.push_back(link(step).boundary);
    return values;
  }

  // What goes after a forward.
  void settle(const Step& step) {
    const int before = boundaryBefore(step);
    if (before >= 0 && pages_[static_cast<size_t>(step.link) - 1]) {
      walk_.leaveForStore(before);
    } else if (before >= 0 && step.word == Word::kForward) {
      walk_.leave(before);
    }
    if (step.word == Word::kForwardAll) return;
    for (const int v : link(step).inside) {
      if (step.word != Word::kForwardOut) {
        walk_.leave(v);
      } else if (isAwaited(v)) {
        walk_.leaveForStore(v);
      }
    }
  }

  void replay(size_t i) {
    const Step& step = steps_[i];
    std::vector<int> wanted;
    const int boundary = link(step).boundary;
    const bool goes_on = i + 1 < steps_.size() && steps_[i + 1] != Step{Word::kBackward, step.link};
    if (boundary >= 0 && (goes_on || isAwaited(boundary))) wanted.push_back(boundary);
    if (step.word == Word::kForwardAll) {
      for (const int v : link(step).inside) {
        if (isAwaited(v)) wanted.push_back(v);
      }
    }
    std::erase_if(wanted, [&](int v) { return !walk_.mayBeAskedFor(v); });
    const std::vector<int> made = walk_.bring(wanted);
    for (const int v : made) {
      if (std::find(wanted.begin(), wanted.end(), v) == wanted.end()) walk_.leave(v);
    }
    if (const int before = boundaryBefore(step); step.word == Word::kForward && before >= 0)
      walk_.leave(before);
  }

  // Replays that follow stand before the first stage of the next link's backward.
  void runBackward(size_t i) {
    const Step& step = steps_[i];
    walk_.advanceTo(std::max(walk_.stage(), link(step).backward_stage));
    const auto next =
        std::find_if(steps_.begin() + static_cast<std::ptrdiff_t>(i) + 1, steps_.end(),
                     [](const Step& s) { return s.word == Word::kBackward; });
    if (next != steps_.end()) walk_.advanceTo(std::max(walk_.stage(), link(*next).backward_stage));
    for (const int v : valuesOf(step)) {
      if (!isAwaited(v)) walk_.leave(v);
    }
  }

  void pageIn(const Step& step) {
    if (step.word == Word::kPageIn) {
      walk_.pageIn(link(step).boundary);
      return;
    }
    for (const int v : link(step).inside) {
      if (isAwaited(v)) walk_.pageIn(v);
    }
  }

  const Problem& problem_;
  PlanWalk& walk_;
  const Chain& chain_;
  const std::vector<Step>& steps_;
  std::vector<char> pages_;  // by link: its boundary goes to the store
};

}  // namespace

ReplayPlan planOfChains(const Problem& problem, const std::vector<Chain>& chains,
                        const std::vector<std::vector<Step>>& steps) {
  POET_INTERNAL_ASSERT(chains.size() == steps.size(), "one list of steps a chain");
  PlanWalk walk(problem);
  for (size_t c = 0; c < chains.size(); ++c) ChainWalk(problem, walk, chains[c], steps[c]).run();
  walk.advanceTo(problem.numStages());
  return walk.take();
}

std::vector<Step> stepsOfSegments(const std::vector<int>& ends) {
  std::vector<Step> steps;
  int first = 0;
  for (const int end : ends) {
    for (int i = first; i <= end; ++i) {
      const Word word = end == ends.back() ? Word::kForwardAll
                        : i == first       ? Word::kForwardKeep
                                           : Word::kForward;
      steps.push_back({word, i});
    }
    first = end + 1;
  }
  for (size_t s = ends.size(); s-- > 0;) {
    first = s == 0 ? 0 : ends[s - 1] + 1;
    if (s + 1 < ends.size()) {
      for (int i = first; i <= ends[s]; ++i) steps.push_back({Word::kForwardAll, i});
    }
    for (int i = ends[s]; i >= first; --i) steps.push_back({Word::kBackward, i});
  }
  return steps;
}

std::vector<Step> stepsThatKeepAll(size_t num_links) {
  return stepsOfSegments({static_cast<int>(num_links) - 1});
}

}  // namespace poet::methods
