// Schedules to start from that are none of those which the planner's bounds speak of
// (docs/planner.md, "Bounds"): they are not lost, and no bound above them is told.
#include <gtest/gtest.h>

#include <optional>

#include "planner/planner.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/plan_builder.h"

namespace poet {
namespace {

using testing::GraphBuilder;
using testing::PlanBuilder;

// x cannot be made again and dies with f, which makes r from it in 1 s. r is in the way of wide,
// and goes through the store in 20 s. Where x is retained beyond its death r can be made again.
struct KeptBeyondItsDeath {
  KeptBeyondItsDeath() {
    GraphBuilder g;
    const ValueId in = g.input(1);
    x = g.op("sample").reads({in}).notReplayable().seconds(1).makes(1);
    r = g.op("f").reads({x}).seconds(1).makes(10);
    const ValueId m = g.op("wide").reads({in}).workspace(10).seconds(1).makes(1);
    g.outlives(g.op("use").reads({r, m}).seconds(1).makes(1));
    graph.emplace(g.build());
    device.name = "test";
    device.compute_watts = 2;
    device.store_write_rate = device.store_read_rate = 1;
    options.ram_budget_bytes = 18;
    options.time_limit_seconds = 30;
    options.minimize = Objective::kTime;
    start =
        PlanBuilder(*graph).after(1).retain(x).before(2).free(r).before(3).recompute({1}).build();
  }

  std::optional<Graph> graph;
  ValueId x, r;
  DeviceProfile device;
  SolveOptions options;
  Schedule start;
};

TEST(Starts, OneThatRefutesAProvenBoundLeavesPlainTrainingsAlone) {
  KeptBeyondItsDeath question;
  const Schedule own = solve(*question.graph, question.device, question.options);
  EXPECT_EQ(own.status, Status::kOptimal);
  EXPECT_EQ(own.makespan_seconds, 24);
  question.options.starts = {question.start};
  const Schedule best = solve(*question.graph, question.device, question.options);
  EXPECT_EQ(best.makespan_seconds, 5);
  EXPECT_EQ(best.status, Status::kFeasible);
  EXPECT_EQ(best.bound, 4.0);
  EXPECT_EQ(best.bound_all, 4.0);
  EXPECT_EQ(best.gap, 0.2);
}

TEST(Starts, OneWhereThePlannerHasNoneHasPlainTrainingsBound) {
  KeptBeyondItsDeath question;
  question.options.paging = false;
  const Schedule own = solve(*question.graph, question.device, question.options);
  EXPECT_EQ(own.status, Status::kInfeasible);
  question.options.starts = {question.start};
  const Schedule best = solve(*question.graph, question.device, question.options);
  EXPECT_EQ(best.makespan_seconds, 5);
  EXPECT_EQ(best.status, Status::kFeasible);
  EXPECT_EQ(best.bound, 4.0);
  EXPECT_EQ(best.bound_scope, "all");
  EXPECT_EQ(best.gap, 0.2);
}

TEST(Starts, ForTheLeastPeakWhatLiesBesideTheStepIsTheBoundThatIsLeft) {
  KeptBeyondItsDeath question;
  question.options.paging = false;
  question.options.minimize = Objective::kMemory;
  question.options.ram_budget_bytes = 1000;
  const Schedule own = solve(*question.graph, question.device, question.options);
  EXPECT_EQ(own.peak_bytes, 22);
  question.options.starts = {question.start};
  const Schedule best = solve(*question.graph, question.device, question.options);
  EXPECT_LT(best.peak_bytes, own.peak_bytes);
  EXPECT_EQ(best.status, Status::kFeasible);
  EXPECT_EQ(best.bound, 0.0);
  EXPECT_EQ(best.gap, 1.0);
}

}  // namespace
}  // namespace poet
