// A branching step on which DTR's three scores evict three different values.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "support/graph_builder.h"

namespace poet::testing {

inline constexpr int64_t kBudgetThatTellsScoresApart = 1063;

// r -> s and r -> c, u -> w and u -> d, and e apart. All are read by backward.
//
//   op           0 r    1 s    2 c    3 u    4 w    5 d    6 e
//   seconds        4      4      3      1      5      5      8
//   bytes        100    100     20    100    100     20     20
//
// They have been stale for about as long when "large" needs room: it takes r, s, u and w, which
// cost the least for their bytes by every score, and no less will do. "larger" then needs 20 bytes
// more, of c, d or e. By their own cost that is c (3, 5, 8). With the evicted values that they need
// to come back it is d (3 + r = 7, 5 + u = 6, 8). With all evicted values that hang together with
// those it is e (3 + r + s = 11, 5 + u + w = 11, 8).
inline Graph stepThatTellsScoresApart() {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const auto forward = [&](const char* name, ValueId from, double seconds, int64_t bytes) {
    return g.op(name).phase(Phase::kForward).reads({from}).seconds(seconds).makes(bytes);
  };
  const ValueId r = forward("r", x, 4, 100), s = forward("s", r, 4, 100),
                c = forward("c", r, 3, 20);
  const ValueId u = forward("u", x, 1, 100), w = forward("w", u, 5, 100),
                d = forward("d", u, 5, 20);
  const ValueId e = forward("e", x, 8, 20);
  const ValueId wait = forward("wait", x, 1000, 1);
  forward("large", wait, 1, 1000);
  forward("larger", wait, 1, 1020);
  ValueId gradient = wait;
  for (const ValueId v : std::vector<ValueId>{e, d, w, u, c, s, r})
    gradient = g.op("read").phase(Phase::kBackward).reads({v, gradient}).seconds(1).makes(1);
  return g.build();
}

}  // namespace poet::testing
