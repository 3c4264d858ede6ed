// The compact form of a schedule, for devices: a few hundred bytes beside the graph that it was
// made for. Schedule::toBytes, Schedule::fromBytes. How the search went (history, start) stays
// behind.
#pragma once

#include <string_view>

namespace poet {

// Note [The compact form]
// Read with its graph it gives the whole schedule back: actions, figures (the doubles bit for bit:
// nothing is simulated again, so no device profile is needed), status, bound and texts. Recipes are
// numbered afresh, in the order in which they are used first, as Schedule::fromJson does it.
//
//   "Poet", one byte of version, graph signature (8 bytes), the head, the plan, CRC-32 of all that
//   stands before it (4 bytes). Numbers little endian; varints as in LEB128, never longer than
//   needed.
//
// The head: num_ops, a varint of flags that say which optional fields follow (kFlags in
// compact.cpp) and the fields. What follows from another field is left out: believed figures that
// equal the simulator's, a gap that is (value - bound) / value.
//
// The plan: values of away_between_steps as differences, then the number of actions, then each
// action in the order before[0], after[0], before[1] ... as a token and what it acts on.
//   token      varint of 8 * (ops passed since the last action) + code; the codes name the common
//              pairs of kind and side, the last one is followed by a byte that names any pair.
//   a value    is named by where an op shows it, counted from the action: what is freed or paged
//              out was shown just now, what comes back is shown soon. All values that op 0, op 1
//              ... show, ascending within an op, make one long list, and at its end stands every
//              value once. A varint of 2 * distance + direction points into that list.
//   a chain    is a value of it: the value's producer, and every op that writes into what that
//              producer makes. Any other chain is spelled out.
// Decoding takes O(1) an action beside the chains, and allocates no more than the graph and the
// bytes themselves justify (Note [Reading hostile files]).
inline constexpr std::string_view kCompactMagic = "Poet";
inline constexpr int kCompactVersion = 1;

}  // namespace poet
