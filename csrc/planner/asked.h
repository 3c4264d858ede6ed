// Until when each value of a problem can be asked for, and which may therefore leave memory.
#pragma once

#include <vector>

#include "planner/problem.h"

namespace poet::planner {

// Note [What may leave]
// A method that drops a value counts on its recipe whenever somebody needs the value again: a first
// execution, or a replay that reads it, of which it knows neither number nor place in advance. So a
// value may leave if its recipe may run up to the last stage in which anything can ask for it: its
// own last use, and that of every value that may leave and is computed from it. What may not leave
// stays for its whole life in every plan, as in plain training.

struct Asked {
  std::vector<char> may_leave;   // by value; those that only a page-in brings back may not
  std::vector<int> until_stage;  // by value: the last stage in which anything can ask for it
  std::vector<std::vector<int>> readers;  // by value: replays that read it, page-ins left out
};

Asked findAsked(const Problem& problem);

}  // namespace poet::planner
