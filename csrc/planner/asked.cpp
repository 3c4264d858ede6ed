#include "planner/asked.h"

#include <algorithm>

namespace poet::planner {

Asked findAsked(const Problem& problem) {
  Asked asked{.may_leave = std::vector<char>(problem.values.size(), 0),
              .until_stage = std::vector<int>(problem.values.size(), -1),
              .readers = std::vector<std::vector<int>>(problem.values.size())};
  for (size_t v = 0; v < problem.values.size(); ++v) {
    const Evictable& value = problem.values[v];
    if (!value.use_stages.empty()) asked.until_stage[v] = value.use_stages.back();
  }
  // Readers stand behind what they read.
  for (size_t r = problem.replays.size(); r-- > 0;) {
    const Replay& replay = problem.replays[r];
    if (replay.is_page) continue;
    for (const int u : replay.inputs)
      asked.readers[static_cast<size_t>(u)].push_back(static_cast<int>(r));
    int until = -1;
    for (const int v : replay.outputs)
      until = std::max(until, asked.until_stage[static_cast<size_t>(v)]);
    if (until > replay.until_stage) continue;
    for (const int v : replay.outputs) asked.may_leave[static_cast<size_t>(v)] = 1;
    for (const int u : replay.inputs) {
      int& stage = asked.until_stage[static_cast<size_t>(u)];
      stage = std::max(stage, until);
    }
  }
  return asked;
}

}  // namespace poet::planner
