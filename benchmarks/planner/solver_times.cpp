// What the solvers take for the programs of one graph, at one thread: a line of JSON for each.
//
//   solver_times GRAPH FIXED_BYTES SLACK SECONDS SOLVER... [-- HIGHS_LIBRARY [GUROBI_COMMAND...]]
//
// The budget is S + SLACK (plain peak - S), with S = FIXED_BYTES; SECONDS limit each solve.
//
// "first": the first relaxation, cold. "relaxation": all of its rounds, with rows and cuts added.
// "window": parts of the program with the rest fixed, as the local search solves them. "program":
// the whole program, where it is small. solvers.py runs it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/profile.h"
#include "graph/graph.h"
#include "graph/recipes.h"
#include "planner/annealing.h"
#include "planner/backends/solver.h"
#include "planner/candidates.h"
#include "planner/clock.h"
#include "planner/lp_loop.h"
#include "planner/program.h"
#include "schedule/simulator.h"

namespace poet::planner {
namespace {

// As in search.cpp and local_search.cpp.
constexpr int kAncestors = 12, kNear = 2;
constexpr int kMostColumnsForWholeProgram = 6000;
constexpr double kWindowGap = 1e-4;
constexpr double kWindowSeconds = 2;
constexpr int kWindows = 5;  // of each size
constexpr size_t kWindowColumns[] = {800, 2500, 6000};

struct Case {
  std::string graph;
  int64_t fixed_bytes = 0;
  double slack = 0;
  double seconds = 0;
  std::vector<SolverChoice> solvers = {};
};

Case parse(int argc, char** argv) {
  Case asked{.graph = argv[1],
             .fixed_bytes = std::atoll(argv[2]),
             .slack = std::atof(argv[3]),
             .seconds = std::atof(argv[4])};
  int i = 5;
  for (; i < argc && std::strcmp(argv[i], "--") != 0; ++i)
    asked.solvers.emplace_back().kind = solverKindFromString(argv[i]);
  for (SolverChoice& solver : asked.solvers) {
    if (i + 1 < argc) solver.highs_library = argv[i + 1];
    for (int word = i + 2; word < argc; ++word) solver.gurobi_command.emplace_back(argv[word]);
  }
  return asked;
}

const char* name(SolverStatus status) {
  return status == SolverStatus::kOptimal      ? "optimal"
         : status == SolverStatus::kInfeasible ? "infeasible"
                                               : "stopped";
}

void print(const char* what, int number, const SolverChoice& solver, const SparseModel& model,
           double seconds, SolverStatus status, double objective, double bound) {
  std::printf(
      "{\"what\": \"%s\", \"number\": %d, \"solver\": \"%s\", \"columns\": %d, "
      "\"rows\": %d, \"seconds\": %.5f, \"status\": \"%s\", \"objective\": %.9g, "
      "\"bound\": %.9g}\n",
      what, number, std::string(toString(solver.kind)).c_str(), model.numColumns(), model.numRows(),
      seconds, name(status), objective, std::clamp(bound, -1e300, 1e300));
  std::fflush(stdout);
}

// The model with everything but `free` fixed at the point.
SparseModel windowOf(const SparseModel& model, const std::vector<double>& point,
                     const std::vector<char>& free, std::vector<double>& start) {
  SparseModel window;
  std::vector<int> place(point.size(), -1);
  for (size_t c = 0; c < point.size(); ++c) {
    if (!free[c]) continue;
    place[c] = window.addColumn(model.cost[c], model.lower[c], model.upper[c], model.integer[c]);
    start.push_back(point[c]);
  }
  std::vector<Term> terms;
  for (size_t r = 0; r < model.row_lower.size(); ++r) {
    terms.clear();
    double fixed = 0;
    for (int e = model.row_start[r]; e < model.row_start[r + 1]; ++e) {
      const auto c = static_cast<size_t>(model.index[static_cast<size_t>(e)]);
      const double value = model.value[static_cast<size_t>(e)];
      if (free[c]) {
        terms.push_back({place[c], value});
      } else {
        fixed += value * point[c];
      }
    }
    if (!terms.empty())
      window.addRow(terms, model.row_lower[r] - fixed, model.row_upper[r] - fixed);
  }
  return window;
}

class Measurement {
 public:
  explicit Measurement(const Case& asked)
      : asked_(asked),
        graph_(Graph::load(asked.graph)),
        profile_(hostProfile()),
        plain_peak_bytes_(simulatePlain(graph_, profile_).peak_bytes),
        budget_bytes_(
            asked.fixed_bytes +
            std::llround(asked.slack * static_cast<double>(plain_peak_bytes_ - asked.fixed_bytes))),
        table_(graph_),
        problem_(graph_, table_, profile_,
                 {.small_bytes =
                      ProblemOptions::defaultSmallBytes(plain_peak_bytes_, graph_.numOps())}) {}

  void run() {
    const AnnealingResult found = anneal(problem_, problem_.leastPlan(),
                                         {.budget_bytes = budget_bytes_,
                                          .replay_seconds_limit = {},
                                          .time_limit_seconds = asked_.seconds});
    Candidates candidates = ancestorCandidates(problem_, kAncestors, kNear);
    include(problem_, found.closest, candidates);
    const Program program(problem_, candidates,
                          {.budget_bytes = budget_bytes_, .replay_seconds_limit = {}});
    for (const SolverChoice& solver : asked_.solvers) firstRelaxation(program, solver);
    Relaxation root;
    for (const SolverChoice& solver : asked_.solvers) root = relaxation(program, solver);
    if (!found.best) return;
    const std::vector<double> point = program.pointOf(*found.best).value();
    if (program.numColumns() <= kMostColumnsForWholeProgram) {
      for (const SolverChoice& solver : asked_.solvers)
        solve("program", 0, root.model, point, asked_.seconds, solver);
    }
    addAllRows(program, root.model);
    windows(root.model, point);
  }

 private:
  void firstRelaxation(const Program& program, const SolverChoice& solver) const {
    if (solver.kind == SolverKind::kGurobi) return;
    const Deadline clock(asked_.seconds);
    const LpResult result = makeLpSolver(program.model(), solver)->solve(asked_.seconds);
    print("first", 0, solver, program.model(), clock.elapsed(), result.status, result.objective,
          result.objective);
  }

  Relaxation relaxation(const Program& program, const SolverChoice& solver) const {
    const Deadline clock(asked_.seconds);
    Relaxation result = relax(program, {.time_limit_seconds = asked_.seconds, .solver = solver});
    if (solver.kind != SolverKind::kGurobi)
      print("relaxation", 0, solver, result.model, clock.elapsed(), result.status, result.objective,
            result.objective);
    return result;
  }

  // A window's plan must keep the budget also where the relaxation did not need to hear of it.
  static void addAllRows(const Program& program, SparseModel& model) {
    std::vector<Term> terms;
    for (size_t step = 0; step < program.steps().size(); ++step) {
      const double upper = program.memoryRow(static_cast<int>(step), terms);
      if (!terms.empty()) model.addRow(terms, -kInfinity, upper);
    }
  }

  // Neighbouring columns, which are those of neighbouring micro-steps and values.
  void windows(const SparseModel& model, const std::vector<double>& point) const {
    std::mt19937_64 random(1);
    int number = 0;
    for (const size_t size : kWindowColumns) {
      if (size >= point.size()) continue;
      for (int i = 0; i < kWindows; ++i, ++number) {
        std::vector<char> free(point.size(), 0);
        for (int part = 0; part < 2; ++part) {
          const size_t first =
              std::uniform_int_distribution<size_t>(0, point.size() - size / 2)(random);
          std::fill_n(free.begin() + static_cast<std::ptrdiff_t>(first), size / 2, 1);
        }
        std::vector<double> start;
        const SparseModel window = windowOf(model, point, free, start);
        for (const SolverChoice& solver : asked_.solvers)
          solve("window", number, window, start, kWindowSeconds, solver);
      }
    }
  }

  void solve(const char* what, int number, const SparseModel& model,
             const std::vector<double>& start, double seconds, SolverChoice solver) const {
    solver.trouble = std::make_shared<SolverTrouble>();
    const Deadline clock(seconds);
    const MipResult result = solveMip(model, {.time_limit_seconds = seconds,
                                              .relative_gap = kWindowGap,
                                              .start = start,
                                              .solver = solver});
    const double taken = clock.elapsed();
    if (!solver.trouble->texts().empty()) return;  // CBC went on in its place
    print(what, number, solver, model, taken, result.status, result.objective, result.bound);
  }

  const Case& asked_;
  const Graph graph_;
  const DeviceProfile profile_;
  const int64_t plain_peak_bytes_;
  const int64_t budget_bytes_;
  const RecipeTable table_;
  const Problem problem_;
};

}  // namespace
}  // namespace poet::planner

int main(int argc, char** argv) try {
  if (argc < 6) {
    std::fputs(
        "solver_times GRAPH FIXED_BYTES SLACK SECONDS SOLVER... [-- HIGHS_LIBRARY "
        "[GUROBI_COMMAND...]]\n",
        stderr);
    return 2;
  }
  const poet::planner::Case asked = poet::planner::parse(argc, argv);
  poet::planner::Measurement(asked).run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "solver_times: %s\n", error.what());
  return 1;
}
