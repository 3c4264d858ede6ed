#include "methods/revolve.h"

#include <algorithm>

#include "methods/every_method.h"
#include "methods/plan_choice.h"

namespace poet::methods {
namespace {

// C(s + r, s), or a number above `most` where it is larger.
int64_t beta(int64_t s, int64_t r, int64_t most) {
  if (s < 0 || r < 0) return 0;
  int64_t product = 1;
  for (int64_t i = 1; i <= std::min(s, r); ++i) {
    product = product * (std::max(s, r) + i) / i;
    if (product > most) return most + 1;
  }
  return product;
}

class Revolve {
 public:
  std::vector<Step> run(int num_links, int states) {
    reverse(0, num_links, states);
    return std::move(steps_);
  }

 private:
  // Links begin ... end - 1; x before `begin` is there and one of the states.
  void reverse(int begin, int end, int states) {
    if (end - begin == 1) {
      steps_.push_back({Word::kForwardAll, begin});
      steps_.push_back({Word::kBackward, begin});
      return;
    }
    const int middle = states == 1 ? end - 1 : begin + bestAdvance(end - begin, states);
    for (int i = begin; i < middle; ++i)
      steps_.push_back({i == begin ? Word::kForwardKeep : Word::kForward, i});
    reverse(middle, end, std::max(1, states - 1));
    reverse(begin, middle, states);
  }

  // How far to run before the next state is taken.
  static int bestAdvance(int num_links, int states) {
    int best = 1;
    int64_t least = -1;
    for (int k = 1; k < num_links; ++k) {
      const int64_t forwards =
          k + revolveForwards(num_links - k, states - 1) + revolveForwards(k, states);
      if (least >= 0 && forwards >= least) continue;
      least = forwards;
      best = k;
    }
    return best;
  }

  std::vector<Step> steps_;
};

}  // namespace

int64_t revolveForwards(int64_t num_links, int64_t states) {
  int64_t r = 0;
  while (beta(states, r, num_links) < num_links) ++r;
  // Sum of i times the links that are run i times: beta(states, i) - beta(states, i - 1) of them.
  int64_t forwards = 0;
  for (int64_t i = 1; i <= r; ++i) {
    const int64_t upto = std::min(num_links, beta(states, i, num_links));
    forwards += i * (upto - beta(states, i - 1, num_links));
  }
  return forwards;
}

std::vector<Step> stepsOfRevolve(int num_links, int states) {
  return Revolve().run(num_links, states);
}

Schedule planRevolve(const Graph& graph, const DeviceProfile& profile,
                     const SolveOptions& options) {
  const RecipeTable table(graph);
  const planner::Problem problem(graph, table, profile, {.objective = options.minimize});
  PlanChoice choice(problem, options, "revolve");
  std::vector<Chain> chains = findChains(problem, findMayLeave(problem));
  size_t longest = 1;
  for (Chain& chain : chains) {
    chain = joinLinks(problem, std::move(chain), kMostRevolveLinks);
    longest = std::max(longest, chain.size());
  }
  // Fewer states need less memory and more time.
  for (auto states = static_cast<int>(longest); states >= 1 && !choice.any(); --states) {
    if (choice.deadline().over()) break;
    std::vector<std::vector<Step>> steps;
    for (const Chain& chain : chains)
      steps.push_back(stepsOfRevolve(static_cast<int>(chain.size()), states));
    choice.offer(planOfChains(problem, chains, steps));
  }
  return choice.finish("the least of its plans over the step's cut vertices");
}

}  // namespace poet::methods
