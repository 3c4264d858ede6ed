// A method's plan of the coarse step against its plan of the step itself.
#include "methods/coarse_plan.h"

#include <gtest/gtest.h>

#include "graph/coarsening.h"
#include "methods/poet_paper.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"
#include "support/random_graph.h"

namespace poet::testing {
namespace {

SolveOptions withinBudget(int64_t budget) {
  SolveOptions options;
  options.ram_budget_bytes = budget;
  options.time_limit_seconds = 6;
  return options;
}

TEST(CoarsePlan, IsOneOfTheStepAndCostsNoMore) {
  const DeviceProfile host = hostProfile();
  DeviceProfile with_store = host;
  with_store.store_read_rate = with_store.store_write_rate = 10;  // a transfer is about an op
  int coarser = 0, planned = 0, paging = 0, same = 0;
  for (int seed = 0; seed < propertyCases(24); ++seed) {
    SCOPED_TRACE(seed);
    const DeviceProfile& profile = seed % 2 == 0 ? host : with_store;
    RandomGraphOptions graph_options;
    graph_options.view = graph_options.in_place = 0.3;
    graph_options.forward_ops = 3;
    const Graph graph = randomGraph(static_cast<uint64_t>(seed) + 91000, graph_options);
    const int64_t plain = simulatePlain(graph, profile).peak_bytes;
    const SolveOptions options = withinBudget(std::max<int64_t>(1, plain * (70 + seed % 30) / 100));
    const Schedule fine = solvePoetPaper(graph, profile, options);
    const Schedule found = methods::planCoarse(graph, profile, options, &solvePoetPaper);
    coarser += Coarsening(graph, RecipeTable(graph)).graph().numOps() < graph.numOps();
    EXPECT_EQ(found.graph_signature, graph.signature());
    EXPECT_EQ(found.num_ops, graph.numOps());
    EXPECT_EQ(found.method, "poet_paper");
    if (!fine.hasPlan() || found.status == Status::kTimeLimit) continue;
    ASSERT_TRUE(found.hasPlan()) << found.message;
    ++planned;
    const SimulationResult simulated = simulate(graph, found, profile);
    EXPECT_LE(simulated.peak_bytes, options.ram_budget_bytes);
    EXPECT_EQ(simulated.peak_bytes, found.peak_bytes);
    EXPECT_LE(*found.bound, found.energy_joules * (1 + 1e-9));
    paging += simulated.page_ins > 0;
    same += found.energy_joules <= fine.energy_joules * (1 + 1e-6);
  }
  EXPECT_GT(coarser, propertyCases(24) / 6);
  EXPECT_GT(planned, propertyCases(24) / 6);
  EXPECT_GT(paging, 0);
  EXPECT_GE(same, planned * 9 / 10) << "views that are replayed beside a recipe cost their seconds";
}

}  // namespace
}  // namespace poet::testing
