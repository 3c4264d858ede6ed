// A cap on the joules of a step, such as one step's share of a battery.
#pragma once

#include "graph/export.h"
#include "schedule/schedule.h"

namespace poet {

// Note [Energy budgets]
// A search for the least energy needs no row for a cap: it ends at the least that it finds, and
// with a bound. So a cap is held against both afterwards.
// - The plan keeps it: the schedule stays as it is.
// - A bound over all schedules lies above it: kInfeasible, which is a proof.
// - Neither: no plan is in hand, kTimeLimit. More time may find one.
// In the last two the plan is dropped and least_energy_joules says what it would have taken.
// What is infeasible, or without a plan, for another reason stays so.

// Returns the schedule with energy_budget_joules. Throws ArgumentError where `joules` is not a
// positive number, or the schedule has another objective: the best plan for time says nothing about
// the least energy.
POET_API Schedule withinEnergy(Schedule schedule, double joules);

}  // namespace poet
