// Methods for chains: closed formulas, the exhaustive search, and where the cut vertices are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "methods/chain_schedule.h"
#include "methods/forward_chain.h"
#include "methods/method.h"
#include "methods/plan_walk.h"
#include "methods/revolve.h"
#include "methods/training_chain.h"
#include "planner/exhaustive.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"

namespace poet::testing {
namespace {

using methods::Chain;
using methods::findChains;
using methods::findMayLeave;
using methods::Step;
using methods::Word;

planner::ReplayPlan usefulPlan(const planner::Problem& problem, const std::vector<Chain>& chains,
                               const std::vector<Step>& steps) {
  planner::ReplayPlan plan = methods::planOfChains(problem, chains, {steps});
  planner::dropUselessReplays(problem, plan);
  return plan;
}

Schedule planAs(const char* method, const Graph& graph, const DeviceProfile& profile,
                int64_t budget) {
  SolveOptions options;
  options.ram_budget_bytes = budget;
  options.method = method;
  return planWith(graph, profile, options);
}

std::vector<Chain> chainsOf(const Graph& graph) {
  const RecipeTable table(graph);
  const DeviceProfile profile = smallProfile();
  const planner::Problem problem(graph, table, profile, {});
  return findChains(problem, findMayLeave(problem));
}

// ---- revolve ------------------------------------------------------------------------------------

double binomial(int64_t n, int64_t k) {
  double product = 1;
  for (int64_t i = 1; i <= k; ++i)
    product = product * static_cast<double>(n - k + i) / static_cast<double>(i);
  return std::round(product);
}

// Griewank & Walther 2000, theorem 1: t(l, s) = r l - beta(s + 1, r - 1), beta(s, r) = C(s + r, s).
double closedFormula(int64_t l, int64_t s) {
  int64_t r = 0;
  while (binomial(s + r, s) < static_cast<double>(l)) ++r;
  const double correction = r == 0 ? 0 : binomial(s + r, s + 1);
  return static_cast<double>(r * l) - correction;
}

// The recurrence that the formula solves.
int64_t fewestForwards(int l, int s, std::map<std::pair<int, int>, int64_t>& known) {
  if (l == 1) return 0;
  if (s == 1) return int64_t{l} * (l - 1) / 2;
  const auto [entry, is_new] = known.try_emplace({l, s}, 0);
  if (!is_new) return entry->second;
  int64_t least = -1;
  for (int k = 1; k < l; ++k) {
    const int64_t forwards = k + fewestForwards(l - k, s - 1, known) + fewestForwards(k, s, known);
    if (least < 0 || forwards < least) least = forwards;
  }
  return known[{l, s}] = least;
}

TEST(Revolve, CountsForwardsAsTheClosedFormula) {
  std::map<std::pair<int, int>, int64_t> known;
  for (int l = 1; l <= 60; ++l) {
    for (int s = 1; s <= l; ++s) {
      EXPECT_EQ(methods::revolveForwards(l, s), fewestForwards(l, s, known)) << l << ", " << s;
      EXPECT_EQ(static_cast<double>(methods::revolveForwards(l, s)), closedFormula(l, s))
          << l << ", " << s;
    }
  }
}

TEST(Revolve, HoldsNoMoreStatesThanItMay) {
  for (int l = 1; l <= 40; ++l) {
    for (int s = 1; s <= l; ++s) {
      int64_t forwards = 0, states = 1, most = 1;
      std::vector<char> is_state(static_cast<size_t>(l) + 1, 0);
      is_state[0] = 1;
      for (const Step& step : methods::stepsOfRevolve(l, s)) {
        const auto i = static_cast<size_t>(step.link);
        forwards += step.word == Word::kForward || step.word == Word::kForwardKeep;
        if (step.word == Word::kForwardKeep && !is_state[i]) {
          is_state[i] = 1;
          ++states;
        } else if (step.word == Word::kBackward && is_state[i]) {
          is_state[i] = 0;
          --states;
        }
        most = std::max(most, states);
      }
      EXPECT_EQ(forwards, methods::revolveForwards(l, s)) << l << ", " << s;
      EXPECT_LE(most, s) << l << ", " << s;
    }
  }
}

// Every backward but the last link's runs behind a forward of its own, and the first sweep is the
// step's own.
TEST(Revolve, ReplaysAsManyLinksAsTheFormulaSays) {
  for (const int l : {2, 5, 12, 23}) {
    const Graph graph = uniformChain(l, 1000, 1);
    const DeviceProfile profile = smallProfile();
    for (int64_t budget = 1000; budget < 1000 * (l + 2); budget += 1000) {
      const Schedule schedule = planAs("revolve", graph, profile, budget + 500);
      if (!schedule.hasPlan()) continue;
      const auto replays = simulate(graph, schedule, profile).recomputed_ops;
      bool known = false;
      for (int s = 1; s <= l; ++s) known = known || replays == methods::revolveForwards(l, s);
      EXPECT_TRUE(known) << l << ", " << budget << ": " << replays;
    }
    EXPECT_TRUE(planAs("revolve", graph, profile, 4500).hasPlan());
  }
}

// ---- rotor and pofo -----------------------------------------------------------------------------

// Every schedule in the words of Note [Words of a chain's schedule] without a store: links s ... t
// backward. Enumerated, not planned.
std::vector<std::vector<Step>> everySchedule(int s, int t) {
  std::vector<std::vector<Step>> all;
  if (s == t) return {{{Word::kForwardAll, s}, {Word::kBackward, s}}};
  for (int k = s + 1; k <= t; ++k) {
    std::vector<Step> forward = {{Word::kForwardKeep, s}};
    for (int i = s + 1; i < k; ++i) forward.push_back({Word::kForward, i});
    for (const auto& behind : everySchedule(k, t)) {
      for (const auto& before : everySchedule(s, k - 1)) {
        all.push_back(forward);
        all.back().insert(all.back().end(), behind.begin(), behind.end());
        all.back().insert(all.back().end(), before.begin(), before.end());
      }
    }
  }
  for (const auto& behind : everySchedule(s + 1, t)) {
    all.push_back({{Word::kForwardAll, s}});
    all.back().insert(all.back().end(), behind.begin(), behind.end());
    all.back().push_back({Word::kBackward, s});
  }
  return all;
}

TEST(Rotor, IsOptimalAmongAllPersistentSchedules) {
  int found = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = seed % 4 == 3 ? uniformChain(6, 10, 3) : trainingChain(seed, 6);
    const DeviceProfile profile = smallProfile();
    const RecipeTable table(graph);
    const planner::Problem problem(graph, table, profile, {});
    const std::vector<Chain> chains = findChains(problem, findMayLeave(problem));
    const int64_t plain = simulatePlain(graph, profile).peak_bytes;
    const int64_t budget = plain * static_cast<int64_t>(5 + seed % 5) / 10;
    std::optional<double> best;
    for (const auto& steps : everySchedule(0, static_cast<int>(chains.front().size()) - 1)) {
      const planner::Timeline plan =
          planner::makeTimeline(problem, usefulPlan(problem, chains, steps));
      if (plan.peak_bytes > budget) continue;
      best = std::min(best.value_or(plan.replay_seconds), plan.replay_seconds);
    }
    const Schedule schedule = planAs("rotor", graph, profile, budget);
    EXPECT_EQ(schedule.hasPlan(), best.has_value());
    if (!schedule.hasPlan() || !best) continue;
    ++found;
    EXPECT_NEAR(schedule.makespan_seconds - graph.plainSeconds(), *best, 1e-9);
  }
  EXPECT_GE(found, 30);
}

TEST(Rotor, IsNeverBetterThanTheTruthAndMostlyAsGood) {
  int found = 0, equal = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = trainingChain(seed, 5);
    const DeviceProfile profile = smallProfile();
    const int64_t least = exhaustivePeak(graph, profile, std::nullopt).value();
    const int64_t plain = simulatePlain(graph, profile).peak_bytes;
    const int64_t budget = least + static_cast<int64_t>(seed % 4) * (plain - least) / 4;
    const double truth = exhaustiveReplaySeconds(graph, profile, budget).value();
    const Schedule schedule = planAs("rotor", graph, profile, budget);
    if (!schedule.hasPlan()) continue;
    ++found;
    const double extra = schedule.makespan_seconds - graph.plainSeconds();
    EXPECT_GE(extra, truth - 1e-9);
    equal += extra <= truth + 1e-9;
  }
  EXPECT_GE(found, 100);
  EXPECT_GE(equal, found * 3 / 4);
}

TEST(Pofo, IsOptimalOnMostChainsAndNeverBetterThanTheTruth) {
  int found = 0, equal = 0;
  for (uint64_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = trainingChain(seed + 500, 4);
    const DeviceProfile profile = smallProfileWithStore(seed);
    const SimulationResult plain = simulatePlain(graph, profile);
    const int64_t least = exhaustivePeak(graph, profile, std::nullopt).value();
    const int64_t budget = least + static_cast<int64_t>(seed % 4) * (plain.peak_bytes - least) / 4;
    const Allowed both{.recompute = true, .paging = true, .joules = true};
    const double truth = exhaustiveExtra(graph, profile, budget, both).value();
    const Schedule schedule = planAs("pofo", graph, profile, budget);
    if (!schedule.hasPlan()) continue;
    ++found;
    const double extra = schedule.energy_joules - plain.energy_joules;
    EXPECT_GE(extra, truth - 1e-9);
    equal += extra <= truth + 1e-6;
    const Schedule without = planAs("rotor", graph, profile, budget);
    if (!without.hasPlan()) continue;
    EXPECT_LE(schedule.energy_joules, without.energy_joules + 1e-9);
  }
  RecordProperty("found", found);
  RecordProperty("equal", equal);
  EXPECT_GE(found, 70);
  EXPECT_GE(equal, found * 8 / 10);
}

TEST(Rotor, CostsNoMoreThanEveryOtherMethodForChains) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Graph graph = trainingChain(seed, 14);
    const DeviceProfile profile = smallProfile();
    const int64_t plain = simulatePlain(graph, profile).peak_bytes;
    for (const int percent : {55, 70, 85}) {
      const int64_t budget = plain * percent / 100;
      const Schedule rotor = planAs("rotor", graph, profile, budget);
      for (const char* name : {"revolve", "chen_sqrt", "chen_greedy"}) {
        const Schedule other = planAs(name, graph, profile, budget);
        if (!other.hasPlan()) continue;
        ASSERT_TRUE(rotor.hasPlan()) << name << ", seed " << seed << ": " << rotor.message;
        EXPECT_LE(rotor.makespan_seconds, other.makespan_seconds + 1e-9)
            << name << ", seed " << seed << ", " << percent << " %";
      }
    }
  }
}

// ---- Chen et al. --------------------------------------------------------------------------------

TEST(ChenSqrt, HoldsAsManyBoundariesAsThePaperSaysForOneForward) {
  for (const int l : {4, 9, 25, 100}) {
    const int64_t root = std::llround(std::sqrt(l));
    const Graph graph = uniformChain(l, 1000, 1);
    const DeviceProfile profile = smallProfile();
    const Schedule schedule = planAs("chen_sqrt", graph, profile, int64_t{1} << 40);
    // root - 1 boundaries before segments, the links of one segment, two at work.
    EXPECT_LE(schedule.peak_bytes, (2 * root + 2) * 1000);
    EXPECT_GE(schedule.peak_bytes, (2 * root - 2) * 1000);
    const auto replays = simulate(graph, schedule, profile).recomputed_ops;
    EXPECT_LE(replays, l - root);
    EXPECT_GE(replays, l - 2 * root);
  }
}

TEST(ChenGreedy, NeedsNoMoreThanChenSqrt) {
  const DeviceProfile profile = smallProfile();
  for (const int l : {9, 25, 64}) {
    const Graph graph = uniformChain(l, 1000, 1);
    const int64_t sqrt = planAs("chen_sqrt", graph, profile, int64_t{1} << 40).peak_bytes;
    EXPECT_LE(*planAs("chen_greedy", graph, profile, 1).least_ram_budget, sqrt);
    EXPECT_TRUE(planAs("chen_greedy", graph, profile, sqrt).hasPlan());
  }
}

// ---- cut vertices -------------------------------------------------------------------------------

TEST(Chains, AreCutAtEveryBoundary) {
  const std::vector<Chain> chains = chainsOf(uniformChain(7, 10, 1));
  ASSERT_EQ(chains.size(), 1u);
  ASSERT_EQ(chains[0].size(), 7u);
  for (size_t i = 0; i + 1 < 7; ++i) {
    EXPECT_EQ(chains[0][i].first_stage, static_cast<int>(i));
    EXPECT_EQ(chains[0][i].last_stage, static_cast<int>(i));
    EXPECT_EQ(chains[0][i].inside.size(), 1u);
    EXPECT_GE(chains[0][i].backward_stage, chains[0][i + 1].backward_stage);
  }
  EXPECT_EQ(chains[0].back().boundary, -1);
}

// x -> a -> b -> c -> d: the skip from a to d leaves no cut between them.
Graph skipping(bool skips) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  std::vector<ValueId> made = {x};
  for (int i = 0; i < 4; ++i) {
    OpHandle op = g.op("aten::op").phase(Phase::kForward).reads({made.back()}).seconds(1);
    if (skips && i == 3) op.reads({made[1]});
    made.push_back(op.makes(10));
  }
  ValueId gradient = made.back();
  for (int i = 4; i-- > 0;) {
    OpHandle op = g.op("aten::backward").phase(Phase::kBackward).seconds(1);
    gradient = op.reads({gradient, made[static_cast<size_t>(i)]}).makes(1);
  }
  return g.build();
}

TEST(Chains, AreNotCutBetweenTheEndsOfASkip) {
  EXPECT_EQ(chainsOf(skipping(false))[0].size(), 4u);
  const std::vector<Chain> chains = chainsOf(skipping(true));
  ASSERT_EQ(chains[0].size(), 2u);
  EXPECT_EQ(chains[0][1].first_stage, 1);
  EXPECT_EQ(chains[0][1].last_stage, 3);
}

// A mask that depends on no parameter, read by every link.
TEST(Chains, CarryAlongWhatDependsOnNoParameter) {
  GraphBuilder g;
  const ValueId x = g.input(4), w = g.parameter(4);
  const ValueId mask = g.op("aten::mask").phase(Phase::kForward).reads({x}).seconds(1).makes(50);
  std::vector<ValueId> made = {x};
  for (int i = 0; i < 4; ++i) {
    OpHandle op = g.op("aten::op").phase(Phase::kForward).reads({made.back(), w, mask});
    made.push_back(op.seconds(1).makes(10));
  }
  ValueId gradient = made.back();
  for (int i = 4; i-- > 0;) {
    OpHandle op = g.op("aten::backward").phase(Phase::kBackward).seconds(1);
    gradient = op.reads({gradient, mask, made[static_cast<size_t>(i)]}).makes(1);
  }
  const Graph graph = g.build();
  EXPECT_EQ(chainsOf(graph)[0].size(), 4u);
  const Schedule schedule = planAs("chen_sqrt", graph, smallProfile(), 1000);
  for (const auto& recipe : schedule.recipes) EXPECT_NE(recipe.front(), OpId(0));
}

TEST(Chains, AreOneForEachForwardOfAStep) {
  GraphBuilder g;
  const ValueId x = g.input(4);
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<ValueId> made = {x};
    for (int i = 0; i < 3; ++i)
      made.push_back(g.op("aten::op").phase(Phase::kForward).reads({made.back()}).makes(10));
    ValueId gradient = made.back();
    for (int i = 3; i-- > 0;) {
      OpHandle op = g.op("aten::backward").phase(Phase::kBackward);
      gradient = op.reads({gradient, made[static_cast<size_t>(i)]}).makes(1);
    }
  }
  const std::vector<Chain> chains = chainsOf(g.build());
  ASSERT_EQ(chains.size(), 2u);
  EXPECT_EQ(chains[0].size(), 3u);
  EXPECT_EQ(chains[1].size(), 3u);
  EXPECT_LT(chains[0][0].backward_stage, chains[1][0].first_stage);
}

}  // namespace
}  // namespace poet::testing
