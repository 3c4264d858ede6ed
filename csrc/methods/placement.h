// What a plan takes of an arena without holes being filled: addresses for everything that is in
// memory.
//
// Chosen: first fit from the lowest address, in running order, as an allocator that knows nothing
// of what is to come places blocks; nothing moves. Values that are there before the step lie
// lowest. Bound: none. Weakness: an allocator with size classes, or one that plans ahead, leaves
// other holes. poet's own arena (memory/page_arena.h) has addresses to spare and moves free pages,
// so that holes cost a live step no memory: this is a figure of plans, alike for every method.
#pragma once

#include <cstdint>

#include "graph/export.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace poet {

// Bytes, with those beside the step (Graph::baseBytes), without generator states.
struct Placement {
  int64_t arena_bytes = 0;  // up to the highest address in use
  int64_t live_bytes = 0;   // most in use at once
  // Of the live bytes, what holes add: 0 where the arena needs no more than they.
  double fragmentation() const {
    if (live_bytes <= 0) return 0;
    return static_cast<double>(arena_bytes) / static_cast<double>(live_bytes) - 1;
  }
};

// Throws ScheduleError as simulate() does. Without a plan: the plain step. O(ops * values in
// memory).
POET_API Placement placeInArena(const Graph& graph, const Schedule& schedule);

}  // namespace poet
