// What every method promises: its own plan, within the budgets, by the simulator; or its least
// budget.
#include "methods/method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "methods/step_that_tells_scores_apart.h"
#include "methods/training_chain.h"
#include "planner/exhaustive.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Those that hand a program to a solver have tests of their own, and would be slow here.
bool isQuick(const Method& method) {
  static const std::set<std::string_view> slow = {
      "poet", "checkmate", "poet_paper", "poet_remat_only", "poet_page_only", "moccasin"};
  return !slow.contains(method.name);
}

Schedule planAs(std::string_view method, const Graph& graph, const DeviceProfile& profile,
                int64_t budget) {
  SolveOptions options;
  options.ram_budget_bytes = budget;
  options.method = method;
  options.time_limit_seconds = 20;
  return planWith(graph, profile, options);
}

void checkPromises(const Method& method, const Graph& graph, const DeviceProfile& profile,
                   int64_t budget) {
  const Schedule schedule = planAs(method.name, graph, profile, budget);
  EXPECT_EQ(schedule.method, method.name);
  if (schedule.hasPlan()) {
    const SimulationResult simulated = simulate(graph, schedule, profile);
    EXPECT_EQ(schedule.peak_bytes, simulated.peak_bytes);
    EXPECT_LE(simulated.peak_bytes, budget);
    EXPECT_TRUE(method.traits.recomputes || simulated.recomputed_ops == 0);
    EXPECT_TRUE(method.traits.pages || simulated.page_ins == 0);
    return;
  }
  ASSERT_EQ(schedule.status, Status::kInfeasible) << schedule.message;
  EXPECT_EQ(schedule.bound_scope, "candidates");
  EXPECT_FALSE(schedule.message.empty());
  ASSERT_TRUE(schedule.least_ram_budget.has_value()) << schedule.message;
  EXPECT_GT(*schedule.least_ram_budget, budget);
  const Schedule again = planAs(method.name, graph, profile, *schedule.least_ram_budget);
  EXPECT_TRUE(again.hasPlan()) << again.message;
}

template <class MakeGraph>
void checkAll(int cases, const MakeGraph& make) {
  for (int seed = 0; seed < propertyCases(cases); ++seed) {
    const auto number = static_cast<uint64_t>(seed);
    const Graph graph = make(number);
    const DeviceProfile profile = smallProfileWithStore(number);
    const int64_t plain = simulatePlain(graph, profile).peak_bytes;
    std::mt19937_64 random(number);
    const int64_t budget = std::uniform_int_distribution<int64_t>(plain / 3, plain)(random);
    for (const Method& method : allMethods()) {
      SCOPED_TRACE(detail::message(method.name, ", seed ", seed, ", budget ", budget));
      if (!isQuick(method)) continue;
      EXPECT_NO_THROW(checkPromises(method, graph, profile, budget));
    }
  }
}

TEST(Methods, KeepTheirPromisesOnChains) {
  checkAll(40, [](uint64_t seed) { return trainingChain(seed, 3 + static_cast<int>(seed % 9)); });
}

TEST(Methods, KeepTheirPromisesOnRandomGraphs) {
  checkAll(300, [](uint64_t seed) { return smallRandomGraph(seed); });
}

// What a plan costs beyond plain training, against the least of any schedule: a method may miss it,
// and none may say less.
TEST(Methods, AreNeverBetterThanAnExhaustiveSearch) {
  int planned = 0, optimal = 0, paged = 0;
  for (int seed = 0; seed < propertyCases(200); ++seed) {
    const auto number = static_cast<uint64_t>(seed);
    const Graph graph = smallRandomGraph(number);
    DeviceProfile profile = smallProfileWithStore(number);
    profile.dma_channels = 0;
    profile.wake_joules = 0;
    const SimulationResult plain = simulatePlain(graph, profile);
    std::mt19937_64 random(number);
    const int64_t budget =
        std::uniform_int_distribution<int64_t>(plain.peak_bytes * 3 / 4, plain.peak_bytes)(random);
    for (const bool recomputes : {false, true}) {
      for (const bool pages : {false, true}) {
        if (graph.numValues() > (pages ? 9 : 14)) continue;  // the truth would take minutes
        const auto truth =
            exhaustiveExtra(graph, profile, budget, {.recompute = recomputes, .paging = pages});
        for (const Method& method : allMethods()) {
          if (!isQuick(method) || method.traits.recomputes != recomputes ||
              method.traits.pages != pages)
            continue;
          SCOPED_TRACE(detail::message(method.name, ", seed ", seed, ", budget ", budget));
          const Schedule schedule = planAs(method.name, graph, profile, budget);
          if (!schedule.hasPlan()) continue;
          ++planned;
          paged += pages;
          ASSERT_TRUE(truth.has_value());
          const double extra = schedule.makespan_seconds - plain.makespan_seconds;
          EXPECT_GE(extra, *truth - 1e-9 * plain.makespan_seconds);
          optimal += extra <= *truth + 1e-9 * plain.makespan_seconds;
        }
      }
    }
  }
  EXPECT_GT(planned, 2 * propertyCases(200));
  EXPECT_GT(paged, propertyCases(200) / 20);
  EXPECT_GT(optimal, planned / 4);
}

// What it does, and nothing that is said of it.
std::string actionsOf(const Schedule& schedule) {
  std::ostringstream text;
  for (const auto* side : {&schedule.before, &schedule.after}) {
    for (size_t k = 0; k < side->size(); ++k) {
      for (const Action& action : (*side)[k]) {
        text << k << ' ' << toString(action.kind);
        if (action.kind != ActionKind::kRecompute) {
          text << ' ' << action.arg;
        } else {
          for (const OpId op : schedule.recipes[static_cast<size_t>(action.arg)])
            text << ' ' << op.index;
        }
        text << '\n';
      }
    }
    text << "--\n";
  }
  return text.str();
}

void expectDifferentPlans(const std::vector<std::string_view>& methods, const Graph& graph,
                          const DeviceProfile& profile, int64_t budget) {
  std::map<std::string, std::set<std::string_view>> by_plan;
  for (const std::string_view name : methods) {
    const Schedule schedule = planAs(name, graph, profile, budget);
    ASSERT_TRUE(schedule.hasPlan()) << name << ": " << schedule.message;
    EXPECT_EQ(schedule.method, name);
    by_plan[actionsOf(schedule)].insert(name);
  }
  for (const auto& [plan, names] : by_plan)
    EXPECT_EQ(names.size(), 1u) << *names.begin() << " and " << *names.rbegin();
}

TEST(Methods, AreTheirOwn) {
  const Graph graph = uniformChain(24, 100, 40);
  DeviceProfile profile = smallProfileWithStore(1);
  profile.store_read_rate = profile.store_write_rate = 1e3;
  profile.store_read_latency_seconds = profile.store_write_latency_seconds = 0;
  // With much more chen_greedy and twremat drop the same few values.
  const int64_t budget = simulatePlain(graph, profile).peak_bytes / 2;
  expectDifferentPlans({"poet", "revolve", "chen_sqrt", "chen_greedy", "rotor", "pofo", "twremat",
                        "dtr", "dtr_placed", "coop", "capuchin", "page_all"},
                       graph, profile, budget);
}

// Chains have no branches to count: there DTR's scores agree.
TEST(Methods, AreTheirOwnWhereTheStepBranches) {
  expectDifferentPlans({"dtr", "dtr_eq", "dtr_local", "dtr_placed"}, stepThatTellsScoresApart(),
                       smallProfile(), kBudgetThatTellsScoresApart);
}

// A step with several ways to the same bytes. Where energy goes with time, checkmate and
// poet_remat_only ask for the same optimum.
TEST(Methods, AreTheirOwnWhereSolversDecide) {
  const Graph graph = SmallRandomGraph(8, 7).make();
  const DeviceProfile profile = smallProfileWithStore(8);
  const int64_t budget = simulatePlain(graph, profile).peak_bytes * 8 / 10;
  expectDifferentPlans(
      {"poet", "checkmate", "poet_paper", "poet_page_only", "dtr", "dtr_banish", "twremat"}, graph,
      profile, budget);
  expectDifferentPlans({"poet_remat_only", "dtr", "dtr_banish", "twremat"}, graph, profile, budget);
}

TEST(Methods, HaveNamesAndSources) {
  std::set<std::string_view> names;
  for (const Method& method : allMethods()) {
    EXPECT_TRUE(names.insert(method.name).second) << method.name;
    EXPECT_FALSE(method.source.empty());
    EXPECT_FALSE(method.summary.empty());
    EXPECT_EQ(&methodByName(method.name), &method);
  }
  EXPECT_EQ(allMethods().front().name, "poet");
}

TEST(Methods, RefuseWhatTheyCannotHonour) {
  const Graph graph = uniformChain(4, 10, 1);
  EXPECT_THAT([&] { planAs("rotar", graph, smallProfile(), 100); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("rotar"), HasSubstr("\"rotor\""))));
  EXPECT_THAT([&] { planAs("page_all", graph, smallProfile(), 100); },
              ThrowsMessage<ArgumentError>(HasSubstr("has no store")));
  SolveOptions options;
  options.ram_budget_bytes = 100;
  options.method = "rotor";
  options.recompute = false;
  EXPECT_THAT([&] { planWith(graph, smallProfile(), options); },
              ThrowsMessage<ArgumentError>(HasSubstr("recompute is off")));
  options.recompute = true;
  options.starts.push_back(planAs("chen_sqrt", graph, smallProfile(), 1000));
  EXPECT_THAT([&] { planWith(graph, smallProfile(), options); },
              ThrowsMessage<ArgumentError>(HasSubstr("starts")));
}

// Note [Foreign starts] (planner/planner.h).
TEST(Methods, PoetSaysWhatItsPlanCameFrom) {
  const Graph graph = uniformChain(12, 100, 40);
  const DeviceProfile profile = smallProfile();
  SolveOptions options;
  options.ram_budget_bytes = simulatePlain(graph, profile).peak_bytes * 6 / 10;
  options.time_limit_seconds = 2;
  options.deterministic = true;
  const Schedule own = planWith(graph, profile, options);
  ASSERT_TRUE(own.hasPlan());
  EXPECT_NE(own.start, "");
  EXPECT_EQ(own.start.find("starts"), std::string::npos) << own.start;
  EXPECT_EQ(own.toJson(), planWith(graph, profile, options).toJson());
  options.starts.push_back(planAs("revolve", graph, profile, options.ram_budget_bytes));
  options.starts.push_back(own);
  const Schedule helped = planWith(graph, profile, options);
  EXPECT_THAT(helped.start, ::testing::EndsWith("; starts: revolve, poet"));
  options.ram_budget_bytes = 1;
  EXPECT_EQ(planWith(graph, profile, options).start, "");
}

TEST(Methods, WithPhasesSayWhichOneFoundThePlan) {
  const Graph graph = uniformChain(6, 100, 0);
  const DeviceProfile profile = smallProfile();
  const int64_t budget = simulatePlain(graph, profile).peak_bytes;
  for (const char* name : {"checkmate", "poet_paper", "poet_remat_only"})
    EXPECT_EQ(planAs(name, graph, profile, budget).start, "branch and cut") << name;
  EXPECT_EQ(planAs("chen_sqrt", graph, profile, budget).start, "");
}

// With a store that costs next to nothing, and with one that costs far more than any recompute.
TEST(Methods, WithOneMeansUseItWhereTheOtherIsCheaper) {
  const Graph graph = uniformChain(6, 100, 0);
  const int64_t budget = simulatePlain(graph, smallProfile()).peak_bytes * 3 / 4;
  const auto planned = [&](const char* method, double rate) {
    DeviceProfile profile = smallProfileWithStore(1);
    profile.store_read_rate = profile.store_write_rate = rate;
    profile.store_read_latency_seconds = profile.store_write_latency_seconds = 0;
    const Schedule schedule = planAs(method, graph, profile, budget);
    EXPECT_TRUE(schedule.hasPlan()) << method << ": " << schedule.message;
    EXPECT_EQ(schedule.method, method);
    EXPECT_EQ(schedule.start, "branch and cut");
    const SimulationResult simulated = simulate(graph, schedule, profile);
    EXPECT_LE(simulated.peak_bytes, budget);
    return std::pair{simulated.recomputed_ops > 0, simulated.page_ins > 0};
  };
  const std::pair recomputes{true, false}, pages{false, true};
  for (const double rate : {1e6, 1.0}) {
    SCOPED_TRACE(rate);
    EXPECT_EQ(planned("checkmate", rate), recomputes);
    EXPECT_EQ(planned("poet_remat_only", rate), recomputes);
    EXPECT_EQ(planned("poet_page_only", rate), pages);
  }
  EXPECT_EQ(planned("poet_paper", 1e6), pages);
  EXPECT_EQ(planned("poet_paper", 1), recomputes);
}

TEST(Methods, SayWhenOnlyTheRuntimeBudgetIsMissed) {
  const Graph graph = uniformChain(9, 10, 1);
  SolveOptions options;
  options.ram_budget_bytes = 70;
  options.runtime_budget_seconds = graph.plainSeconds();
  options.method = "chen_greedy";
  const Schedule schedule = planWith(graph, smallProfile(), options);
  EXPECT_EQ(schedule.status, Status::kInfeasible);
  EXPECT_FALSE(schedule.least_ram_budget.has_value());
  EXPECT_THAT(schedule.message, HasSubstr("runtime_budget"));
}

TEST(CheckpointAll, IsPlainTraining) {
  const Graph graph = uniformChain(4, 10, 1);
  const SimulationResult plain = simulatePlain(graph, smallProfile());
  const Schedule schedule = planAs("checkpoint_all", graph, smallProfile(), plain.peak_bytes);
  EXPECT_EQ(schedule.status, Status::kOptimal);
  EXPECT_EQ(schedule.peak_bytes, plain.peak_bytes);
  for (const auto& actions : schedule.before) EXPECT_TRUE(actions.empty());
  EXPECT_EQ(*planAs("checkpoint_all", graph, smallProfile(), 1).least_ram_budget, plain.peak_bytes);
}

TEST(PageAll, MovesWhatBackwardReadsOnce) {
  const int length = 6;
  const Graph graph = uniformChain(length, 10, 1);
  const Schedule schedule = planAs("page_all", graph, smallProfileWithStore(1), 1000);
  const int activations = 2 * length;  // insides and boundaries
  EXPECT_EQ(schedule.countActions(ActionKind::kPageOut), activations);
  EXPECT_EQ(schedule.countActions(ActionKind::kPageIn), activations);
  EXPECT_EQ(schedule.countActions(ActionKind::kRecompute), 0);
}

}  // namespace
}  // namespace poet::testing
