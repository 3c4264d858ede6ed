// What a parent and its poet-solver say to each other over one socket: frames of a kind, a length
// and a payload.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "device/profile.h"
#include "graph/graph.h"
#include "planner/planner.h"

namespace poet::planner {

enum class FrameKind : char {
  kRequest = 'Q',    // parent -> worker, once
  kIncumbent = 'I',  // worker -> parent, any number of times: a schedule with a better plan
  kProgress = 'P',   // worker -> parent, any number of times: a better plan's value, or a bound
  kTrouble = 'T',    // worker -> parent, before the last frame: a text of SolverTrouble
  kResult = 'R',     // worker -> parent, the last frame: a schedule
  kError = 'E',      // worker -> parent, the last frame: why there is no result, as text
};

struct Frame {
  FrameKind kind = FrameKind::kError;
  std::string payload;
};

// "POET", the kind, and the payload's length in 8 bytes, least significant first.
std::string encodeFrame(FrameKind kind, std::string_view payload);

// Cuts a stream of bytes into frames. Memory grows with what arrived, never with what a header
// announces.
class FrameReader {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole frame. Throws FormatError on bytes that are none.
  std::optional<Frame> next();

 private:
  std::string buffer_;
};

struct Request {
  Graph graph;
  DeviceProfile profile;
  SolveOptions options;
};

std::string encodeRequest(const Graph& graph, const DeviceProfile& profile,
                          const SolveOptions& options);
std::string encodeProgress(const SearchPoint& point);
SearchPoint decodeProgress(std::string_view text);  // throws FormatError

Request decodeRequest(std::string_view text);  // throws FormatError

}  // namespace poet::planner
