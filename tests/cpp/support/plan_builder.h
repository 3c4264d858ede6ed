// Schedules by hand: PlanBuilder(graph).before(3).free(a).recompute({0,
// 1}).after(2).retain(b).build()
#pragma once

#include <initializer_list>
#include <vector>

#include "graph/graph.h"
#include "schedule/schedule.h"

namespace poet::testing {

class PlanBuilder {
 public:
  explicit PlanBuilder(const Graph& graph) {
    schedule_.graph_signature = graph.signature();
    schedule_.num_ops = graph.numOps();
    schedule_.status = Status::kFeasible;
    schedule_.before.resize(static_cast<size_t>(graph.numOps()) + 1);
    schedule_.after.resize(static_cast<size_t>(graph.numOps()));
  }

  PlanBuilder& before(int64_t op) {
    here_ = &schedule_.before.at(static_cast<size_t>(op));
    return *this;
  }
  PlanBuilder& after(int64_t op) {
    here_ = &schedule_.after.at(static_cast<size_t>(op));
    return *this;
  }
  PlanBuilder& free(ValueId v) { return add(ActionKind::kFree, v.index); }
  PlanBuilder& retain(ValueId v) { return add(ActionKind::kRetain, v.index); }
  PlanBuilder& pageOut(ValueId v) { return add(ActionKind::kPageOut, v.index); }
  PlanBuilder& pageIn(ValueId v) { return add(ActionKind::kPageIn, v.index); }
  PlanBuilder& awayBetweenSteps(ValueId v) {
    schedule_.away_between_steps.push_back(v);
    return *this;
  }
  PlanBuilder& recompute(std::initializer_list<int64_t> ops) {
    std::vector<OpId> chain;
    for (int64_t op : ops) chain.emplace_back(op);
    return recompute(chain);
  }
  PlanBuilder& recompute(const std::vector<OpId>& chain) {
    schedule_.recipes.push_back(chain);
    return add(ActionKind::kRecompute, static_cast<int32_t>(schedule_.recipes.size()) - 1);
  }
  PlanBuilder& add(ActionKind kind, int32_t arg) {
    here_->push_back({kind, arg});
    return *this;
  }

  Schedule build() const { return schedule_; }

 private:
  Schedule schedule_;
  std::vector<Action>* here_ = nullptr;
};

}  // namespace poet::testing
