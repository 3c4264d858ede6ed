// coop: evicts what lies side by side in memory, so that all of it makes one place.
// dtr_placed: DTR's evictions in the same memory, what coop is measured against.
//
// Paper: Zhang, Ma, Liu, Yuan, "Coop: Memory is not a Commodity", NeurIPS 2023 (arXiv 2311.00591):
// DTR frees bytes wherever its score says so, and a tensor needs them in one piece. (1) Sliding
// window: where no free block is large enough, evict the run of neighbours, free blocks between
// them included, that makes the needed bytes at the least sum of costs; two pointers find it in one
// sweep over the blocks, and what may not go breaks the run. A cost is DTR's without its division
// by bytes, which the window counts. (2) Cheap tensor partitioning: values of low cost density
// (seconds for a byte) are placed from one end of memory, dear ones from the other, so that windows
// hold values of like cost. (3) Recomputable in-place: parameters and buffers keep their places
// when they are updated.
//
// Chosen: the policy runs over the recorded step as dtr's does. The cost is that of h_DTR-eq by
// staleness, as in the authors' program. That program tells dear values by the names of their ops;
// here they are those above the step's mean density, and with them what may not leave. Bytes that
// are there for the whole step (parameters, buffers, what lies beside the step) are outside the
// memory that the policy manages, as if placed first: that is what (3) comes to in a recorded step,
// where an in-place op moves nothing. That program never evicts what an in-place op has written,
// gradients with it, which are zeroed so from step to step; here what outlives the step stays from
// when it is made. All else has a place while it is there, what no recipe makes too: the smallest
// free block that is large enough, as in that program. Of a workspace the bytes are recorded, and
// not in how many pieces an op asks for them: it takes what is free, and a window for what that
// lacks.
//
// The addresses are the policy's own: the step's allocator knows nothing of them, and the plan's
// peak is the simulator's. So where holes make the policy fail it is given more memory than the
// budget, and where no memory gives a plan it runs again and what finds no window lies in pieces.
// Schedule::message tells how much of the policy's memory is free behind evictions (the authors'
// measure of fragmentation), and how often something lay in pieces.
//
// dtr_placed differs in two things, as the authors' baseline does: everything is placed from one
// end, and the value with the least h_DTR-eq goes, one after the other, until what is wanted has a
// place.
//
// Bound: none. Weakness: dtr's; besides, gradients and what else may not leave come late, into the
// holes that there are, and split memory from then on.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "graph/error.h"
#include "methods/address_space.h"
#include "methods/every_method.h"
#include "methods/policy_run.h"

namespace poet::methods {
namespace {

using planner::Asked;
using planner::Fixed;
using planner::Problem;
using planner::Replay;
using End = AddressSpace::End;
using Fit = AddressSpace::Fit;

// What no plan can take away, by the stages in which it is there.
struct Stay {
  int from = 0;
  int until = -1;
};

Stay stayOf(const Problem& problem, const Fixed& fixed) {
  const Value& value = problem.graph().value(fixed.id);
  const int64_t death = std::min<int64_t>(value.death.index, problem.endStage());
  return {.from = value.producer.valid() ? static_cast<int>(value.producer.index) : 0,
          .until = std::max(static_cast<int>(death), fixed.hold_stage)};
}

bool isThereThroughout(const Problem& problem, const Fixed& fixed) {
  return !problem.graph().value(fixed.id).producer.valid() &&
         stayOf(problem, fixed).until == problem.endStage();
}

int64_t bytesOutside(const Problem& problem) {
  int64_t bytes = problem.graph().baseBytes();
  for (const Fixed& fixed : problem.fixed) {
    if (isThereThroughout(problem, fixed)) bytes += fixed.bytes;
  }
  return bytes;
}

// What happens where neither a free block nor a window is large enough.
enum class Holes {
  kFail,   // the policy is out of memory
  kFilled  // the value lies in pieces
};

enum class Evicts { kWindows, kOneByOne };

class Coop : public PolicyRun {
 public:
  Coop(const Problem& problem, const Asked& asked, int64_t budget_bytes, Evicts evicts, Holes holes)
      : PolicyRun(problem, asked, DtrCost::kComponents),
        space_(budget_bytes - bytesOutside(problem)),
        evicts_(evicts),
        holes_(holes),
        coming_(problem.stages.size()),
        going_(problem.stages.size()) {
    for (size_t i = 0; i < problem.fixed.size(); ++i) {
      const Stay stay = stayOf(problem, problem.fixed[i]);
      if (stay.until < stay.from || isThereThroughout(problem, problem.fixed[i])) continue;
      coming_[at(stay.from)].push_back(static_cast<int>(i));
      going_[at(stay.until)].push_back(static_cast<int>(i));
    }
    double seconds = 0, bytes = 0;
    for (const Replay& replay : problem.replays) {
      seconds += replay.seconds;
      bytes += outputBytes(replay);
    }
    mean_density_ = seconds / std::max(1.0, bytes);
  }

  std::string note() const override {
    if (evictions_ == 0) return "";
    const auto percent = [](double share) { return std::round(1000 * share) / 10; };
    std::string text = detail::message(
        "fragmentation of the policy's memory: ", percent(free_shares_ / evictions_),
        " % on average, ", percent(worst_share_), " % at worst");
    if (in_pieces_ > 0) text += detail::message("; ", in_pieces_, " times in pieces");
    return text;
  }

 private:
  bool makeRoomForOp() override {
    for (const int i : coming_[at(stageIndex())]) {
      if (!place(ownerOf(i), problem().fixed[at(i)].bytes, End::kHigh)) return false;
    }
    for (const int v : stage().born) {
      if (!placeValue(v)) return false;
    }
    if (stage().op == problem().graph().endOfStep()) return true;
    return placeInPieces(scratch(), problem().graph().op(stage().op).workspace_bytes, End::kHigh);
  }

  // What is there already is made afresh as well, beside the one that is there.
  bool makeRoomForReplay(const Replay& replay) override {
    int64_t rest = replay.replay_bytes;
    for (const int v : replay.outputs) {
      if (there(v)) continue;
      rest -= value(v).bytes;
      if (!placeValue(v)) return false;
    }
    return placeInPieces(scratch(), rest, End::kHigh);
  }

  void replayDone() override { space_.free(scratch()); }

  void opDone() override {
    space_.free(scratch());
    for (const int i : going_[at(stageIndex())]) space_.free(ownerOf(i));
  }

  void departed(int v) override { space_.free(v); }

  // Owners: values, then fixed ones, then what runs, for what it needs beside its outputs.
  int ownerOf(int fixed) const { return problem().numValues() + fixed; }
  int scratch() const { return ownerOf(static_cast<int>(problem().fixed.size())); }

  bool placeValue(int v) {
    const Replay& replay = recipeOf(v);
    const bool is_dear = replay.seconds > mean_density_ * outputBytes(replay);
    return place(v, value(v).bytes, is_dear || stays(v) ? End::kHigh : End::kLow);
  }

  bool stays(int v) const { return !mayLeave(v) || value(v).at_end; }
  bool mayGo(int v) const { return mayBeEvicted(v) && !stays(v); }

  bool place(int owner, int64_t bytes, End end) {
    if (placeInOnePiece(owner, bytes, end)) return true;
    if (holes_ == Holes::kFail) return false;
    ++in_pieces_;
    return placeInPieces(owner, bytes, end);
  }

  // The largest free blocks, and windows for what they lack; where none is as large as that, one
  // value after the other goes.
  bool placeInPieces(int owner, int64_t bytes, End end) {
    while (bytes > 0) {
      int64_t piece = std::min(bytes, space_.largestFree());
      if (piece == 0) piece = bytes;
      if (!placeInOnePiece(owner, piece, end)) {
        piece = 1;
        if (!placeInOnePiece(owner, piece, end)) return false;
      }
      bytes -= piece;
    }
    return true;
  }

  bool placeInOnePiece(int owner, int64_t bytes, End end) {
    if (evicts_ == Evicts::kOneByOne) end = End::kLow;
    if (space_.allocate(owner, bytes, end, Fit::kBest)) return true;
    if (evicts_ == Evicts::kWindows && !evictWindow(bytes)) return false;
    while (!space_.allocate(owner, bytes, end, Fit::kBest)) {
      POET_INTERNAL_ASSERT(evicts_ == Evicts::kOneByOne, "a window of less than ", bytes, " bytes");
      if (!evictLeast()) return false;
    }
    noteFragmentation();
    return true;
  }

  bool evictWindow(int64_t bytes) {
    const std::vector<int> window = space_.cheapestWindow(bytes, [&](int v) {
      if (v >= problem().numValues() || !mayGo(v)) return -1.0;
      return scores().costOf(v) / scores().stalenessOf(v, clock());
    });
    for (const int v : window) {
      if (there(v)) evict(v);  // one in pieces may be met twice
    }
    return !window.empty();
  }

  bool evictLeast() {
    int best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (int v = 0; v < problem().numValues(); ++v) {
      if (!mayGo(v) || value(v).bytes == 0) continue;
      const double h = scores().scoreOf(v, value(v).bytes, clock());
      if (h >= least) continue;
      least = h;
      best = v;
    }
    if (best >= 0) evict(best);
    return best >= 0;
  }

  void noteFragmentation() {
    const double share =
        static_cast<double>(space_.freeBytes()) / static_cast<double>(space_.bytes());
    worst_share_ = std::max(worst_share_, share);
    free_shares_ += share;
    ++evictions_;
  }

  double outputBytes(const Replay& replay) const {
    double bytes = 0;
    for (const int v : replay.outputs) bytes += static_cast<double>(value(v).bytes);
    return bytes;
  }

  AddressSpace space_;
  const Evicts evicts_;
  const Holes holes_;
  std::vector<std::vector<int>> coming_, going_;  // by stage: fixed values
  double mean_density_ = 0;                       // seconds for a byte
  double free_shares_ = 0;
  double worst_share_ = 0;
  int evictions_ = 0;
  int in_pieces_ = 0;
};

Schedule planPlaced(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                    const char* name, Evicts evicts) {
  const auto with = [evicts](Holes holes) {
    return [evicts, holes](const Problem& problem, const Asked& asked, int64_t budget) {
      return std::make_unique<Coop>(problem, asked, budget, evicts, holes);
    };
  };
  return planByPolicy(graph, profile, options, name, {with(Holes::kFail), with(Holes::kFilled)});
}

}  // namespace

Schedule planCoop(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options) {
  return planPlaced(graph, profile, options, "coop", Evicts::kWindows);
}

Schedule planDtrPlaced(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options) {
  return planPlaced(graph, profile, options, "dtr_placed", Evicts::kOneByOne);
}

}  // namespace poet::methods
