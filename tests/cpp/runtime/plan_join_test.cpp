#include "runtime/plan_join.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/simulator.h"
#include "support/paging_plan.h"
#include "support/plan_builder.h"
#include "support/recording.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

// Two steps that begin alike, six layers, and part: one goes on with a narrow head, one with a wide
// one.
class PlanJoinTest : public ::testing::Test {
 protected:
  PlanJoinTest() {
    at::set_num_threads(1);
    at::manual_seed(4);
    for (int i = 0; i < 6; ++i) layers_.push_back(at::randn({32, 32}).requires_grad_());
    narrow_ = at::randn({32, 2}).requires_grad_();
    wide_ = at::randn({32, 96}).requires_grad_();
    x_ = at::randn({64, 32});
    for (const bool is_wide : {false, true}) {
      recordings_[is_wide] = recordStep([&] { run(is_wide); });
      for (at::Tensor& w : layers_) w.mutable_grad().reset();
      narrow_.mutable_grad().reset();
      wide_.mutable_grad().reset();
    }
    const auto& a = recordings_[0]->prefix_hash;
    const auto& b = recordings_[1]->prefix_hash;
    while (a[parting_ + 1] == b[parting_ + 1]) ++parting_;
  }

  void run(bool is_wide) {
    at::Tensor h = x_;
    for (const at::Tensor& w : layers_) h = at::gelu(at::mm(h, w));
    const at::Tensor out = is_wide ? at::tanh(at::mm(h, wide_)) : at::mm(h, narrow_);
    out.square().sum().backward();
  }

  CompiledPlan compiled(int which, Schedule schedule) const {
    return {recordings_[which], std::make_shared<const Schedule>(std::move(schedule)),
            storeProfile()};
  }
  static DeviceProfile storeProfile() {
    DeviceProfile profile = hostProfile();
    profile.store_read_rate = profile.store_write_rate = 1e9;
    return profile;
  }

  std::vector<at::Tensor> layers_;
  at::Tensor narrow_, wide_, x_;
  std::shared_ptr<const Recording> recordings_[2];
  size_t parting_ = 0;
};

int64_t countFrees(const Schedule& schedule, size_t end) {
  int64_t count = 0;
  for (size_t op = 0; op < end; ++op) {
    for (const Action& action : schedule.before[op]) count += action.kind == ActionKind::kFree;
  }
  return count;
}

TEST_F(PlanJoinTest, JoinsOfRandomPlansCanBeCarriedOut) {
  ASSERT_EQ(parting_, 12u);
  int64_t missing = 0, joins = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const int first = static_cast<int>(seed % 2);
    const Graph& begun = *recordings_[first]->graph;
    const Graph& goes_on = *recordings_[1 - first]->graph;
    const CompiledPlan from = compiled(first, validPlan(begun, seed, 0.5));
    const CompiledPlan to = compiled(1 - first, validPlan(goes_on, seed + 100, 0.3));
    const auto joined = joinPlans(from, to, parting_);
    if (!joined) continue;
    ++joins;
    // The simulator takes nothing that is not there.
    EXPECT_EQ(simulate(goes_on, joined->schedule(), hostProfile()).peak_bytes,
              joined->schedule().peak_bytes);
    EXPECT_EQ(countFrees(joined->schedule(), parting_), countFrees(from.schedule(), parting_));
    PlannedState begins(*recordings_[1 - first], joined->schedule());
    begins.runTo(parting_);
    PlannedState ended(*recordings_[first], from.schedule());
    ended.runTo(parting_);
    PlannedState wanted(*recordings_[1 - first], to.schedule());
    wanted.runTo(parting_);
    for (ValueId v(0); v.index < goes_on.numValues() && v.index < begun.numValues(); ++v.index) {
      const bool in_both = begun.value(v).producer.valid() &&
                           begun.value(v).producer.index < static_cast<int64_t>(parting_);
      if (!in_both) continue;
      EXPECT_EQ(begins.isResident(v), ended.isResident(v)) << "value " << v.index;
      missing += wanted.isResident(v) && !ended.isResident(v);
    }
  }
  EXPECT_GE(joins, 35);
  EXPECT_GT(missing, 40) << "there was something to bring back";
}

// The heads have the same number in the two steps, and are not the same value.
TEST_F(PlanJoinTest, JoinsOfRandomPlansThatPageCanBeCarriedOut) {
  int64_t joins = 0, elsewhere = 0, page_ins = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int first = static_cast<int>(seed % 2);
    const auto& goes_on = recordings_[1 - first];
    const CompiledPlan from = compiled(first, pagingPlan(*recordings_[first]->graph, seed, 0.3));
    const CompiledPlan to = compiled(1 - first, pagingPlan(*goes_on->graph, seed + 100, 0.2));
    const auto joined = joinPlans(from, to, parting_);
    if (!joined) continue;
    ++joins;
    const Schedule& schedule = joined->schedule();
    EXPECT_EQ(simulate(*goes_on->graph, schedule, storeProfile()).peak_bytes, schedule.peak_bytes);
    EXPECT_LE(joined->schedule().countActions(ActionKind::kRetain),
              from.schedule().countActions(ActionKind::kRetain) +
                  2 * to.schedule().countActions(ActionKind::kRetain))
        << "nothing stands there twice";
    PlannedState begins(*goes_on, schedule), wanted(*goes_on, to.schedule());
    PlannedState ended(*recordings_[first], from.schedule());
    for (PlannedState* state : {&begins, &wanted, &ended}) state->runTo(parting_);
    for (ValueId v(0); v.index < goes_on->graph->numValues(); ++v.index) {
      const auto shown = goes_on->first_shown[static_cast<size_t>(v.index)];
      const bool is_shared = shown.index < static_cast<int64_t>(parting_);
      const PlannedState& expected = is_shared ? ended : wanted;
      if (!is_shared && goes_on->graph->value(v).producer.valid()) continue;
      EXPECT_EQ(begins.isResident(v), expected.isResident(v)) << "value " << v.index;
      EXPECT_EQ(begins.isStored(v), expected.isStored(v)) << "value " << v.index;
      elsewhere += wanted.isResident(v) != begins.isResident(v);
    }
    page_ins += schedule.countActions(ActionKind::kPageIn);
  }
  EXPECT_GE(joins, 50);
  EXPECT_GT(elsewhere, 40) << "there was something to move";
  EXPECT_GT(page_ins, 100);
}

TEST_F(PlanJoinTest, WhatIsFreedAndNotKeptBackComesBackWhereItIsNeeded) {
  const Graph& graph = *recordings_[0]->graph;
  const CompiledPlan keeps = compiled(1, PlanBuilder(*recordings_[1]->graph).build());
  const CompiledPlan frees = compiled(0, greedyPlan(graph));
  const auto joined = joinPlans(frees, keeps, parting_);
  ASSERT_NE(joined, nullptr);
  EXPECT_GT(joined->schedule().countActions(ActionKind::kRecompute), 0);
  const int64_t at_most =
      simulate(*recordings_[1]->graph, keeps.schedule(), hostProfile()).peak_bytes;
  EXPECT_LE(joined->schedule().peak_bytes, at_most);
}

// Whatever the first plan keeps, the joined one has freed by the parting where the other has.
TEST_F(PlanJoinTest, WhatTheOtherPlanHasLetGoOfGoes) {
  const Graph& graph = *recordings_[1]->graph;
  const CompiledPlan keeps = compiled(0, PlanBuilder(*recordings_[0]->graph).build());
  const CompiledPlan frees = compiled(1, greedyPlan(graph));
  const auto joined = joinPlans(keeps, frees, parting_);
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(countFrees(joined->schedule(), parting_), 0);
  const auto& resident = joined->residentBytes();
  EXPECT_EQ(resident[parting_], frees.residentBytes()[parting_]);
  EXPECT_GT(resident[parting_ - 1], frees.residentBytes()[parting_ - 1]);
}

}  // namespace
}  // namespace poet::testing
