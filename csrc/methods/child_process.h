// Runs a program to its end: input in, output out, killed when it overruns its time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace poet::methods {

struct ChildResult {
  bool started = true;     // false: no such program (or no room for a process)
  bool timed_out = false;  // killed
  int exit_code = 0;       // 128 + n where signal n ended it
  std::string out, err;    // all that it wrote
};

// `arguments` begin with the program, which is looked for in PATH. The child dies with its parent.
// Throws Error where the system has no room for the files between the two.
ChildResult runChild(const std::vector<std::string>& arguments, std::string_view input,
                     double limit_seconds);

}  // namespace poet::methods
