// Random training steps: a forward part, then a backward part that reads what the forward part
// saved, then writes into parameters. The same seed and options give the same graph on every
// machine.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace poet::testing {

// Probabilities are per op or per value.
struct RandomGraphOptions {
  int forward_ops = 6;
  bool backward = true;
  bool optimizer = true;  // in-place writes into parameters at the end
  int parameters = 2;
  int64_t largest_bytes = 64;
  double longest_seconds = 1;
  double multi_output = 0.25;
  double in_place = 0.2;  // an op writes into an earlier value of the step instead of making one
  double view = 0.15;     // a view of an earlier value follows
  double workspace = 0.3;
  double random = 0.15;
  double statistics = 0.1;   // the op updates running statistics
  double shape_only = 0.05;  // the op reads no data (empty_like), and is followed by one that fills
  double raw_read = 0.05;    // a detach follows
  double not_replayable = 0.05;
  double not_evictable = 0.05;
  double outlives = 0.1;     // a value lives on after the step
  double held_longer = 0.2;  // plain training drops a value only some ops after its last use
  double zero_bytes = 0.03;
  double skip = 0.5;  // a further input from any distance

  // Nothing but ops with one output and no side effects: the simplest problem.
  static RandomGraphOptions simple();
};

Graph randomGraph(uint64_t seed, const RandomGraphOptions& options = {});

}  // namespace poet::testing
