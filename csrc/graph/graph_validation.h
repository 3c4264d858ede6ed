// The checks of Graph's constructor. Internal.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace poet::detail {

// "op 12 (aten::add_)"
std::string describe(const std::vector<Op>& ops, OpId op);
std::string describe(ValueId value);

// Everything that needs no derived table: see Graph::Graph. Throws FormatError naming the op or the
// value, the field, what was expected and what was got.
void checkOps(const std::vector<Op>& ops, const std::vector<Value>& values);
void checkValues(const std::vector<Op>& ops, const std::vector<Value>& values, int64_t base_bytes);

// Deaths against the last op that shows each value (kNoOp: none does).
void checkDeaths(const std::vector<Op>& ops, const std::vector<Value>& values,
                 const std::vector<OpId>& last_shown);

}  // namespace poet::detail
