// The dynamic program over a heterogeneous chain that rotor and pofo share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "methods/chain_schedule.h"
#include "methods/forward_chain.h"
#include "planner/planner.h"
#include "planner/problem.h"

namespace poet::methods {

// Note [The program of a chain]
// cost(s, t, m): least cost of the backwards of links t ... s, with x_{s-1} in memory and m bytes
// for all but that, when the backward of link t is next. Beaumont et al. (2019), theorem 1:
//   cost(t, t, m) = all(t)                            link t forward once more, its backward
//   cost(s, t, m) = min of
//     min over s < k <= t: sum of none(s ... k-1) + cost(k, t, m - x_{k-1}) + cost(s, k-1, m)
//     all(s) + cost(s+1, t, m - kept(s))              then the backward of s at once
// The step's own forward is the same with t = n and forwards for nothing. A term stands where m
// holds what happens meanwhile: replays and first executions with their workspaces, and what is
// resident in those stages whatever the plan. `m` is what the budget leaves, in kSlots steps.
//
// With offload (pofo) x_{k-1} and what link s keeps may lie in the store while the links behind
// them run, at the price of their transfers.
struct ChainProgramOptions {
  int64_t budget_bytes = 0;
  bool offload = false;
  // Of a transfer's seconds, what computation beside it does not hide; in [0, 1].
  double transfer_share = 1;
};

inline constexpr size_t kMostChainLinks = 100;
inline constexpr int kChainSlots = 500;

class ChainProgram {
 public:
  ChainProgram(const planner::Problem& problem, const Chain& chain,
               const ChainProgramOptions& options);

  // The cheapest schedule with `reserve_slots` slots of the memory left alone; nullopt where there
  // is none. `prefetch`: what comes back from the store sets out one link's backward earlier, for
  // which the program has no memory.
  std::optional<std::vector<Step>> steps(int reserve_slots, bool prefetch) const;
  // In seconds of plain computation; infinite where there is none.
  double cost(int reserve_slots) const;
  // The most slots that can be left alone; -1: there is no schedule at all.
  int mostReserve() const;
  int64_t slotBytes() const { return slot_bytes_; }

 private:
  // Of one link.
  struct Facts {
    int64_t boundary_bytes = 0;                          // x_i
    int64_t kept_bytes = 0;                              // what its backward reads of it, and x_i
    double none_cost = 0, all_cost = 0, last_cost = 0;   // of replays: x_i; kept; kept without x_i
    int64_t none_peak = 0, all_peak = 0, last_peak = 0;  // likewise, bytes beside x_{i-1}
    int64_t first_none_peak = 0, first_all_peak = 0;     // first execution, what is fixed included
    int64_t backward_peak = 0;                           // its backward, likewise
    int64_t fixed_bytes = 0;                             // when its backward begins
    double boundary_page_cost = 0, kept_page_cost = 0;
    bool boundary_pages = false, kept_pages = false;
  };
  struct Entry {
    float cost = 0;
    int16_t choice = 0;  // k; kAll; kLeaf
  };

  void findOthers();
  Facts factsOf(size_t i) const;
  void addReplays(Facts& facts, size_t i) const;
  void addFirst(Facts& facts, size_t i) const;
  void addBackward(Facts& facts, size_t i) const;
  void addPages(Facts& facts, size_t i) const;
  std::vector<int> keptOf(size_t i) const;
  int slots(int64_t bytes) const;
  int64_t room(int used) const { return options_.budget_bytes - used * slot_bytes_; }

  void solveReplays();
  void solveFirst();
  Entry bestReplay(int s, int t, int used) const;
  Entry bestFirst(int s, bool away, int used) const;
  const Entry& entry(int s, int t, int used) const;
  const Entry& firstEntry(int s, bool away, int used) const;
  void writeReplays(int s, int t, int used, std::vector<Step>& steps) const;
  void writeFirst(int s, bool away, int used, bool prefetch, std::vector<Step>& steps) const;

  const planner::Problem& problem_;
  const Chain& chain_;
  const ChainProgramOptions options_;
  int n_ = 0;
  int64_t slot_bytes_ = 1;
  int num_slots_ = 0;
  std::vector<int64_t>
      other_bytes_;  // by stage: of values of no link, as plain training holds them
  std::vector<Facts> facts_;
  std::vector<Entry> replays_;  // (s, t) by slots used
  std::vector<Entry> first_;    // (s, x_{s-1} in the store) by slots used
};

// The method as a whole: the program for all chains of the step, and the most memory for which the
// simulator finds its schedule within the budget.
Schedule planChains(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                    const std::string& method, bool offload);

}  // namespace poet::methods
