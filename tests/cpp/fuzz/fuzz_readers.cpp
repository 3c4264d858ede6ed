// Feeds damaged documents to the readers of graphs, schedules, profiles and requests to the solver.
// A reader answers with the structure or with FormatError; what it accepts can be written, read
// again and simulated (or refused with ScheduleError). Anything else is a crash. Compact schedules
// are read with the checksum that they have and with one that fits, so that damage gets past it.
//
// POET_SANITIZE=fuzzer-no-link,address,undefined with clang makes a libFuzzer program of it.
// Without that (g++) the file has its own main, a driver that damages generated documents:
//   fuzz_readers [SECONDS=60] [SEED=time]   then prints how many documents were read and refused
//   fuzz_readers FILE...                    runs these inputs once each, to look at a finding
//   fuzz_readers --seeds FOLDER             writes good documents, for libFuzzer to begin with
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "device/profile.h"
#include "graph/error.h"
#include "graph/graph.h"
#include "graph/recipes.h"
#include "planner/worker/protocol.h"
#include "schedule/byte_io.h"
#include "schedule/compact.h"
#include "schedule/rewritten_graph.h"
#include "schedule/schedule.h"
#include "schedule/simulator.h"

namespace poet::testing {
namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz_readers: %s\n", what);
  std::abort();
}

// True where the text is a graph.
bool readGraph(std::string_view text) {
  try {
    const Graph graph = Graph::fromJson(text);
    const Graph again = Graph::fromJson(graph.toJson());
    require(again.ops() == graph.ops() && again.values() == graph.values(),
            "a graph changed on its way");
    require(again.baseBytes() == graph.baseBytes() && again.signature() == graph.signature(),
            "a graph's head changed on its way");
    const RecipeTable recipes(graph);
    simulatePlain(graph, hostProfile());
    return true;
  } catch (const FormatError&) {
  } catch (const ScheduleError&) {  // its joules are not finite
  }
  return false;
}

// A graph whose ids every small schedule can point at.
const Graph& target() {
  static const Graph graph = [] {
    std::vector<Op> ops(24);
    std::vector<Value> values(24);
    for (int64_t k = 0; k < 24; ++k) {
      ops[static_cast<size_t>(k)].name = "op";
      ops[static_cast<size_t>(k)].outputs = {ValueId(k)};
      if (k > 0) ops[static_cast<size_t>(k)].inputs = {ValueId(k / 2)};
      values[static_cast<size_t>(k)].bytes = k;
      values[static_cast<size_t>(k)].producer = OpId(k);
      values[static_cast<size_t>(k)].death = OpId(24);
    }
    return Graph(std::move(ops), std::move(values));
  }();
  return graph;
}

DeviceProfile deviceWithStore() {
  DeviceProfile device = hostProfile();
  device.store_read_rate = device.store_write_rate = 1e6;
  device.dma_channels = 2;
  return device;
}

// What the simulator takes can be rewritten, with the same peak.
void carryOut(const Graph& graph, const Schedule& schedule) {
  const SimulationResult result = simulate(graph, schedule, deviceWithStore());
  require(schedule.rewrittenGraph(graph).peakBytes() == result.peak_bytes,
          "the rewritten graph has another peak");
}

bool readSchedule(std::string_view text) {
  try {
    Schedule schedule = Schedule::fromJson(text);
    const std::string written = schedule.toJson();
    require(Schedule::fromJson(written).toJson() == written, "a schedule changed on its way");
    // Whatever its ids are, the simulator must hold its own against them.
    schedule.graph_signature = target().signature();
    schedule.num_ops = target().numOps();
    if (!schedule.before.empty()) {
      schedule.before.resize(static_cast<size_t>(target().numOps()) + 1);
      schedule.after.resize(static_cast<size_t>(target().numOps()));
    }
    carryOut(target(), schedule);
    return true;
  } catch (const FormatError&) {
    return false;
  } catch (const ScheduleError&) {
    return true;
  }
}

bool readProfile(std::string_view text) {
  try {
    const DeviceProfile profile = DeviceProfile::fromJson(text);
    const std::string written = profile.toJson();
    require(DeviceProfile::fromJson(written).toJson() == written, "a profile changed on its way");
    return true;
  } catch (const FormatError&) {
    return false;
  }
}

std::string withChecksum(const std::string& body) {
  bytes::Writer sum;
  sum.fixed(bytes::crc32(body), 4);
  return body + sum.bytes();
}

// What every compact schedule for the graph begins with.
std::string compactBeginning(const Graph& graph) {
  bytes::Writer out;
  for (const char letter : kCompactMagic) out.byte(static_cast<uint8_t>(letter));
  out.byte(kCompactVersion);
  out.fixed(graph.signature(), 8);
  return out.bytes();
}

bool readCompact(std::string_view bytes, const Graph& graph) {
  try {
    const Schedule schedule = Schedule::fromBytes(bytes, graph);
    const std::string written = schedule.toBytes(graph);
    require(Schedule::fromBytes(written, graph).toJson() == schedule.toJson(),
            "a compact schedule changed on its way");
    require(Schedule::fromJson(schedule.toJson()).toBytes(graph) == written,
            "a compact schedule and its document differ");
    carryOut(graph, schedule);
    return true;
  } catch (const FormatError&) {
  } catch (const ScheduleError&) {
  }
  return false;
}

// What arrives at a solver: it may end in the middle of a frame, and each payload may be anything.
bool readRequest(std::string_view text) {
  try {
    const planner::Request request = planner::decodeRequest(text);
    const std::string written =
        planner::encodeRequest(request.graph, request.profile, request.options);
    const planner::Request again = planner::decodeRequest(written);
    require(planner::encodeRequest(again.graph, again.profile, again.options) == written,
            "a request changed on its way");
    simulatePlain(request.graph, request.profile);
    return true;
  } catch (const FormatError&) {
  } catch (const ScheduleError&) {  // its joules are not finite
  }
  return false;
}

// Frames come out the same however the stream is cut.
std::string framesOf(std::string_view stream, size_t cut) {
  planner::FrameReader reader;
  std::string read;
  try {
    for (const std::string_view part : {stream.substr(0, cut), stream.substr(cut)}) {
      reader.append(part);
      while (const auto frame = reader.next()) {
        read += static_cast<char>(frame->kind);
        read += frame->payload;
      }
    }
  } catch (const FormatError&) {
    read += "refused";
  }
  return read;
}

void readFrames(std::string_view stream) {
  require(framesOf(stream, stream.size() / 2) == framesOf(stream, stream.size()),
          "the frames of a stream depend on how it is cut");
}

}  // namespace
}  // namespace poet::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  poet::testing::readGraph(text);
  poet::testing::readSchedule(text);
  poet::testing::readProfile(text);
  poet::testing::readRequest(text);
  poet::testing::readFrames(text);
  const poet::Graph& graph = poet::testing::target();
  poet::testing::readCompact(text, graph);
  poet::testing::readCompact(
      poet::testing::withChecksum(poet::testing::compactBeginning(graph) + std::string(text)),
      graph);
  return 0;
}

#include "support/corruption.h"

#ifdef POET_LIBFUZZER

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

// Half of the changes are those of the driver: bytes alone seldom make another valid document.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  if (seed % 2 == 0 || size == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string damaged =
      poet::testing::corrupted(std::string(reinterpret_cast<char*>(data), size), seed);
  const size_t length = std::min(most, damaged.size());
  std::copy_n(damaged.data(), length, reinterpret_cast<char*>(data));
  return length;
}

#else

#include "graph/file_io.h"
#include "support/paging_plan.h"
#include "support/random_graph.h"
#include "support/random_plan.h"

namespace poet::testing {
namespace {

// The document that is being read: a crash leaves it in fuzz_readers_crash.json.
void keepForACrash(const std::string& text) {
  if (std::FILE* file = std::fopen("fuzz_readers_crash.json", "wb")) {
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }
}

// Everything behind the signature may be damaged, the checksum fits or is damaged with it.
bool runCompact(const Graph& graph, const std::string& bytes, Random& random) {
  const size_t beginning = compactBeginning(graph).size();
  readCompact(bytes, graph);
  for (int round = 0; round < 50; ++round) {
    const bool fits = random.chance(0.8);
    const size_t end = bytes.size() - (fits ? 4 : 0);
    std::string rest = corrupted(bytes.substr(beginning, end - beginning), random.next());
    while (random.chance(0.3)) rest = corrupted(rest, random.next());
    rest = bytes.substr(0, beginning) + rest;
    if (fits) rest = withChecksum(rest);
    try {
      readCompact(rest, graph);
    } catch (const std::exception& error) {
      keepForACrash(rest);
      std::fprintf(stderr, "fuzz_readers: another exception: %s\n", error.what());
      return false;
    }
  }
  return true;
}

Schedule somePlan(const Graph& graph, Random& random) {
  return random.chance(0.5) ? pagingPlan(graph, random.next())
                            : randomPlan(graph, RecipeTable(graph), random);
}

std::string someRequest(const Graph& graph, Random& random) {
  DeviceProfile device = deviceWithStore();
  device.wake_joules = random.unit();
  SolveOptions options;
  options.ram_budget_bytes = random.between(1, 1000);
  if (random.chance(0.5)) options.runtime_budget_seconds = random.unit() + 0.5;
  return planner::encodeRequest(graph, device, options);
}

int writeSeeds(const std::string& folder) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    Random random(seed);
    const Graph graph = randomGraph(seed);
    const std::string request = someRequest(graph, random);
    const std::string name = folder + "/" + std::to_string(seed);
    writeFileAtomically(name + ".graph", graph.toJson());
    writeFileAtomically(name + ".plan", somePlan(graph, random).toJson());
    writeFileAtomically(name + ".target_plan", somePlan(target(), random).toJson());
    const std::string compact = somePlan(target(), random).toBytes(target());
    writeFileAtomically(name + ".compact", compact);
    // As LLVMFuzzerTestOneInput completes it.
    const size_t beginning = compactBeginning(target()).size();
    writeFileAtomically(name + ".compact_body",
                        compact.substr(beginning, compact.size() - beginning - 4));
    writeFileAtomically(name + ".request", request);
    writeFileAtomically(name + ".frames",
                        planner::encodeFrame(planner::FrameKind::kRequest, request) +
                            planner::encodeFrame(planner::FrameKind::kError, "no"));
  }
  return 0;
}

int runFor(double seconds, uint64_t seed) {
  std::printf("fuzz_readers: %.0f seconds from seed %llu\n", seconds,
              static_cast<unsigned long long>(seed));
  Random random(seed);
  int64_t read = 0;
  int64_t refused = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    const Graph graph = randomGraph(random.next());
    const std::string graph_text = graph.toJson();
    const Schedule plan = somePlan(graph, random);
    const std::string plan_text = plan.toJson();
    const std::string profile_text = hostProfile().toJson();
    const std::string request_text = someRequest(graph, random);
    if (!runCompact(graph, plan.toBytes(graph), random)) return 1;
    for (int round = 0; round < 100; ++round) {
      const auto kind = random.below(4);
      const std::string& document = kind == 0   ? graph_text
                                    : kind == 1 ? plan_text
                                    : kind == 2 ? profile_text
                                                : request_text;
      std::string text = corrupted(document, random.next());
      while (random.chance(0.3)) text = corrupted(text, random.next());
      try {
        const bool good = kind == 0   ? readGraph(text)
                          : kind == 1 ? readSchedule(text)
                          : kind == 2 ? readProfile(text)
                                      : readRequest(text);
        ++(good ? read : refused);
        readFrames(planner::encodeFrame(planner::FrameKind::kResult, text) + text);
      } catch (const std::exception& error) {
        keepForACrash(text);
        std::fprintf(stderr, "fuzz_readers: another exception: %s\n", error.what());
        return 1;
      }
    }
  }
  std::printf("fuzz_readers: %lld documents read, %lld refused\n", static_cast<long long>(read),
              static_cast<long long>(refused));
  require(read > 0 && refused > 0, "the driver damages everything or nothing");
  return 0;
}

}  // namespace
}  // namespace poet::testing

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--seeds") return poet::testing::writeSeeds(argv[2]);
  char* end = nullptr;
  const double seconds = argc > 1 ? std::strtod(argv[1], &end) : 60;
  if (end != nullptr && *end != '\0') {
    for (int i = 1; i < argc; ++i) {
      const std::string text = poet::readFile(argv[i]);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    }
    return 0;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : static_cast<uint64_t>(now);
  return poet::testing::runFor(seconds, seed);
}

#endif  // POET_LIBFUZZER
