// The methods that poet can plan with, behind one interface: graph + device + budgets -> Schedule.
#pragma once

#include <string_view>
#include <vector>

#include "planner/planner.h"

namespace poet {

// What a method can do: declared here, in one place, and shown to users as it stands
// (`poet.methods()`). The columns are those of Table 1 of POET (Patil et al., ICML 2022), and more.
struct MethodTraits {
  bool general_graphs = true;  // false: it linearises the step at its cut vertices
  bool recomputes = false;
  bool pages = false;          // needs a store
  bool compute_aware = false;  // knows that ops take different times
  bool memory_aware = false;   // looks for a plan within the budget; false: has one plan
  bool power_aware = false;    // makes energy small
  bool deadline = false;       // plans for the runtime budget; false: what misses it is no plan
  bool in_place = true;        // takes steps with in-place ops
  bool online = false;         // decides in running order, without looking ahead
  bool live = false;           // poet.wrap trains by its policy, without a plan
  bool executes = true;        // poet.wrap trains with its plans, or live
  bool least_memory = true;    // takes Objective::kMemory; false: refused
};

struct Method {
  std::string_view name;
  std::string_view source;   // authors and year
  std::string_view summary;  // one sentence
  MethodTraits traits;
  // Throws ArgumentError for options that the method cannot honour.
  Schedule (*plan)(const Graph&, const DeviceProfile&, const SolveOptions&,
                   const IncumbentCallback&, const ProgressCallback&);
};

// "poet" first, then as the README of this folder lists them.
POET_API const std::vector<Method>& allMethods();
// Throws ArgumentError that names what is known.
POET_API const Method& methodByName(std::string_view name);

// Throws ArgumentError where the method does not make that small.
POET_API void checkObjective(const Method& method, Objective minimize);

// Throws ArgumentError where the method cannot honour the options at all (nothing may be paged, and
// it does nothing else ...). planWith() begins with it.
POET_API void checkMethod(const DeviceProfile& profile, const SolveOptions& options);

// Plans with SolveOptions::method, and never with another one: Schedule::method says which it was.
// Outcomes are Schedule::status; without a plan Schedule::least_ram_budget says what the method
// needs, where it knows. Throws ArgumentError where options make no sense for the method.
POET_API Schedule planWith(const Graph& graph, const DeviceProfile& profile,
                           const SolveOptions& options, const IncumbentCallback& on_incumbent = {},
                           const ProgressCallback& on_progress = {});

}  // namespace poet
