// PlanSource: which part of the planner a plan came from. Schedule::start holds its name.
#pragma once

#include <cstdint>
#include <string_view>

namespace poet::planner {

enum class PlanSource : uint8_t {
  kPlain,         // what every plan has, and nothing else
  kGiven,         // SolveOptions::starts
  kGreedy,        // greedy.h
  kForecast,      // greedy.h, by the forecast of all replays
  kDepthFirst,    // depth_first.h
  kGuidedGreedy,  // greedy.h, by what the relaxation at the peak drops
  kMoments,       // moments.h
  kRace,          // Note [Racing starts]
  kAnnealing,     // annealing.h, from the best plan by then
  kRelaxation,    // the rounded relaxation, or a walk from there
  kWindow,        // local_search.h
  kProgram,       // branch and cut over the candidates of the search
  kLeastPeak,     // a search for the least peak, which met the budget
  kExact,         // exact.h: branch and cut, or all states, over every replay
  kBound,         // the program of the bound over every schedule
  kAround,        // price_search.h: a walk around the best plan, looked at by the clock
};

constexpr std::string_view toString(PlanSource source) {
  switch (source) {
    case PlanSource::kPlain:
      return "plain step";
    case PlanSource::kGiven:
      return "given";
    case PlanSource::kGreedy:
      return "greedy";
    case PlanSource::kForecast:
      return "greedy by forecast";
    case PlanSource::kDepthFirst:
      return "depth first";
    case PlanSource::kGuidedGreedy:
      return "guided greedy";
    case PlanSource::kMoments:
      return "moments";
    case PlanSource::kRace:
      return "race";
    case PlanSource::kAnnealing:
      return "annealing";
    case PlanSource::kRelaxation:
      return "rounded relaxation";
    case PlanSource::kWindow:
      return "window";
    case PlanSource::kProgram:
      return "branch and cut";
    case PlanSource::kLeastPeak:
      return "least peak";
    case PlanSource::kExact:
      return "exact search";
    case PlanSource::kBound:
      return "bound over all";
    case PlanSource::kAround:
      return "around the best";
  }
  return "?";
}

}  // namespace poet::planner
