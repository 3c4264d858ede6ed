// A schedule as one list of events in the order in which they happen, with the bytes that each
// needs: what the timing of transfers works on.
#pragma once

#include <cstdint>
#include <vector>

#include "device/profile.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace poet::planner {

struct Event {
  // An action, the first execution of an op, or the natural deaths behind one.
  static constexpr int kOp = -1, kDeaths = -2;

  int kind = kOp;     // an ActionKind, or one of those above
  int32_t arg = 0;    // as in Action; of an op and its deaths its index
  int64_t place = 0;  // it stands in before[place] or after[place]; likewise
  bool after = false;
  double seconds = 0;      // of computation
  int64_t need_bytes = 0;  // while it happens, beyond what is resident before it
  int64_t grow_bytes = 0;  // resident after it less before it
  // Of a free: the first event that must find the value gone. Of a page_out: the next free of the
  // value. Of a page_in: the event by which it left, -1 where it was away from the start.
  int limit = 0;
  int first_dying = 0, last_dying = 0;  // of deaths: in EventList::dying, the last one excluded

  bool is(ActionKind k) const { return kind == static_cast<int>(k); }
  int64_t opsRun() const { return place + (after ? 1 : 0); }  // when it begins
};

struct EventList {
  std::vector<Event> events;
  std::vector<ValueId> dying;  // resident and not retained at their natural death
  int64_t start_bytes = 0;     // resident before the first event
};

// What the timing of one graph's schedules asks again and again.
struct GraphFacts {
  explicit GraphFacts(const Graph& graph);

  const Graph& graph;
  std::vector<std::vector<ValueId>> dying_after;  // by op
  std::vector<int64_t> made_bytes;                // likewise
};

// The schedule must be one that the simulator carries out. O(ops + values + actions).
EventList eventsOf(const GraphFacts& facts, const DeviceProfile& profile, const Schedule& schedule);

// Puts page_outs that stand side by side in the order in which their values are freed: channels
// take transfers in the order in which they are asked for.
void orderPageOuts(EventList& list);

}  // namespace poet::planner
