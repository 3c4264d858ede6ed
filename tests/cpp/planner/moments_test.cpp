// Bounds from a step seen at a few moments (planner/moments.h) against the exhaustive search.
#include "planner/moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "planner/exhaustive.h"
#include "planner/lp_loop.h"
#include "planner/program_search.h"
#include "planner/small_random_graph.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

using poet::testing::exhaustiveExtra;
using poet::testing::smallRandomGraph;

int numCases() { return poet::testing::propertyCases(150); }

DeviceProfile deviceFor(uint64_t seed, bool paging) {
  std::mt19937_64 random(seed * 31 + 7);
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  profile.generator_state_bytes = 3;
  if (!paging) return profile;
  profile.store_watts = static_cast<double>(seed % 3);
  profile.store_read_rate = std::uniform_real_distribution<double>(0.5, 8)(random);
  profile.store_write_rate = std::uniform_real_distribution<double>(0.5, 8)(random);
  profile.store_read_latency_seconds = 0.25;
  profile.store_write_latency_seconds = 0.5;
  return profile;
}

// Any moments, and all problems: those with writes far apart and holds at death too, which are no
// "exact" ones. Optima of the program in whole numbers, which is the most that it may claim.
TEST(Moments, BoundsAreNeverAboveTheTruth) {
  int compared = 0, above_zero = 0, tight = 0, inexact = 0, proven = 0;
  for (int seed = 0; seed < numCases(); ++seed) {
    SCOPED_TRACE(seed);
    const bool paging = seed % 2 == 1;
    const Graph graph = smallRandomGraph(static_cast<uint64_t>(seed) + 50000);
    if (graph.numValues() > 11) continue;
    const DeviceProfile profile = deviceFor(static_cast<uint64_t>(seed), paging);
    const RecipeTable table(graph);
    const Problem fine(graph, table, profile,
                       {.objective = Objective::kEnergy, .recompute = true, .paging = paging});
    std::mt19937_64 random(static_cast<uint64_t>(seed) * 97 + 3);
    const int64_t peak = simulatePlain(graph, profile).peak_bytes;
    const int64_t budget = std::max<int64_t>(
        1, std::uniform_int_distribution<int64_t>(std::min(fine.floor_bytes, peak), peak)(random));
    const auto truth = exhaustiveExtra(graph, profile, budget,
                                       {.recompute = true, .paging = paging, .joules = true});
    if (!truth) continue;
    const double cost = *truth / (profile.busyWatts() + profile.alwaysWatts());
    inexact += !fine.exact;
    const auto below = [&](int64_t n) {
      return std::uniform_int_distribution<int64_t>(-n, n - 1)(random);
    };
    for (const double density : {0.15, 0.4, 1.0}) {
      std::vector<int> moments;
      for (int t = 0; t < fine.numStages(); ++t) {
        if (std::uniform_real_distribution<double>(0, 1)(random) < density) moments.push_back(t);
      }
      const Problem coarse = atMoments(fine, moments, below(8));
      const Program program(coarse, momentCandidates(coarse),
                            {.budget_bytes = budget,
                             .replay_seconds_limit = std::nullopt,
                             .relaxed = true,
                             .rows_at_replays = false});
      Relaxation root = relax(program, {.time_limit_seconds = 10});
      ASSERT_NE(root.status, SolverStatus::kInfeasible);
      EXPECT_LE(fine.constant_cost + root.bound / costPerSecond(fine), cost + 1e-6);
      const SearchResult whole = searchProgram(program, root, {.time_limit_seconds = 10});
      const double bound = fine.constant_cost + whole.bound / costPerSecond(fine);
      ASSERT_NE(whole.status, SolverStatus::kInfeasible);
      EXPECT_LE(bound, cost + 1e-5);
      above_zero += bound > 1e-9;
      tight += cost > 1e-9 && bound >= cost - 1e-5;
      ++compared;
    }
    for (const double best : {std::numeric_limits<double>::infinity(), cost, 2 * cost + 1}) {
      const BoundOverAll found =
          boundAtMoments(fine, seed % 4, budget, best,
                         {.time_limit_seconds = 10, .replay_seconds_limit = std::nullopt});
      ASSERT_TRUE(found.any);
      EXPECT_LE(found.bound_cost, cost + 1e-5);
      if (seed % 4 == 0 && best < 1e300) proven += cost > 1e-9 && found.bound_cost >= cost - 1e-4;
    }
  }
  std::printf("%d bounds, %d above zero, %d the truth itself; %d graphs are not exact; %d proofs\n",
              compared, above_zero, tight, inexact, proven);
  EXPECT_GT(compared, numCases() / 2);
  EXPECT_GT(above_zero, compared / 10);
  EXPECT_GT(tight, compared / 20);
  EXPECT_GT(inexact, numCases() / 30);
  EXPECT_GT(proven, numCases() / 30);
}

// Six values, each 3 s to make again, and `excess` bytes too much at the one moment that counts.
class SixValues {
 public:
  SixValues(const std::vector<int64_t>& sizes, int64_t excess) : profile_(deviceFor(0, false)) {
    testing::GraphBuilder g;
    const ValueId x = g.input(1);
    std::vector<ValueId> made;
    for (const int64_t bytes : sizes)
      made.push_back(g.op("make").reads({x}).seconds(3).makes(bytes));
    const ValueId m = g.op("wide").reads({x}).workspace(90).seconds(1).makes(1);
    for (const ValueId v : made) g.outlives(g.op("use").reads({v, m}).seconds(1).makes(1));
    graph_.emplace(g.build());
    budget_ = simulatePlain(*graph_, profile_).peak_bytes - excess;
  }

  double bound(double best, SolverKind kind) const {
    const RecipeTable table(*graph_);
    const Problem fine(*graph_, table, profile_,
                       {.objective = Objective::kEnergy, .recompute = true, .paging = false});
    return boundAtMoments(fine, 0, budget_, best,
                          {.time_limit_seconds = 10,
                           .replay_seconds_limit = std::nullopt,
                           .solver = {.kind = kind}})
        .bound_cost;
  }

 private:
  std::optional<Graph> graph_;
  DeviceProfile profile_;
  int64_t budget_ = 0;
};

constexpr double kNone = std::numeric_limits<double>::infinity();

// 26 bytes too much: relaxations make one of 23 bytes and a part of one of 19 again (rows allow
// half a byte more), schedules two. 5 s are more than one costs.
TEST(Moments, BranchAndCutMakesFractionsWhole) {
  const SixValues six({7, 11, 13, 17, 19, 23}, 26);
  for (const SolverKind kind : {SolverKind::kCbc, SolverKind::kHighs}) {  // CBC if there is none
    EXPECT_NEAR(six.bound(kNone, kind), 3 + 3 * 2.5 / 19, 1e-4);
    EXPECT_NEAR(six.bound(5, kind), 5, 1e-3);
    EXPECT_NEAR(six.bound(6, kind), 6, 1e-3);
    EXPECT_NEAR(six.bound(60, kind), 6, 1e-3);
  }
}

// 12 bytes too much where all are of ten: two of them, but for the half byte, and no 1.15.
TEST(Moments, WholeSizesLeaveNoFractions) {
  const SixValues six({10, 10, 10, 10, 10, 10}, 12);
  EXPECT_NEAR(six.bound(kNone, SolverKind::kCbc), 3 * 1.95, 1e-4);
}

}  // namespace
}  // namespace poet::planner
