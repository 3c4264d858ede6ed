#include "schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/error.h"
#include "support/corruption.h"
#include "support/graph_builder.h"
#include "support/plan_builder.h"
#include "support/random_graph.h"
#include "support/random_plan.h"
#include "support/temporary_folder.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

GraphBuilder threeOpGraph() {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("relu").reads({x}).makes(10);
  g.op("relu_").writes({a});
  g.op("sum").reads({a}).makes(1);
  return g;
}

Schedule scheduleWithEverything(const Graph& graph) {
  Schedule s = PlanBuilder(graph)
                   .before(2)
                   .free(ValueId(1))
                   .recompute({0, 1})
                   .after(2)
                   .retain(ValueId(1))
                   .before(3)
                   .free(ValueId(1))
                   .build();
  s.method = "poet";
  s.status = Status::kOptimal;
  s.objective = Objective::kTime;
  s.ram_budget_bytes = (int64_t{1} << 53) + 1;
  s.runtime_budget_seconds = 0.1;
  s.peak_bytes = 123;
  s.peak_op = OpId(3);
  s.makespan_seconds = 1.0 / 3.0;
  s.energy_joules = 1e-300;
  s.bound = 0.3;
  s.gap = 0.0;
  s.bound_scope = "all";
  s.bound_all = 0.2;
  s.believed_peak_bytes = 124;
  s.believed_seconds = 0.25;
  s.solve_seconds = 12.5;
  s.least_ram_budget = 99;
  s.least_ram_op = OpId(1);
  s.energy_budget_joules = 0.7;
  s.least_energy_joules = 1.0 / 7;
  s.message = "two \"words\" é\n";
  s.start = "window; starts: poet";
  return s;
}

// Actions with the ops of their recipe spelled out: indices of recipes may differ between equal
// plans.
std::vector<std::vector<int64_t>> spelledOut(const Schedule& s) {
  std::vector<std::vector<int64_t>> result;
  const auto put = [&](int64_t when, const std::vector<std::vector<Action>>& lists) {
    for (size_t k = 0; k < lists.size(); ++k) {
      for (const Action& action : lists[k]) {
        auto& entry = result.emplace_back(
            std::vector<int64_t>{when, static_cast<int64_t>(k), static_cast<int64_t>(action.kind)});
        if (action.kind != ActionKind::kRecompute) {
          entry.push_back(action.arg);
          continue;
        }
        for (OpId op : s.recipes[static_cast<size_t>(action.arg)]) entry.push_back(op.index);
      }
    }
  };
  put(0, s.before);
  put(1, s.after);
  return result;
}

void expectSame(const Schedule& a, const Schedule& b) {
  EXPECT_EQ(a.graph_signature, b.graph_signature);
  EXPECT_EQ(a.num_ops, b.num_ops);
  EXPECT_EQ(a.method, b.method);
  EXPECT_EQ(a.status, b.status);
  EXPECT_EQ(a.objective, b.objective);
  EXPECT_EQ(a.ram_budget_bytes, b.ram_budget_bytes);
  EXPECT_EQ(a.runtime_budget_seconds, b.runtime_budget_seconds);
  EXPECT_EQ(spelledOut(a), spelledOut(b));
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
  EXPECT_EQ(a.peak_op, b.peak_op);
  EXPECT_EQ(a.makespan_seconds, b.makespan_seconds);
  EXPECT_EQ(a.energy_joules, b.energy_joules);
  EXPECT_EQ(a.bound, b.bound);
  EXPECT_EQ(a.gap, b.gap);
  EXPECT_EQ(a.bound_scope, b.bound_scope);
  EXPECT_EQ(a.bound_all, b.bound_all);
  EXPECT_EQ(a.believed_peak_bytes, b.believed_peak_bytes);
  EXPECT_EQ(a.believed_seconds, b.believed_seconds);
  EXPECT_EQ(a.solve_seconds, b.solve_seconds);
  EXPECT_EQ(a.least_ram_budget, b.least_ram_budget);
  EXPECT_EQ(a.least_ram_op, b.least_ram_op);
  EXPECT_EQ(a.energy_budget_joules, b.energy_budget_joules);
  EXPECT_EQ(a.least_energy_joules, b.least_energy_joules);
  EXPECT_EQ(a.message, b.message);
  EXPECT_EQ(a.start, b.start);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

template <class Matcher>
void expectScheduleRefused(const std::string& text, const Matcher& says) {
  EXPECT_THAT([&] { Schedule::fromJson(text); }, ThrowsMessage<FormatError>(says))
      << text.substr(0, 400);
}

TEST(Schedule, FilesOfOlderVersionsNameNoStart) {
  const Graph graph = threeOpGraph().build();
  const Schedule whole = scheduleWithEverything(graph);
  Schedule older = whole;
  older.start = "";
  EXPECT_EQ(older.toJson(), replaced(whole.toJson(), "\"start\": \"window; starts: poet\",\n", ""));
  expectSame(Schedule::fromJson(older.toJson()), older);
}

TEST(Schedule, BesideMoreHasGreaterFiguresInBytesAlone) {
  Schedule schedule;
  schedule.peak_bytes = schedule.believed_peak_bytes = 1000;
  schedule.least_ram_budget = 900;
  schedule.bound = schedule.bound_all = 500;
  schedule.gap = 0.5;
  schedule.history = {{1.0, 1000.0, 500.0}};
  const Schedule of_energy = schedule.besideMore(1000);
  EXPECT_EQ(of_energy.peak_bytes, 2000);
  EXPECT_EQ(of_energy.believed_peak_bytes, 2000);
  EXPECT_EQ(of_energy.least_ram_budget, 1900);
  EXPECT_EQ(of_energy.bound, 500);
  EXPECT_EQ(of_energy.history, schedule.history);
  schedule.objective = Objective::kMemory;
  const Schedule of_memory = schedule.besideMore(1000);
  EXPECT_EQ(of_memory.bound, 1500);
  EXPECT_EQ(of_memory.bound_all, 1500);
  EXPECT_EQ(of_memory.gap, 0.25);
  EXPECT_EQ(of_memory.history, (std::vector<SearchPoint>{{1.0, 2000.0, 1500.0}}));
}

TEST(ScheduleJson, KeepsEveryFieldToTheBit) {
  const Schedule schedule = scheduleWithEverything(threeOpGraph().build());
  expectSame(schedule, Schedule::fromJson(schedule.toJson()));
}

TEST(ScheduleJson, KeepsASolveWithoutAPlan) {
  Schedule schedule;
  schedule.num_ops = 800;
  schedule.status = Status::kInfeasible;
  schedule.least_ram_budget = 1;
  const Schedule back = Schedule::fromJson(schedule.toJson());
  expectSame(schedule, back);
  EXPECT_TRUE(back.before.empty());
  EXPECT_TRUE(back.after.empty());
  EXPECT_EQ(back.bound, std::nullopt);
  EXPECT_EQ(back.ram_budget_bytes, std::nullopt);
}

TEST(ScheduleJson, KeepsThePlanOfTheLeastBudget) {
  const Graph graph = threeOpGraph().build();
  const Schedule plan = scheduleWithEverything(graph);
  Schedule none;
  none.graph_signature = plan.graph_signature;
  none.num_ops = plan.num_ops;
  none.status = Status::kInfeasible;
  none.least_ram_budget = plan.peak_bytes;
  none.least_plan = std::make_shared<const Schedule>(plan);
  const std::string text = none.toJson();
  const Schedule back = Schedule::fromJson(text);
  expectSame(back, none);
  ASSERT_TRUE(back.least_plan);
  expectSame(*back.least_plan, plan);

  Schedule nested = none;
  nested.least_plan = std::make_shared<const Schedule>(none);
  expectScheduleRefused(nested.toJson(), HasSubstr("schedule.least_plan: expected a plan"));
  Schedule beside = plan;
  beside.least_plan = none.least_plan;
  expectScheduleRefused(beside.toJson(), HasSubstr("expected none beside a plan"));
  Schedule other = none;
  other.graph_signature += 1;
  expectScheduleRefused(other.toJson(), HasSubstr("expected a plan of the same graph"));
  const size_t at = text.find("\"least_plan\": ");
  expectScheduleRefused(text.substr(0, at) + "\"least_plan\": 3,\n\"actions\": []}",
                        HasSubstr("schedule.least_plan: expected a plan"));
}

TEST(ScheduleJson, GivesAPlanItsListsEvenWhereItHasNoActions) {
  Schedule schedule;
  schedule.num_ops = 5;
  schedule.status = Status::kFeasible;
  const Schedule back = Schedule::fromJson(schedule.toJson());
  EXPECT_EQ(back.before.size(), 6u);
  EXPECT_EQ(back.after.size(), 5u);
}

TEST(ScheduleJson, KeepsRandomPlansAndSharesEqualRecipes) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Graph graph = randomGraph(seed);
    Random random(seed);
    const Schedule schedule = randomPlan(graph, RecipeTable(graph), random);
    const Schedule back = Schedule::fromJson(schedule.toJson());
    expectSame(schedule, back);
    EXPECT_EQ(back.toJson(), schedule.toJson());
    for (size_t i = 0; i < back.recipes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_NE(back.recipes[i], back.recipes[j]);
    }
    back.checkAgainst(graph);
  }
}

TEST(ScheduleJson, IsAFlatListOfActionsForPeople) {
  const std::string text = scheduleWithEverything(threeOpGraph().build()).toJson();
  EXPECT_THAT(text, HasSubstr(R"({"at":2,"when":"before","do":"free","value":1})"));
  EXPECT_THAT(text, HasSubstr(R"({"at":2,"when":"before","do":"recompute","ops":[0,1]})"));
  EXPECT_THAT(text, HasSubstr(R"({"at":2,"when":"after","do":"retain","value":1})"));
}

TEST(ScheduleJson, DoesNotWriteWhatItCouldNotRead) {
  const Graph graph = threeOpGraph().build();
  const auto expectUnwritable = [&](auto spoil, const char* says) {
    Schedule schedule = scheduleWithEverything(graph);
    spoil(schedule);
    EXPECT_THAT([&] { schedule.toJson(); }, ThrowsMessage<ScheduleError>(HasSubstr(says)));
  };
  expectUnwritable([](Schedule& s) { s.bound = std::nan(""); }, "bound: expected a finite number");
  expectUnwritable([](Schedule& s) { s.energy_joules = HUGE_VAL; }, "energy_joules");
  expectUnwritable([](Schedule& s) { s.num_ops = -1; }, "num_ops");
  expectUnwritable([](Schedule& s) { s.num_ops = 4; }, "expected 5 lists");
  expectUnwritable([](Schedule& s) { s.after.pop_back(); }, "got 4 and 2");
  expectUnwritable([](Schedule& s) { s.status = Status::kTimeLimit; }, "time_limit");
  expectUnwritable([](Schedule& s) { s.recipes.clear(); }, "recipe index");
  expectUnwritable([](Schedule& s) { s.recipes[0].clear(); },
                   "recipes[0]: expected at least one op");
  expectUnwritable([](Schedule& s) { s.recipes[0][1] = OpId(0); },
                   "recipes[0]: expected ascending ops");
  expectUnwritable([](Schedule& s) { s.recipes[0][1] = OpId(3); },
                   "recipes[0]: expected op indices in [0, 3)");
  expectUnwritable([](Schedule& s) { s.before[2][0].arg = -1; },
                   "before[2]: free: expected a value index, got -1");
}

TEST(ScheduleJson, SaysWhichVersionsItReads) {
  const std::string text = scheduleWithEverything(threeOpGraph().build()).toJson();
  expectScheduleRefused(replaced(text, "\"version\": 1", "\"version\": 7"),
                        AllOf(HasSubstr("version 7 cannot be read"), HasSubstr("reads version 1")));
  expectScheduleRefused(replaced(text, "poet-schedule", "poet-graph"),
                        HasSubstr("this is not a poet-schedule file"));
}

TEST(ScheduleJson, RejectsAHugeStepWithoutAllocatingForIt) {
  const std::string text = scheduleWithEverything(threeOpGraph().build()).toJson();
  for (const char* huge : {"1000000000000", "2147483647", "9223372036854775807",
                           "18446744073709551616", "1e12", "-1"}) {
    expectScheduleRefused(replaced(text, "\"num_ops\": 3", std::string("\"num_ops\": ") + huge),
                          HasSubstr("schedule.num_ops"));
  }
}

TEST(ScheduleJson, NamesTheFieldThatIsWrong) {
  const std::string text = scheduleWithEverything(threeOpGraph().build()).toJson();
  const auto refused = [&](const char* from, const char* to, const char* says) {
    expectScheduleRefused(replaced(text, from, to), HasSubstr(says));
  };
  refused("\"at\":2", "\"at\":4", "actions[0].at: expected an integer in [0, 3], got 4");
  refused("\"at\":2,\"when\":\"after\"", "\"at\":3,\"when\":\"after\"",
          "expected an integer in [0, 2], got 3");
  refused("\"at\":2", "\"at\":-1", "actions[0].at");
  refused("\"when\":\"before\"", "\"when\":\"during\"",
          "actions[0].when: expected \"before\" or \"after\"");
  refused("\"do\":\"free\"", "\"do\":\"drop\"",
          "actions[0].do: expected one of \"free\", \"recompute\", \"retain\", "
          "\"page_out\", \"page_in\"");
  refused("\"value\":1", "\"value\":-1", "actions[0].value");
  refused("\"value\":1", "\"value\":1,\"ops\":[0]", "unknown field \"ops\"");
  refused("\"value\":1", "\"value\":2147483648", "actions[0].value");
  refused("\"ops\":[0,1]", "\"ops\":[0,3]", "actions[1].ops: expected an integer in [0, 2], got 3");
  refused("\"ops\":[0,1]", "\"ops\":[]", "expected at least one op");
  refused("\"ops\":[0,1]", "\"ops\":[1,0]", "expected ascending ops");
  refused("\"ops\":[0,1]", "\"ops\":[0,0]", "expected ascending ops");
  refused("\"ops\":[0,1]", "\"value\":0", "\"ops\" is missing");
  refused("\"status\": \"optimal\"", "\"status\": \"best\"", "schedule.status");
  refused("\"status\": \"optimal\"", "\"status\": \"infeasible\"", "actions: expected none");
  refused("\"objective\": \"time\"", "\"objective\": \"money\"", "schedule.objective");
  refused("\"peak_bytes\": 123", "\"peak_bytes\": -123", "schedule.peak_bytes");
  refused("\"peak_op\": 3", "\"peak_op\": 4", "schedule.peak_op");
  refused("\"gap\": 0.0", "\"gap\": null", "schedule.gap: expected a number, got null");
  refused("\"gap\": 0.0", "\"gap\": 1e999", "schedule: ");
  refused("\"solve_seconds\": 12.5", "\"solve_seconds\": -1",
          "schedule.solve_seconds: expected a number >= 0");
  refused("\"message\": ", "\"massage\": ", "\"message\" is missing");
  refused("\"message\": ", "\"note\": 1, \"message\": ", "unknown field \"note\"");
}

TEST(ScheduleJson, RejectsTheDocumentCutShortAnywhere) {
  const std::string text = scheduleWithEverything(threeOpGraph().build()).toJson();
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_THAT([&] { Schedule::fromJson(std::string_view(text).substr(0, length)); },
                ThrowsMessage<FormatError>(HasSubstr("schedule: not valid JSON, or cut short")));
  }
}

TEST(ScheduleJson, SurvivesRandomDamage) {
  int64_t readable = 0;
  int64_t refused = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Graph graph = randomGraph(seed);
    Random random(seed);
    const std::string text = randomPlan(graph, RecipeTable(graph), random).toJson();
    for (uint64_t round = 0; round < 150; ++round) {
      try {
        const Schedule schedule = Schedule::fromJson(corrupted(text, seed * 1000 + round));
        expectSame(schedule, Schedule::fromJson(schedule.toJson()));
        ++readable;
      } catch (const FormatError&) {
        ++refused;
      }  // anything else ends the test
    }
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(readable, 10);
}

TEST(ScheduleFile, IsReadBackAndNamedInErrors) {
  const TemporaryFolder folder;
  const Schedule schedule = scheduleWithEverything(threeOpGraph().build());
  schedule.save(folder / "plan.json");
  expectSame(schedule, Schedule::load(folder / "plan.json"));
  folder.write("cut.json", schedule.toJson().substr(0, 200));
  EXPECT_THAT([&] { Schedule::load(folder / "cut.json"); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("cut.json"), HasSubstr("cut short"))));
  EXPECT_THAT([&] { Schedule::load(folder / "none.json"); },
              ThrowsMessage<Error>(HasSubstr("none.json")));
}

// ---- against a graph --------------------------------------------------------------------------

TEST(ScheduleCheck, NamesBothSignatures) {
  const Graph mine(threeOpGraph().ops, threeOpGraph().valuesWithDeaths(), 0, 0xabc);
  const Graph other(threeOpGraph().ops, threeOpGraph().valuesWithDeaths(), 0, 0xdef);
  EXPECT_NO_THROW(scheduleWithEverything(mine).checkAgainst(mine));
  EXPECT_THAT(
      [&] { scheduleWithEverything(mine).checkAgainst(other); },
      ThrowsMessage<ScheduleError>(AllOf(HasSubstr("another graph"), HasSubstr("0000000000000abc"),
                                         HasSubstr("0000000000000def"))));
}

TEST(ScheduleCheck, RejectsWhatDoesNotFitTheGraph) {
  const Graph graph = threeOpGraph().build();
  const auto refused = [&](auto spoil, const char* says) {
    Schedule schedule = scheduleWithEverything(graph);
    spoil(schedule);
    EXPECT_THAT([&] { schedule.checkAgainst(graph); },
                ThrowsMessage<ScheduleError>(HasSubstr(says)));
  };
  refused([](Schedule& s) { s.num_ops = 4; }, "a graph of 4 ops, and this one has 3");
  refused([](Schedule& s) { s.before.pop_back(); },
          "expected 4 lists of actions before and 3 after");
  refused([](Schedule& s) { s.after.clear(); }, "got 4 and 0");
  refused([](Schedule& s) { s.before[2][0].arg = 3; },
          "before[2]: free: expected a value index in [0, 3), got 3");
  refused([](Schedule& s) { s.before[2][0].arg = -1; }, "got -1");
  refused([](Schedule& s) { s.before[2][1].arg = 1; },
          "recompute: expected a recipe index in [0, 1), got 1");
  refused([](Schedule& s) { s.recipes[0][1] = OpId(3); },
          "recipes[0]: expected op indices in [0, 3), got 3");
  refused([](Schedule& s) { s.recipes[0][0] = kNoOp; }, "recipes[0]");
}

TEST(ScheduleNames, AreThoseOfTheInterface) {
  EXPECT_EQ(toString(Status::kOptimal), "optimal");
  EXPECT_EQ(toString(Status::kFeasible), "feasible");
  EXPECT_EQ(toString(Status::kInfeasible), "infeasible");
  EXPECT_EQ(toString(Status::kTimeLimit), "time_limit");
  for (Objective each : {Objective::kEnergy, Objective::kTime, Objective::kMemory}) {
    EXPECT_EQ(objectiveFromString(toString(each)), each);
  }
  EXPECT_THAT(
      [] { objectiveFromString("speed"); },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr("\"energy\""), HasSubstr("got \"speed\""))));
}

TEST(ScheduleActions, AreCountedByKind) {
  const Schedule schedule = scheduleWithEverything(threeOpGraph().build());
  EXPECT_EQ(schedule.countActions(ActionKind::kFree), 2);
  EXPECT_EQ(schedule.countActions(ActionKind::kRecompute), 1);
  EXPECT_EQ(schedule.countActions(ActionKind::kRetain), 1);
  EXPECT_EQ(schedule.countActions(ActionKind::kPageOut), 0);
}

}  // namespace
}  // namespace poet::testing
