// What the planner says that no schedule can beat: cuts that every plan keeps, bounds over all
// schedules against the exhaustive search.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "planner/annealing.h"
#include "planner/backends/solver.h"
#include "planner/candidates.h"
#include "planner/clock.h"
#include "planner/exact.h"
#include "planner/exhaustive.h"
#include "planner/lp_loop.h"
#include "planner/problem.h"
#include "planner/program.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"
#include "support/solver_choices.h"

namespace poet::planner {
namespace {

using poet::testing::choiceOf;
using poet::testing::exhaustiveExtra;
using poet::testing::smallRandomGraph;

int numCases() { return poet::testing::propertyCases(150); }

DeviceProfile deviceWithStore(uint64_t seed) {
  std::mt19937_64 random(seed);
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  profile.store_watts = static_cast<double>(seed % 3);
  profile.generator_state_bytes = 3;
  profile.store_read_rate = std::uniform_real_distribution<double>(0.5, 8)(random);
  profile.store_write_rate = std::uniform_real_distribution<double>(0.5, 8)(random);
  profile.store_read_latency_seconds = 0.25;
  profile.store_write_latency_seconds = 0.5;
  return profile;
}

struct Small {
  Small(uint64_t seed, bool paging)
      : graph(smallRandomGraph(seed)),
        profile(deviceWithStore(seed)),
        table(graph),
        problem(graph, table, profile,
                {.objective = Objective::kEnergy, .recompute = true, .paging = paging}) {
    std::mt19937_64 random(seed * 97 + 3);
    const int64_t peak = simulatePlain(graph, profile).peak_bytes;
    const int64_t least = std::min(problem.floor_bytes, peak);
    budget = std::max<int64_t>(1, std::uniform_int_distribution<int64_t>(least, peak)(random));
  }

  Graph graph;
  DeviceProfile profile;
  RecipeTable table;
  Problem problem;
  int64_t budget = 0;
};

// Plans of all kinds: walks of the annealing at several temperatures, within the budget or not.
std::vector<ReplayPlan> somePlans(const Small& small) {
  std::vector<ReplayPlan> plans = {small.problem.leastPlan()};
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const AnnealingResult result = anneal(small.problem, plans.back(),
                                          {.budget_bytes = small.budget,
                                           .replay_seconds_limit = std::nullopt,
                                           .most_moves = 400,
                                           .hottest = seed % 2 == 0 ? 30.0 : 1.0,
                                           .seed = seed});
    plans.push_back(result.best ? *result.best : result.closest);
  }
  return plans;
}

// A cut cuts fractional points off, and no plan: the sum over its columns is at least 1.
TEST(PathCuts, AreKeptByEveryPlan) {
  int cuts = 0, checked = 0;
  for (int seed = 0; seed < 6 * numCases(); ++seed) {
    SCOPED_TRACE(seed);
    const Small small(static_cast<uint64_t>(seed) + 9000, seed % 2 == 1);
    for (const bool relaxed : {false, true}) {
      const Program program(small.problem, allCandidates(small.problem),
                            {.budget_bytes = small.budget,
                             .replay_seconds_limit = std::nullopt,
                             .relaxed = relaxed,
                             .rows_at_replays = !relaxed});
      const Relaxation relaxation = relax(program, {.time_limit_seconds = 5});
      cuts += static_cast<int>(relaxation.cut_columns.size());
      for (const ReplayPlan& plan : somePlans(small)) {
        const auto point = program.pointOf(plan);
        if (!point) continue;  // it replays in another order
        for (const std::vector<int>& columns : relaxation.cut_columns) {
          double sum = 0;
          for (const int c : columns) sum += (*point)[static_cast<size_t>(c)];
          EXPECT_GE(sum, 1);
          ++checked;
        }
      }
    }
  }
  std::printf("%d cuts, %d pairs of plan and cut\n", cuts, checked);
  EXPECT_GT(cuts, numCases());
  EXPECT_GT(checked, cuts);
}

// Whatever the multipliers, and those of a simplex that was stopped too.
TEST(SafeBound, IsNeverAboveTheOptimum) {
  int compared = 0, close = 0;
  for (int seed = 0; seed < numCases(); ++seed) {
    SCOPED_TRACE(seed);
    const Small small(static_cast<uint64_t>(seed) + 30000, seed % 2 == 1);
    const Program program(
        small.problem, allCandidates(small.problem),
        {.budget_bytes = small.budget, .replay_seconds_limit = std::nullopt, .relaxed = true});
    const SparseModel model = relax(program, {.time_limit_seconds = 5}).model;
    const LpResult solved = makeLpSolver(model, choiceOf(SolverKind::kCbc))->solve(10);
    if (solved.status != SolverStatus::kOptimal) continue;
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    std::vector<double> any(model.row_lower.size());
    for (double& y : any) y = std::uniform_real_distribution<double>(-2, 2)(random);
    EXPECT_LE(safeBound(model, any), solved.objective + 1e-6);
    for (const SolverKind kind : {SolverKind::kCbc, SolverKind::kAuto}) {
      const WorkMeter meter;  // limits iterations
      for (double limit = 1e-6; limit < 1e-3; limit *= 4) {
        const LpResult stopped = makeLpSolver(model, choiceOf(kind))->solve(limit);
        if (stopped.duals.empty()) continue;
        ASSERT_EQ(stopped.duals.size(), model.row_lower.size());
        const double bound = safeBound(model, stopped.duals);
        EXPECT_LE(bound, solved.objective + 1e-6);
        close += bound > 0.5 * solved.objective;
        ++compared;
      }
    }
  }
  std::printf("%d simplexes stopped, %d of them past half of the optimum\n", compared, close);
  EXPECT_GT(compared, numCases() / 2);
  EXPECT_GT(close, 0);
}

// Neither the relaxation nor what branch and cut adds to it ever lies above the truth.
TEST(BoundOverAll, IsNeverAboveTheTruth) {
  int compared = 0, tight = 0;
  for (int seed = 0; seed < numCases(); ++seed) {
    SCOPED_TRACE(seed);
    const bool paging = seed % 2 == 1;
    const Small small(static_cast<uint64_t>(seed) + 20000, paging);
    if (!small.problem.exact || small.graph.numValues() > 11) continue;
    const auto truth = exhaustiveExtra(small.graph, small.profile, small.budget,
                                       {.recompute = true, .paging = paging, .joules = true});
    if (!truth) continue;
    const double watts = small.profile.busyWatts() + small.profile.alwaysWatts();
    const double cost = *truth / watts;
    const double infinite = std::numeric_limits<double>::infinity();
    for (const double best : {infinite, cost, 2 * cost + 1}) {
      const BoundOverAll found =
          boundOverAll(small.problem, small.budget, {.cost = best},
                       {.time_limit_seconds = 10, .replay_seconds_limit = std::nullopt});
      ASSERT_TRUE(found.any);
      EXPECT_LE(found.bound_cost, cost + 1e-6);
      if (best < infinite) tight += found.bound_cost >= cost - 1e-5;
      ++compared;
    }
  }
  std::printf("%d bounds, %d of them the truth itself\n", compared, tight);
  EXPECT_GT(compared, numCases() / 3);
  EXPECT_GT(tight, compared / 3);
}

}  // namespace
}  // namespace poet::planner
