#include "planner/worker/protocol.h"

#include <array>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "graph/json_reader.h"
#include "planner/options.h"

namespace poet::planner {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMagic = "POET";
constexpr size_t kLengthBytes = 8;
constexpr size_t kHeaderBytes = kMagic.size() + 1 + kLengthBytes;
constexpr uint64_t kLongestPayload = uint64_t{1} << 32;

Json toJson(const SolverChoice& solver) {
  return {{"kind", toString(solver.kind)},
          {"highs_library", solver.highs_library},
          {"gurobi_command", solver.gurobi_command}};
}

Json toJson(const SolveOptions& options) {
  Json json = {{"ram_budget_bytes", options.ram_budget_bytes},
               {"minimize", toString(options.minimize)},
               {"time_limit_seconds", options.time_limit_seconds},
               {"deterministic", options.deterministic},
               {"threads", options.threads},
               {"niceness", options.niceness},
               {"solver", toJson(options.solver)},
               {"recompute", options.recompute},
               {"paging", options.paging},
               {"away_between_steps", options.away_between_steps},
               {"parameters_away", options.parameters_away},
               {"method", options.method},
               {"python", options.python}};
  for (const Schedule& start : options.starts) json["starts"].push_back(start.toJson());
  if (options.runtime_budget_seconds)
    json["runtime_budget_seconds"] = *options.runtime_budget_seconds;
  return json;
}

SolverChoice readSolver(const Json& json) {
  json::ObjectReader in(json, "request.options.solver");
  SolverChoice solver;
  solver.kind = solverKindFromString(in.text("kind"));
  solver.highs_library = in.text("highs_library");
  const std::string where = in.path("gurobi_command");
  for (const Json& word : json::asList(in.require("gurobi_command"), where))
    solver.gurobi_command.push_back(json::asText(word, where));
  in.finish();
  return solver;
}

SolveOptions readOptions(const Json& json) {
  json::ObjectReader in(json, "request.options");
  SolveOptions options;
  options.ram_budget_bytes = in.integer("ram_budget_bytes", 1);
  options.minimize = objectiveFromString(in.text("minimize"));
  options.time_limit_seconds = in.number("time_limit_seconds");
  options.deterministic = in.flagOr("deterministic", false);
  options.threads = static_cast<int>(in.integer("threads", 1, SolveOptions::kMostThreads));
  options.niceness = static_cast<int>(in.integer("niceness", 0, SolveOptions::kMostNiceness));
  options.solver = readSolver(in.require("solver"));
  options.recompute = in.flagOr("recompute", true);
  options.paging = in.flagOr("paging", true);
  options.away_between_steps = in.flagOr("away_between_steps", false);
  options.parameters_away = in.flagOr("parameters_away", false);
  if (in.find("method") != nullptr) options.method = in.text("method");
  if (in.find("python") != nullptr) options.python = in.text("python");
  if (in.find("runtime_budget_seconds") != nullptr)
    options.runtime_budget_seconds = in.number("runtime_budget_seconds");
  if (in.find("starts") != nullptr) {
    const std::string where = in.path("starts");
    for (const Json& start : json::asList(in.require("starts"), where))
      options.starts.push_back(Schedule::fromJson(json::asText(start, where)));
  }
  in.finish();
  return options;
}

}  // namespace

std::string encodeFrame(FrameKind kind, std::string_view payload) {
  std::string frame(kMagic);
  frame.push_back(static_cast<char>(kind));
  for (size_t i = 0; i < kLengthBytes; ++i)
    frame.push_back(static_cast<char>((payload.size() >> (8 * i)) & 0xff));
  frame.append(payload);
  return frame;
}

std::optional<Frame> FrameReader::next() {
  const size_t compared = std::min(buffer_.size(), kMagic.size());
  POET_CHECK_AS(FormatError, buffer_.compare(0, compared, kMagic.substr(0, compared)) == 0,
                "solver stream: these bytes are no frame");
  if (buffer_.size() < kHeaderBytes) return std::nullopt;
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(buffer_[kMagic.size() + 1 + i]))
              << (8 * i);
  }
  POET_CHECK_AS(FormatError, length <= kLongestPayload, "solver stream: a frame of ", length,
                " bytes");
  if (buffer_.size() - kHeaderBytes < length) return std::nullopt;
  Frame frame{.kind = static_cast<FrameKind>(buffer_[kMagic.size()]),
              .payload = buffer_.substr(kHeaderBytes, length)};
  buffer_.erase(0, kHeaderBytes + length);
  return frame;
}

// Graph and profile go as their own documents, in strings: one reader each, one set of checks.
std::string encodeRequest(const Graph& graph, const DeviceProfile& profile,
                          const SolveOptions& options) {
  const Json json = {
      {"graph", graph.toJson()}, {"profile", profile.toJson()}, {"options", toJson(options)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string encodeProgress(const SearchPoint& point) {
  Json json = {{"seconds", point.seconds}};
  if (point.value) json["value"] = *point.value;
  if (point.bound) json["bound"] = *point.bound;
  return json.dump();
}

SearchPoint decodeProgress(std::string_view text) {
  const Json json = json::parse(text, "progress");
  json::ObjectReader in(json, "progress");
  SearchPoint point;
  point.seconds = in.number("seconds");
  if (in.find("value") != nullptr) point.value = in.number("value");
  if (in.find("bound") != nullptr) point.bound = in.number("bound");
  in.finish();
  return point;
}

Request decodeRequest(std::string_view text) try {
  const Json json = json::parse(text, "request");
  json::ObjectReader in(json, "request");
  Request request{.graph = Graph::fromJson(in.text("graph")),
                  .profile = DeviceProfile::fromJson(in.text("profile")),
                  .options = readOptions(in.require("options"))};
  in.finish();
  request.profile.check();
  checkOptions(request.options);
  return request;
} catch (const ArgumentError& error) {  // of a field that can be read and makes no sense
  throw FormatError(detail::message("request: ", error.what()));
}

}  // namespace poet::planner
