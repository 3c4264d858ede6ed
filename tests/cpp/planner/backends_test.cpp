// The same programs for every back end: hand-made ones with known optima, and whole solves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph/error.h"
#include "planner/backends/isolated.h"
#include "planner/backends/solver.h"
#include "planner/clock.h"
#include "planner/exhaustive.h"
#include "planner/planner.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/solver_choices.h"

namespace poet::planner {
namespace {

using poet::testing::choiceOf;
using poet::testing::whyNot;

constexpr double kTolerance = 1e-6;
constexpr double kSeconds = 20;

class Program {
 public:
  int column(double cost, double lower, double upper) {
    return model_.addColumn(cost, lower, upper, false);
  }
  int integer(double cost, double lower = 0, double upper = 1) {
    return model_.addColumn(cost, lower, upper, true);
  }
  void row(const std::vector<Term>& terms, double lower, double upper) {
    model_.addRow(terms, lower, upper);
  }
  const SparseModel& model() const { return model_; }

 private:
  SparseModel model_;
};

class Backend : public ::testing::TestWithParam<SolverKind> {
 protected:
  void SetUp() override {
    const std::string why_not = whyNot(GetParam());
    if (!why_not.empty()) GTEST_SKIP() << toString(GetParam()) << ": " << why_not;
    choice_ = choiceOf(GetParam());
  }
  void TearDown() override {
    EXPECT_THAT(choice_.trouble->texts(), ::testing::IsEmpty());  // it was this one that solved
  }

  std::unique_ptr<LpSolver> lp(const Program& program) const {
    return makeLpSolver(program.model(), choice_);
  }
  MipResult mip(const Program& program, MipOptions options = {}) const {
    options.solver = choice_;
    if (options.time_limit_seconds == MipOptions{}.time_limit_seconds)
      options.time_limit_seconds = kSeconds;
    return solveMip(program.model(), options);
  }

  SolverChoice choice_;
};

void expectOptimum(const MipResult& result, double objective) {
  ASSERT_EQ(result.status, SolverStatus::kOptimal);
  EXPECT_NEAR(result.objective, objective, kTolerance);
  EXPECT_LE(result.bound, objective + kTolerance);
  EXPECT_NEAR(result.bound, objective, 1e-4 * std::abs(objective) + kTolerance);
}

void expectFeasible(const SparseModel& model, const std::vector<double>& x) {
  ASSERT_EQ(x.size(), model.cost.size());
  for (size_t c = 0; c < x.size(); ++c) {
    EXPECT_GE(x[c], model.lower[c] - kTolerance);
    EXPECT_LE(x[c], model.upper[c] + kTolerance);
    if (model.integer[c]) {
      EXPECT_NEAR(x[c], std::round(x[c]), 1e-5);
    }
  }
  for (size_t r = 0; r < model.row_lower.size(); ++r) {
    double sum = 0;
    for (int e = model.row_start[r]; e < model.row_start[r + 1]; ++e)
      sum += model.value[static_cast<size_t>(e)] *
             x[static_cast<size_t>(model.index[static_cast<size_t>(e)])];
    EXPECT_GE(sum, model.row_lower[r] - 1e-5);
    EXPECT_LE(sum, model.row_upper[r] + 1e-5);
  }
}

// ---- continuous programs ----

// max 3x + 5y with x <= 4, 2y <= 12, 3x + 2y <= 18: 36 at (2, 6) (Hillier, Lieberman).
Program wyndor() {
  Program program;
  const int x = program.column(-3, 0, kInfinity), y = program.column(-5, 0, kInfinity);
  program.row({{x, 1}}, -kInfinity, 4);
  program.row({{y, 2}}, -kInfinity, 12);
  program.row({{x, 3}, {y, 2}}, -kInfinity, 18);
  return program;
}

TEST_P(Backend, SolvesALinearProgram) {
  const LpResult result = lp(wyndor())->solve(kSeconds);
  ASSERT_EQ(result.status, SolverStatus::kOptimal);
  EXPECT_NEAR(result.objective, -36, kTolerance);
  EXPECT_NEAR(result.x.at(0), 2, kTolerance);
  EXPECT_NEAR(result.x.at(1), 6, kTolerance);
  EXPECT_NEAR(result.reduced.at(0), 0, kTolerance);
}

TEST_P(Backend, ReducedCostsAreThoseOfAMinimum) {
  Program program;  // y is not worth its cost: raising it costs 1 more than what x saves
  const int x = program.column(1, 0, kInfinity), y = program.column(3, 0, kInfinity);
  program.row({{x, 1}, {y, 2}}, 4, kInfinity);
  const LpResult result = lp(program)->solve(kSeconds);
  ASSERT_EQ(result.status, SolverStatus::kOptimal);
  EXPECT_NEAR(result.objective, 4, kTolerance);
  EXPECT_NEAR(result.reduced.at(1), 1, kTolerance);
}

TEST_P(Backend, KeepsEqualityRowsAndRanges) {
  Program program;
  const int x = program.column(1, 0, 10), y = program.column(2, 0, 10);
  program.row({{x, 1}, {y, 1}}, 6, 6);
  program.row({{x, 1}, {y, -1}}, -1, 2);
  const LpResult result = lp(program)->solve(kSeconds);
  ASSERT_EQ(result.status, SolverStatus::kOptimal);
  EXPECT_NEAR(result.objective, 8, kTolerance);  // x = 4, y = 2
  expectFeasible(program.model(), result.x);
}

TEST_P(Backend, GoesOnWarmWhenRowsAreAdded) {
  Program program = wyndor();
  const auto solver = lp(program);
  EXPECT_NEAR(solver->solve(kSeconds).objective, -36, kTolerance);
  const int known = program.model().numRows();
  program.row({{0, 1}, {1, 1}}, -kInfinity, 7);
  program.row({{1, 1}}, -kInfinity, 5);
  solver->addRows(program.model(), known);
  const LpResult tighter = solver->solve(kSeconds);
  ASSERT_EQ(tighter.status, SolverStatus::kOptimal);
  EXPECT_NEAR(tighter.objective, -31, kTolerance);  // x = 2, y = 5
  solver->addRows(program.model(), program.model().numRows());
  EXPECT_NEAR(solver->solve(kSeconds).objective, -31, kTolerance);
  program.row({{0, 1}, {1, 1}}, 9, kInfinity);
  solver->addRows(program.model(), known + 2);
  EXPECT_EQ(solver->solve(kSeconds).status, SolverStatus::kInfeasible);
}

TEST_P(Backend, TellsInfeasibleFromUnbounded) {
  Program infeasible;
  infeasible.column(1, 0, 1);
  infeasible.row({{0, 1}}, 2, kInfinity);
  EXPECT_EQ(lp(infeasible)->solve(kSeconds).status, SolverStatus::kInfeasible);
  Program unbounded;
  unbounded.column(-1, 0, kInfinity);
  unbounded.column(0, 0, 1);
  unbounded.row({{0, 1}, {1, -1}}, 0, kInfinity);
  const LpResult result = lp(unbounded)->solve(kSeconds);
  EXPECT_EQ(result.status, SolverStatus::kStopped);
  EXPECT_THAT(result.x, ::testing::IsEmpty());
}

TEST_P(Backend, FreeColumnsAreBoundedByTheirRows) {
  Program program;
  const int x = program.column(1, -kInfinity, kInfinity);
  program.row({{x, 1}}, -3, kInfinity);
  const LpResult result = lp(program)->solve(kSeconds);
  ASSERT_EQ(result.status, SolverStatus::kOptimal);
  EXPECT_NEAR(result.objective, -3, kTolerance);
}

TEST_P(Backend, EmptyProgramsHaveAnAnswer) {
  const LpResult nothing = lp(Program{})->solve(kSeconds);
  EXPECT_EQ(nothing.status, SolverStatus::kOptimal);
  EXPECT_EQ(nothing.objective, 0);
  Program impossible;
  impossible.row({}, 1, kInfinity);
  EXPECT_EQ(lp(impossible)->solve(kSeconds).status, SolverStatus::kInfeasible);
  Program possible;
  possible.row({}, -1, 1);
  EXPECT_EQ(lp(possible)->solve(kSeconds).status, SolverStatus::kOptimal);
  EXPECT_EQ(mip(Program{}).status, SolverStatus::kOptimal);
  Program no_rows;
  no_rows.integer(2);
  no_rows.integer(-3);
  expectOptimum(mip(no_rows), -3);
}

// ---- mixed-integer programs ----

// Values 16, 22, 12, 8 for weights 5, 7, 4, 3 within 14: 42 without the first (Wolsey).
Program knapsack() {
  Program program;
  for (const double value : {16., 22., 12., 8.}) program.integer(-value);
  program.row({{0, 5}, {1, 7}, {2, 4}, {3, 3}}, -kInfinity, 14);
  return program;
}

TEST_P(Backend, SolvesAKnapsack) {
  const Program program = knapsack();
  const MipResult result = mip(program);
  expectOptimum(result, -42);
  expectFeasible(program.model(), result.x);
}

TEST_P(Backend, MixesIntegersAndContinuousColumns) {
  Program program;
  const int n = program.integer(1, 0, 100);
  const int x = program.column(0.25, 0, 0.75);
  program.row({{n, 1}, {x, 1}}, 2.5, kInfinity);
  program.row({{n, 2}, {x, -1}}, 3.5, 3.5);  // n = 2, x = 0.5
  const MipResult result = mip(program);
  expectOptimum(result, 2.125);
  expectFeasible(program.model(), result.x);
}

TEST_P(Backend, InfeasibleIntegersAreAStatus) {
  Program program;  // 2a + 2b = 3: feasible without the integers
  program.integer(1);
  program.integer(1);
  program.row({{0, 2}, {1, 2}}, 3, 3);
  const MipResult result = mip(program);
  EXPECT_EQ(result.status, SolverStatus::kInfeasible);
  EXPECT_EQ(result.bound, kInfinity);
  EXPECT_THAT(result.x, ::testing::IsEmpty());
}

TEST_P(Backend, AProgramWithoutIntegersIsSolvedAsOne) {
  const MipResult result = mip(wyndor());
  expectOptimum(result, -36);
  EXPECT_EQ(result.bound, result.objective);
}

TEST_P(Backend, TakesAStart) {
  const Program program = knapsack();
  for (const std::vector<double>& start :
       {std::vector<double>{0, 1, 1, 1}, {1, 1, 0, 0}, {1, 1, 1, 1}}) {  // best, worse, too heavy
    MipOptions options;
    options.start = start;
    expectOptimum(mip(program, options), -42);
  }
}

// Every second one of nine in a circle, and one more: 10.
Program oddCircle() {
  constexpr int kLength = 9;
  Program program;
  for (int c = 0; c < kLength; ++c) program.integer(2);
  for (int c = 0; c < kLength; ++c) program.row({{c, 1}, {(c + 1) % kLength, 1}}, 1, kInfinity);
  return program;
}

// All points of the circle have an even cost: one that lies below a cutoff between two even numbers
// is found all the same.
TEST_P(Backend, LooksBelowACutoff) {
  for (const double cutoff : {10.001, 10.5, 11., 11.999, 12.}) {
    MipOptions options;
    options.cutoff = cutoff;
    expectOptimum(mip(oddCircle(), options), 10);
  }
  for (const double cutoff : {-41.9, -41., -1., 0.}) {
    MipOptions options;
    options.cutoff = cutoff;
    expectOptimum(mip(knapsack(), options), -42);
  }
}

TEST_P(Backend, NothingBelowACutoffIsNoSolution) {
  MipOptions options;
  options.cutoff = 9.5;
  options.start = {1, 0, 1, 0, 1, 0, 1, 0, 1};
  const MipResult result = mip(oddCircle(), options);
  if (GetParam() == SolverKind::kCbc) {
    EXPECT_EQ(result.status, SolverStatus::kInfeasible);
  } else if (result.status == SolverStatus::kOptimal) {  // it may do without a cutoff
    expectOptimum(result, 10);
  }
}

// Weights without structure: hard enough that the bound closes late.
Program hardKnapsacks(int columns, int rows) {
  std::mt19937_64 random(7);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  Program program;
  for (int c = 0; c < columns; ++c) program.integer(-draw(50, 150));
  for (int r = 0; r < rows; ++r) {
    std::vector<Term> terms;
    double sum = 0;
    for (int c = 0; c < columns; ++c) {
      terms.push_back({c, static_cast<double>(draw(5, 100))});
      sum += terms.back().value;
    }
    program.row(terms, -kInfinity, std::floor(sum / 2));
  }
  return program;
}

TEST_P(Backend, MayStopWithinAGap) {
  const Program program = hardKnapsacks(40, 5);
  const MipResult exact = mip(program, {.relative_gap = 0});
  ASSERT_EQ(exact.status, SolverStatus::kOptimal);
  const MipResult loose = mip(program, {.relative_gap = 0.05});
  ASSERT_EQ(loose.status, SolverStatus::kOptimal);
  expectFeasible(program.model(), loose.x);
  EXPECT_LE(loose.bound, exact.objective + kTolerance);
  EXPECT_GE(loose.objective, exact.objective - kTolerance);
  EXPECT_LE(loose.objective - loose.bound, 0.05 * std::abs(loose.objective) + kTolerance);
  const MipResult absolute = mip(program, {.relative_gap = 0, .absolute_gap = 100});
  EXPECT_LE(absolute.objective - absolute.bound, 100 + kTolerance);
}

TEST_P(Backend, KeepsItsTimeLimitAndItsStart) {
  const Program program = hardKnapsacks(500, 30);
  const double seconds = 1.5;
  MipOptions options{.time_limit_seconds = seconds, .relative_gap = 0};
  options.start.assign(500, 0);
  const Deadline clock(seconds);
  const MipResult result = mip(program, options);
  // A machine under load may be late with everything but with killing the child.
  EXPECT_LT(clock.elapsed(), seconds + kOverrunSeconds + 5);
  EXPECT_EQ(result.status, SolverStatus::kStopped);
  ASSERT_THAT(result.x, ::testing::Not(::testing::IsEmpty()));
  expectFeasible(program.model(), result.x);
  EXPECT_LT(result.objective, 0);
  EXPECT_LT(result.bound, result.objective);
}

Program randomProgram(std::mt19937_64& random) {
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  Program program;
  const int columns = draw(3, 12);
  for (int c = 0; c < columns; ++c) {
    if (draw(0, 3) > 0) {
      program.integer(draw(-9, 9), 0, draw(1, 3));
    } else {
      program.column(draw(-9, 9), draw(-2, 0), draw(1, 4));
    }
  }
  for (int r = draw(2, 8); r > 0; --r) {
    std::vector<Term> terms;
    for (int c = 0; c < columns; ++c) {
      if (draw(0, 1) == 1) terms.push_back({c, static_cast<double>(draw(-5, 9))});
    }
    const double upper = draw(0, 20);
    program.row(terms, draw(0, 1) == 1 ? upper - draw(0, 8) : -kInfinity, upper);
  }
  return program;
}

TEST_P(Backend, AgreesWithCbcOnRandomPrograms) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 25; ++i) {
    SCOPED_TRACE(i);
    const Program program = randomProgram(random);
    const MipResult mine = mip(program, {.relative_gap = 0});
    const MipResult known = solveMip(
        program.model(),
        {.time_limit_seconds = kSeconds, .relative_gap = 0, .solver = choiceOf(SolverKind::kCbc)});
    ASSERT_EQ(mine.status, known.status);
    if (known.status != SolverStatus::kOptimal) continue;
    EXPECT_NEAR(mine.objective, known.objective, 1e-5);
    expectFeasible(program.model(), mine.x);
  }
}

TEST_P(Backend, ClaimsNoMoreThanItsGapAllows) {
  std::mt19937_64 random(7);
  int compared = 0;
  for (int i = 0; i < 25; ++i) {
    SCOPED_TRACE(i);
    const Program program = randomProgram(random);
    const MipResult known = solveMip(
        program.model(),
        {.time_limit_seconds = kSeconds, .relative_gap = 0, .solver = choiceOf(SolverKind::kCbc)});
    if (known.status != SolverStatus::kOptimal) continue;
    for (const double gap : {0.5, 4.0}) {
      for (const double above : {0.3, 6.0, kInfinity}) {
        const MipResult found = mip(
            program, {.relative_gap = 0, .absolute_gap = gap, .cutoff = known.objective + above});
        ASSERT_EQ(found.status, SolverStatus::kOptimal);
        EXPECT_LE(found.bound, known.objective + 1e-5);
        EXPECT_LE(found.objective, known.objective + gap + 1e-5);
        EXPECT_GE(found.bound, found.objective - gap - 1e-5);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 20);
}

INSTANTIATE_TEST_SUITE_P(Solvers, Backend,
                         ::testing::Values(SolverKind::kCbc, SolverKind::kHighs,
                                           SolverKind::kGurobi, SolverKind::kAuto),
                         [](const auto& test) { return std::string(toString(test.param)); });

// ---- whole solves ----

TEST(Backends, WholeSolvesAgree) {
  if (const std::string why_not = whyNot(SolverKind::kHighs); !why_not.empty())
    GTEST_SKIP() << why_not;
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  profile.generator_state_bytes = 3;
  int optimal = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = testing::smallRandomGraph(seed);
    SolveOptions options;
    // Between the least that will do and what plain training needs.
    const int64_t least = testing::exhaustivePeak(graph, profile, std::nullopt).value();
    options.ram_budget_bytes =
        std::max<int64_t>(1, (least + simulatePlain(graph, profile).peak_bytes) / 2);
    options.minimize = seed % 3 == 0 ? Objective::kMemory : Objective::kTime;
    options.time_limit_seconds = kSeconds;
    options.solver = choiceOf(SolverKind::kCbc);
    const Schedule by_cbc = solve(graph, profile, options);
    options.solver = choiceOf(SolverKind::kHighs);
    const Schedule by_highs = solve(graph, profile, options);
    EXPECT_THAT(options.solver.trouble->texts(), ::testing::IsEmpty());
    EXPECT_EQ(by_highs.status, by_cbc.status);
    if (by_cbc.status != Status::kOptimal || by_highs.status != Status::kOptimal) continue;
    ++optimal;
    EXPECT_NEAR(by_highs.objectiveValue(), by_cbc.objectiveValue(), 1e-6 * by_cbc.objectiveValue());
  }
  EXPECT_GT(optimal, 30);
}

TEST(Backends, AWorkerUsesTheSolverThatItIsToldTo) {
  if (const std::string why_not = whyNot(SolverKind::kHighs); !why_not.empty())
    GTEST_SKIP() << why_not;
  const Graph graph = testing::smallRandomGraph(5);
  SolveOptions options;
  options.ram_budget_bytes = simulatePlain(graph, hostProfile()).peak_bytes - 1;
  options.time_limit_seconds = kSeconds;
  options.solver = choiceOf(SolverKind::kHighs);
  EXPECT_EQ(solveInWorker(graph, hostProfile(), options, POET_SOLVER_PATH).message, "");
  options.solver.highs_library = "/no/such/library.so";
  const Schedule refused = solveInWorker(graph, hostProfile(), options, POET_SOLVER_PATH);
  EXPECT_FALSE(refused.hasPlan());
  EXPECT_THAT(refused.message, ::testing::HasSubstr("/no/such/library.so"));
}

// ---- what is missing, and what crashes ----

TEST(Backends, ALibraryThatIsMissingIsRefusedByNameAndNotMissedByAuto) {
  SolverChoice choice{.kind = SolverKind::kHighs, .highs_library = "/no/such/library.so"};
  EXPECT_THROW(checkSolver(choice), ArgumentError);
  EXPECT_THAT(findSolvers(choice).back().why_not, ::testing::HasSubstr("/no/such/library.so"));
  choice.kind = SolverKind::kAuto;
  EXPECT_NO_THROW(checkSolver(choice));
  expectOptimum(solveMip(knapsack().model(), {.solver = choice}), -42);
  EXPECT_THAT(choice.trouble->texts(), ::testing::IsEmpty());
}

TEST(Backends, ALibraryOfSomethingElseIsRefused) {
  const SolverChoice choice{.kind = SolverKind::kHighs, .highs_library = "libm.so.6"};
  EXPECT_THAT(findSolvers(choice).back().why_not, ::testing::HasSubstr("Highs_create"));
}

TEST(Backends, GurobiThatDoesNotRunIsReportedAndCbcGoesOn) {
  SolverChoice choice{.kind = SolverKind::kGurobi, .gurobi_command = {"/no/such/python"}};
  const Program program = knapsack();
  for (int i = 0; i < 3; ++i)
    expectOptimum(solveMip(program.model(), {.time_limit_seconds = kSeconds, .solver = choice}),
                  -42);
  EXPECT_EQ(choice.trouble->texts().size(), 1U);
  EXPECT_THROW(checkSolver({.kind = SolverKind::kGurobi}), ArgumentError);
}

TEST(Backends, AProgramTooBigForGurobisLicenceIsSolvedByCbc) {
  if (const std::string why_not = whyNot(SolverKind::kGurobi); !why_not.empty())
    GTEST_SKIP() << why_not;
  const SolverChoice choice = choiceOf(SolverKind::kGurobi);
  Program program;
  std::vector<Term> terms;
  for (int c = 0; c < 2500; ++c) terms.push_back({program.integer(1), 1});
  program.row(terms, 7, kInfinity);
  const MipResult result =
      solveMip(program.model(), {.time_limit_seconds = kSeconds, .solver = choice});
  expectOptimum(result, 7);
  const auto trouble = choice.trouble->texts();
  if (trouble.empty()) GTEST_SKIP() << "this machine has an unlimited licence";
  EXPECT_THAT(trouble, ::testing::ElementsAre(::testing::HasSubstr("size limit")));
}

TEST(Backends, NamesAreReadAndWritten) {
  for (const SolverKind kind :
       {SolverKind::kAuto, SolverKind::kCbc, SolverKind::kHighs, SolverKind::kGurobi})
    EXPECT_EQ(solverKindFromString(toString(kind)), kind);
  EXPECT_THROW(solverKindFromString("cplex"), ArgumentError);
}

class Crashing : public LpSolver {
 public:
  LpResult solve(double time_limit_seconds) override {
    if (time_limit_seconds < 1) raise(SIGSEGV);
    LpResult result;
    result.status = SolverStatus::kOptimal;
    result.objective = rows_;
    return result;
  }
  void addRows(const SparseModel& model, int first_row) override {
    rows_ += model.numRows() - first_row;
  }

 private:
  int rows_ = 0;
};

TEST(Isolated, ARelaxationThatCrashesIsStoppedFromThenOn) {
  const auto lp = lpInChild([] { return std::make_unique<Crashing>(); });
  const Program program = wyndor();
  EXPECT_EQ(lp->solve(5).status, SolverStatus::kOptimal);
  lp->addRows(program.model(), 1);
  EXPECT_EQ(lp->solve(5).objective, 2);
  EXPECT_EQ(lp->solve(0.5).status, SolverStatus::kStopped);
  lp->addRows(program.model(), 0);
  EXPECT_EQ(lp->solve(5).status, SolverStatus::kStopped);
}

// The processes that this thread has started.
std::vector<pid_t> children() {
  const std::string self = std::to_string(getpid());
  std::ifstream list("/proc/" + self + "/task/" + self + "/children");
  std::vector<pid_t> found;
  for (pid_t child = 0; list >> child;) found.push_back(child);
  return found;
}

TEST(Isolated, WhereHighsIsLostClpGoesOnWithAllRows) {
  if (const std::string why_not = whyNot(SolverKind::kHighs); !why_not.empty())
    GTEST_SKIP() << why_not;
  Program program = wyndor();
  const auto lp = makeLpSolver(program.model(), choiceOf(SolverKind::kHighs));
  EXPECT_NEAR(lp->solve(kSeconds).objective, -36, kTolerance);
  const std::vector<pid_t> started = children();
  if (started.empty()) GTEST_SKIP() << "this kernel lists no children";
  for (const pid_t child : started) kill(child, SIGKILL);
  const int known = program.model().numRows();
  program.row({{0, 1}, {1, 1}}, -kInfinity, 7);
  lp->addRows(program.model(), known);
  EXPECT_NEAR(lp->solve(kSeconds).objective, -33, kTolerance);  // x = 1, y = 6
  program.row({{1, 1}}, -kInfinity, 5);
  lp->addRows(program.model(), known + 1);
  EXPECT_NEAR(lp->solve(kSeconds).objective, -31, kTolerance);  // x = 2, y = 5
}

TEST(Isolated, ABranchAndCutThatCrashesHasNoResult) {
  EXPECT_FALSE(solveInChild(5, []() -> MipResult { std::abort(); }));
  MipResult three;
  three.objective = 3;
  three.x = {1, 2};
  const auto result = solveInChild(5, [&] { return three; });
  ASSERT_TRUE(result);
  EXPECT_EQ(result->objective, 3);
  EXPECT_EQ(result->x, three.x);
}

}  // namespace
}  // namespace poet::planner
