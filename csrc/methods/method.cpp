#include "methods/method.h"

#include <algorithm>
#include <string>

#include "graph/error.h"
#include "methods/coarse_plan.h"
#include "methods/every_method.h"
#include "methods/moccasin.h"
#include "methods/poet_paper.h"
#include "planner/backends/solver.h"
#include "planner/options.h"

namespace poet {
namespace {

// A method that hears of no progress: its plan comes at its end.
template <Schedule (*kPlan)(const Graph&, const DeviceProfile&, const SolveOptions&)>
Schedule atOnce(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                const IncumbentCallback&, const ProgressCallback&) {
  return kPlan(graph, profile, options);
}

// One whose program is too large for more ops than there need be.
template <methods::PlanFunction kPlan>
Schedule coarsely(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                  const IncumbentCallback&, const ProgressCallback&) {
  return methods::planCoarse(graph, profile, options, kPlan);
}

Schedule moccasin(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                  const IncumbentCallback&, const ProgressCallback&) {
  return solveMoccasin(graph, profile, options, {.python = options.python});
}

// Programs with everything that POET's has, and what policies in running order do.
constexpr MethodTraits kProgram = {.recomputes = true,
                                   .pages = true,
                                   .compute_aware = true,
                                   .memory_aware = true,
                                   .power_aware = true,
                                   .deadline = true};
constexpr MethodTraits kDtr = {
    .recomputes = true, .compute_aware = true, .memory_aware = true, .online = true, .live = true};

constexpr MethodTraits without(bool MethodTraits::*trait, MethodTraits traits) {
  traits.*trait = false;
  return traits;
}
constexpr MethodTraits kDense = without(&MethodTraits::least_memory, kProgram);

std::vector<Method> makeMethods() {
  return {
      {"poet", "poet", "mixed-integer program over segments of lifetimes, cuts and local search",
       kProgram, &solve},
      {"checkpoint_all", "PyTorch", "keeps everything", {}, &atOnce<&methods::planCheckpointAll>},
      {"revolve",
       "Griewank & Walther 2000",
       "binomial checkpointing",
       {.general_graphs = false, .recomputes = true, .memory_aware = true},
       &atOnce<&methods::planRevolve>},
      {"chen_sqrt",
       "Chen et al. 2016",
       "segments of sqrt(n) links",
       {.general_graphs = false, .recomputes = true},
       &atOnce<&methods::planChenSqrt>},
      {"chen_greedy",
       "Chen et al. 2016",
       "segments of b bytes, with the search over b",
       {.general_graphs = false, .recomputes = true, .memory_aware = true},
       &atOnce<&methods::planChenGreedy>},
      {"rotor",
       "Beaumont et al. 2019",
       "dynamic program over a heterogeneous chain",
       {.general_graphs = false, .recomputes = true, .compute_aware = true, .memory_aware = true},
       &atOnce<&methods::planRotor>},
      {"pofo",
       "Beaumont et al. 2021",
       "dynamic program over a chain, with offloading",
       {.general_graphs = false,
        .recomputes = true,
        .pages = true,
        .compute_aware = true,
        .memory_aware = true,
        .power_aware = true},
       &atOnce<&methods::planPofo>},
      {"twremat",
       "Kumar et al. 2019",
       "recursion over a tree decomposition",
       {.recomputes = true, .memory_aware = true},
       &atOnce<&methods::planTwremat>},
      {"dtr", "Kirisame et al. 2021", "evicts the least h = cost / (bytes x staleness)", kDtr,
       &atOnce<&methods::planDtr>},
      {"dtr_eq", "Kirisame et al. 2021", "the same with the cost of union-find components", kDtr,
       &atOnce<&methods::planDtrEq>},
      {"dtr_local", "Kirisame et al. 2021", "the same with the value's own cost", kDtr,
       &atOnce<&methods::planDtrLocal>},
      {"dtr_banish", "Kirisame et al. 2021", "lets go for good what training lets go", kDtr,
       &atOnce<&methods::planDtrBanish>},
      {"coop", "Zhang et al. 2023", "evicts the cheapest neighbours in memory that make one place",
       kDtr, &atOnce<&methods::planCoop>},
      {"dtr_placed", "Zhang et al. 2023", "what it is measured against: DTR in the same memory",
       without(&MethodTraits::live, kDtr), &atOnce<&methods::planDtrPlaced>},
      {"capuchin",
       "Peng et al. 2020",
       "swaps in free time, then swaps or recomputes what costs least a byte",
       {.recomputes = true, .pages = true, .compute_aware = true, .memory_aware = true},
       &atOnce<&methods::planCapuchin>},
      {"checkmate", "Jain et al. 2020", "the dense T x T program, its LP rounding for large steps",
       without(&MethodTraits::least_memory,
               {.recomputes = true, .compute_aware = true, .memory_aware = true, .deadline = true}),
       &coarsely<&methods::planCheckmate>},
      {"page_all",
       "Patil et al. 2022",
       "pages every activation that backward reads",
       {.pages = true},
       &atOnce<&methods::planPageAll>},
      {"poet_remat_only", "Patil et al. 2022", "the dense program without paging",
       without(&MethodTraits::pages, kDense), &coarsely<&methods::planPoetRematOnly>},
      {"poet_page_only", "Patil et al. 2022", "the dense program without recompute",
       without(&MethodTraits::recomputes, kDense), &coarsely<&methods::planPoetPageOnly>},
      {"poet_paper", "Patil et al. 2022", "the dense program with paging, energy and time rows",
       kDense, &coarsely<&solvePoetPaper>},
      {"moccasin", "Bartan et al. 2023", "retention intervals in a constraint program",
       without(&MethodTraits::least_memory,
               {.recomputes = true, .compute_aware = true, .memory_aware = true, .deadline = true}),
       &moccasin},
  };
}

}  // namespace

void checkObjective(const Method& method, Objective minimize) {
  POET_CHECK(method.traits.least_memory || minimize != Objective::kMemory,
             "minimize: expected \"energy\" or \"time\" with the method \"", method.name,
             "\", got \"memory\"; the method \"poet\" has it");
}

void checkMethod(const DeviceProfile& profile, const SolveOptions& options) {
  const Method& method = methodByName(options.method);
  planner::checkOptions(options);
  const MethodTraits& can = method.traits;
  POET_CHECK(options.starts.empty() || method.name == "poet",
             "starts: expected none with the method \"", method.name,
             "\", whose plans are its own; got ", options.starts.size());
  checkObjective(method, options.minimize);
  if (method.name == "poet" || (!can.recomputes && !can.pages)) return;
  const bool may_page = options.paging && profile.hasStore();
  if (!can.recomputes) {
    POET_CHECK(may_page, "method: \"", method.name,
               "\" pages and does nothing else, and here nothing can be paged: the device \"",
               profile.name, "\" ",
               profile.hasStore() ? "has a store, but paging is off" : "has no store",
               ". Give it one (paging=True, page_dir=), or choose another method.");
  }
  POET_CHECK(options.recompute || (can.pages && may_page), "method: \"", method.name,
             "\" makes room by recomputing, and recompute is off. Leave that out, or choose "
             "another method.");
}

const std::vector<Method>& allMethods() {
  static const std::vector<Method> all = makeMethods();
  return all;
}

const Method& methodByName(std::string_view name) {
  const auto found = std::find_if(allMethods().begin(), allMethods().end(),
                                  [&](const Method& method) { return method.name == name; });
  if (found != allMethods().end()) return *found;
  std::string known;
  for (const Method& method : allMethods())
    known += detail::message(known.empty() ? "" : ", ", '"', method.name, '"');
  throw ArgumentError(
      detail::message("method: expected one of ", known, "; got \"", name.substr(0, 40), '"'));
}

Schedule planWith(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                  const IncumbentCallback& on_incumbent, const ProgressCallback& on_progress) {
  const Method& method = methodByName(options.method);
  profile.check();
  checkMethod(profile, options);
  planner::checkSolver(options.solver);
  Schedule schedule = method.plan(graph, profile, options, on_incumbent, on_progress);
  POET_INTERNAL_ASSERT(schedule.method == method.name, "a plan of \"", schedule.method,
                       "\" where one of \"", method.name, "\" was asked for");
  return schedule;
}

}  // namespace poet
