// Moccasin against the exhaustive search and the planner. Where the interpreter that the build
// found has no ortools, its plans are not tested; the error that says so always is.
#include "methods/moccasin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>

#include "graph/error.h"
#include "methods/child_process.h"
#include "methods/training_chain.h"
#include "planner/exhaustive.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/temporary_folder.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string interpreter() {
#ifdef POET_PYTHON
  return POET_PYTHON;
#else
  return "python3";
#endif
}

class Moccasin : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto found = methods::runChild({interpreter(), "-c", "import ortools"}, "", 60);
    if (found.exit_code != 0) GTEST_SKIP() << interpreter() << " has no ortools";
  }

  static Schedule plan(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options, int intervals) {
    return solveMoccasin(graph, profile, options,
                         {.retention_intervals = intervals, .python = interpreter()});
  }
};

SolveOptions between(int64_t least, int64_t most, uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 1);
  SolveOptions options;
  options.ram_budget_bytes = std::uniform_int_distribution<int64_t>(least, most)(random);
  options.time_limit_seconds = 30;
  return options;
}

TEST_F(Moccasin, FindsTheOptimumOfChains) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = trainingChain(seed, 4);
    const DeviceProfile profile = smallProfile();
    const SimulationResult plain = simulatePlain(graph, profile);
    const int64_t least = exhaustivePeak(graph, profile, std::nullopt).value();
    const SolveOptions options = between(least, plain.peak_bytes, seed);
    const Schedule schedule = plan(graph, profile, options, 4);
    ASSERT_TRUE(schedule.hasPlan()) << schedule.message;
    EXPECT_EQ(schedule.method, "moccasin");
    EXPECT_LE(simulate(graph, schedule, profile).peak_bytes, options.ram_budget_bytes);
    const double truth = exhaustiveReplaySeconds(graph, profile, options.ram_budget_bytes).value();
    EXPECT_NEAR(schedule.makespan_seconds - plain.makespan_seconds, truth, 1e-6);
    EXPECT_LT(*schedule.gap, 1e-6);
  }
}

TEST_F(Moccasin, NeverBeatsAProvenOptimum) {
  int equal = 0, optimal = 0;
  for (uint64_t seed = 0; seed < 9; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(seed);
    const DeviceProfile profile = smallProfile();
    const SimulationResult plain = simulatePlain(graph, profile);
    const int64_t least = exhaustivePeak(graph, profile, std::nullopt).value();
    SolveOptions options = between(least, plain.peak_bytes, seed);
    if (seed % 3 == 0) options.runtime_budget_seconds = 1.2 * plain.makespan_seconds;
    const Schedule ours = solve(graph, profile, options);
    const Schedule theirs = plan(graph, profile, options, 3);
    if (!theirs.hasPlan()) {
      EXPECT_EQ(theirs.status, Status::kInfeasible) << theirs.message;
      EXPECT_EQ(theirs.bound_scope, "candidates");
      continue;
    }
    const SimulationResult simulated = simulate(graph, theirs, profile);
    EXPECT_LE(simulated.peak_bytes, options.ram_budget_bytes);
    if (options.runtime_budget_seconds) {
      EXPECT_LE(simulated.makespan_seconds, *options.runtime_budget_seconds * (1 + 1e-9));
    }
    if (ours.status != Status::kOptimal) continue;
    ++optimal;
    EXPECT_GE(theirs.energy_joules, ours.energy_joules * (1 - 1e-9));
    equal += theirs.energy_joules <= ours.energy_joules * (1 + 1e-6);
  }
  EXPECT_GE(optimal, 4);
  EXPECT_GE(equal, optimal / 2);
}

TEST_F(Moccasin, MoreRetentionIntervalsNeverCostMore) {
  const Graph graph = trainingChain(3, 5);
  const DeviceProfile profile = smallProfile();
  SolveOptions options;
  options.ram_budget_bytes = exhaustivePeak(graph, profile, std::nullopt).value();
  options.time_limit_seconds = 30;
  double last = 1e9;
  for (const int intervals : {2, 3, 4}) {
    const Schedule schedule = plan(graph, profile, options, intervals);
    if (!schedule.hasPlan()) continue;
    EXPECT_LE(schedule.energy_joules, last * (1 + 1e-9));
    last = schedule.energy_joules;
  }
  EXPECT_LT(last, 1e9);
}

TEST_F(Moccasin, OneIntervalIsPlainTraining) {
  const Graph graph = trainingChain(2, 4);
  const DeviceProfile profile = smallProfile();
  SolveOptions options;
  options.ram_budget_bytes = simulatePlain(graph, profile).peak_bytes;
  options.time_limit_seconds = 30;
  EXPECT_EQ(plan(graph, profile, options, 1).status, Status::kOptimal);
  options.ram_budget_bytes -= 1;
  EXPECT_EQ(plan(graph, profile, options, 1).status, Status::kInfeasible);
}

// An interpreter in which CP-SAT finds nothing after its first program: phase one alone.
class PhaseOneAlone {
 public:
  PhaseOneAlone() {
    folder_.write("alone.py", R"(import sys
from ortools.sat.python import cp_model
solve, calls = cp_model.CpSolver.solve, []
def only_once(self, model, *rest):
    calls.append(model)
    return solve(self, model, *rest) if len(calls) == 1 else cp_model.UNKNOWN
cp_model.CpSolver.solve = only_once
exec(sys.argv[2])
)");
    folder_.write("python", "#!/bin/sh\nexec '" + interpreter() + "' '" + (folder_ / "alone.py") +
                                "' \"$@\"\n");
    EXPECT_EQ(chmod(path().c_str(), 0700), 0);
  }
  std::string path() const { return folder_ / "python"; }

 private:
  TemporaryFolder folder_;
};

// Phase one starts from plain training, above the budget, and ends with any plan within it; phase
// two makes that cheap.
TEST_F(Moccasin, FindsAnyPlanFirstAndThenTheCheapest) {
  const PhaseOneAlone alone;
  int cheaper = 0;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = trainingChain(seed, 4);
    const DeviceProfile profile = smallProfile();
    const SimulationResult plain = simulatePlain(graph, profile);
    const int64_t least = exhaustivePeak(graph, profile, std::nullopt).value();
    const SolveOptions options = between(least, plain.peak_bytes - 1, seed);
    const Schedule first =
        solveMoccasin(graph, profile, options, {.retention_intervals = 4, .python = alone.path()});
    ASSERT_TRUE(first.hasPlan()) << first.message;
    EXPECT_EQ(first.start, "phase one");
    EXPECT_LE(simulate(graph, first, profile).peak_bytes, options.ram_budget_bytes);
    EXPECT_GT(simulate(graph, first, profile).recomputed_ops, 0);
    EXPECT_DOUBLE_EQ(*first.bound, plain.energy_joules);
    const Schedule both = plan(graph, profile, options, 4);
    ASSERT_TRUE(both.hasPlan()) << both.message;
    EXPECT_EQ(both.start, "phase two");
    EXPECT_LE(both.energy_joules, first.energy_joules * (1 + 1e-9));
    cheaper += both.energy_joules < first.energy_joules * (1 - 1e-9);
  }
  EXPECT_GT(cheaper, 0);
}

TEST(MoccasinErrors, SaysThatOrtoolsIsMissing) {
  // An interpreter that finds no installed package.
  const std::string path = ::testing::TempDir() + "python_without_packages";
  std::ofstream(path) << "#!/bin/sh\nexec '" << interpreter() << "' -S -E \"$@\"\n";
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  SolveOptions options;
  options.ram_budget_bytes = 10;
  EXPECT_THAT(
      [&] { solveMoccasin(trainingChain(1, 4), smallProfile(), options, {.python = path}); },
      ThrowsMessage<Error>(AllOf(HasSubstr("ortools"), HasSubstr("pip install"), HasSubstr(path))));
  std::remove(path.c_str());
}

TEST(MoccasinErrors, SaysThatThereIsNoInterpreter) {
  SolveOptions options;
  options.ram_budget_bytes = 10;
  EXPECT_THAT(
      [&] {
        solveMoccasin(trainingChain(1, 4), smallProfile(), options, {.python = "/no/such/python"});
      },
      ThrowsMessage<Error>(HasSubstr("/no/such/python")));
}

TEST(MoccasinErrors, RefusesWhatThePaperDoesNotHave) {
  SolveOptions options;
  options.ram_budget_bytes = 10;
  const Graph graph = trainingChain(1, 4);
  EXPECT_THROW(solveMoccasin(graph, smallProfile(), options, {.retention_intervals = 0}),
               ArgumentError);
  options.minimize = Objective::kMemory;
  EXPECT_THROW(solveMoccasin(graph, smallProfile(), options), ArgumentError);
}

}  // namespace
}  // namespace poet::testing
