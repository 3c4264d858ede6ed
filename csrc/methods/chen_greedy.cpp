// chen_greedy: segments of about b bytes, with the search over b.
//
// Paper: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost" (arXiv
// 1604.06174, section 4.3, Algorithm 3: memory planning with a budget b for each segment; "search
// over b" to find the plan).
//
// Chosen: links lie between the step's cut vertices, as in chen_sqrt.cpp. A segment ends at the
// first boundary at which its links hold more than b bytes. The paper searches b near sqrt(x y) of
// its first plan; here every b that could change the plan is a sum of neighbouring links' bytes,
// and kMostBudgets of them, evenly spread, are tried: all of them where there are no more. Of the
// plans within the budget the cheapest is taken.
//
// Bound: none beyond plain training. Weakness: segments are computed again as a whole, and every
// one of them once: what is cheap and large is not told from what is dear and small.
#include <algorithm>
#include <set>

#include "methods/chain_schedule.h"
#include "methods/every_method.h"
#include "methods/plan_choice.h"

namespace poet::methods {
namespace {

constexpr size_t kMostBudgets = 200;

std::vector<int64_t> bytesOf(const planner::Problem& problem, const Chain& chain) {
  std::vector<int64_t> bytes;
  for (const Link& link : chain) {
    int64_t sum = 0;
    for (const int v : link.inside) sum += problem.values[static_cast<size_t>(v)].bytes;
    if (link.boundary >= 0) sum += problem.values[static_cast<size_t>(link.boundary)].bytes;
    bytes.push_back(sum);
  }
  return bytes;
}

// Every sum of neighbours, or an even choice of them.
std::vector<int64_t> segmentBudgets(const std::vector<std::vector<int64_t>>& bytes) {
  std::set<int64_t> sums;
  for (const auto& chain : bytes) {
    for (size_t i = 0; i < chain.size(); ++i) {
      int64_t sum = 0;
      for (size_t j = i; j < chain.size(); ++j) sums.insert(sum += chain[j]);
    }
  }
  const std::vector<int64_t> all(sums.begin(), sums.end());
  if (all.size() <= kMostBudgets) return all;
  std::vector<int64_t> chosen;
  for (size_t i = 0; i < kMostBudgets; ++i)
    chosen.push_back(all[i * (all.size() - 1) / (kMostBudgets - 1)]);
  return chosen;
}

std::vector<int> segmentsOf(const std::vector<int64_t>& bytes, int64_t budget) {
  std::vector<int> ends;
  int64_t sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    sum += bytes[i];
    if (sum <= budget && i + 1 < bytes.size()) continue;
    ends.push_back(static_cast<int>(i));
    sum = 0;
  }
  return ends;
}

}  // namespace

Schedule planChenGreedy(const Graph& graph, const DeviceProfile& profile,
                        const SolveOptions& options) {
  const RecipeTable table(graph);
  const planner::Problem problem(graph, table, profile, {.objective = options.minimize});
  PlanChoice choice(problem, options, "chen_greedy");
  const std::vector<Chain> chains = findChains(problem, findMayLeave(problem));
  std::vector<std::vector<int64_t>> bytes;
  for (const Chain& chain : chains) bytes.push_back(bytesOf(problem, chain));
  for (const int64_t budget : segmentBudgets(bytes)) {
    if (choice.deadline().over()) break;
    std::vector<std::vector<Step>> steps;
    for (const auto& of_chain : bytes)
      steps.push_back(stepsOfSegments(segmentsOf(of_chain, budget)));
    choice.offer(planOfChains(problem, chains, steps));
  }
  return choice.finish("the least of its plans, segments between the step's cut vertices,");
}

}  // namespace poet::methods
