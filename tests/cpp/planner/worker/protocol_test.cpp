// Frames and requests between a parent and its solver: what is written is read, and nothing else.
#include "planner/worker/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/error.h"
#include "support/corruption.h"
#include "support/random.h"
#include "support/random_graph.h"

namespace poet::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Random;
using ::testing::ThrowsMessage;
using Json = nlohmann::json;

// ---- frames
// ---------------------------------------------------------------------------------------

TEST(FrameReader, PutsFramesTogetherHoweverTheyArrive) {
  const std::vector<std::string> payloads = {"", "one", std::string(70000, '\0'), "POETQ"};
  std::string stream;
  for (const std::string& payload : payloads) stream += encodeFrame(FrameKind::kIncumbent, payload);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    FrameReader reader;
    std::vector<std::string> read;
    for (size_t at = 0; at < stream.size();) {
      const auto length = static_cast<size_t>(random.between(1, seed % 2 == 0 ? 40000 : 20000));
      reader.append(std::string_view(stream).substr(at, length));
      at += length;
      while (const auto frame = reader.next()) {
        EXPECT_EQ(frame->kind, FrameKind::kIncumbent);
        read.push_back(frame->payload);
      }
    }
    EXPECT_EQ(read, payloads);
  }
}

TEST(FrameReader, RefusesWhatIsNoFrameAtItsFirstWrongByte) {
  for (const char* nonsense : {"x", "P0", "POEM", "\n"}) {
    FrameReader reader;
    reader.append(nonsense);
    EXPECT_THAT([&] { reader.next(); }, ThrowsMessage<FormatError>(HasSubstr("no frame")));
  }
}

TEST(FrameReader, AnnouncedBytesAreNotBelievedBeforeTheyArrive) {
  std::string header = encodeFrame(FrameKind::kResult, "");
  header[9] = 2;  // 2^32 + ...: the longest that is taken lies below
  FrameReader reader;
  reader.append(header);
  EXPECT_THAT([&] { reader.next(); }, ThrowsMessage<FormatError>(HasSubstr("a frame of ")));
  header = encodeFrame(FrameKind::kResult, "");
  header[8] = '\x7f';  // 2 GB, which may come: nothing is read, nothing is set aside
  FrameReader patient;
  patient.append(header);
  EXPECT_FALSE(patient.next().has_value());
}

// ---- requests
// -------------------------------------------------------------------------------------

Request goodRequest(uint64_t seed) {
  Random random(seed);
  Request request{.graph = testing::randomGraph(seed), .profile = hostProfile(), .options = {}};
  request.profile.name = "\"quoted\" \n";
  request.profile.store_read_rate = 1e9 / 3;
  request.profile.store_write_rate = 1e9 * random.unit();
  request.profile.store_read_latency_seconds = random.unit();
  request.profile.store_write_latency_seconds = random.unit();
  request.profile.wake_joules = random.unit();
  request.profile.dma_channels = static_cast<int>(random.below(4));
  request.profile.store_source = "stated";
  request.options.ram_budget_bytes = random.between(1, std::numeric_limits<int64_t>::max() - 1);
  request.options.minimize =
      random.pick(std::vector<Objective>{Objective::kEnergy, Objective::kTime, Objective::kMemory});
  if (random.chance(0.5)) request.options.runtime_budget_seconds = random.unit() + 0x1p-60;
  request.options.time_limit_seconds = random.unit() + 0x1p-60;
  request.options.threads = static_cast<int>(random.between(1, SolveOptions::kMostThreads));
  request.options.niceness = static_cast<int>(random.between(0, SolveOptions::kMostNiceness));
  request.options.recompute = random.chance(0.5);
  request.options.paging = random.chance(0.5);
  request.options.away_between_steps = random.chance(0.5);
  request.options.method = random.pick(std::vector<std::string>{"poet", "rotor"});
  request.options.python = random.pick(std::vector<std::string>{"python3", "/usr/bin/python"});
  request.options.parameters_away = random.chance(0.5);
  return request;
}

std::string encoded(const Request& request) {
  return encodeRequest(request.graph, request.profile, request.options);
}

TEST(Request, ArrivesToTheBit) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Request sent = goodRequest(seed);
    const Request got = decodeRequest(encoded(sent));
    EXPECT_EQ(got.graph.ops(), sent.graph.ops());
    EXPECT_EQ(got.graph.signature(), sent.graph.signature());
    EXPECT_EQ(got.profile.name, sent.profile.name);
    EXPECT_EQ(got.profile.store_read_rate, sent.profile.store_read_rate);
    EXPECT_EQ(got.profile.store_source, sent.profile.store_source);
    EXPECT_EQ(got.options.ram_budget_bytes, sent.options.ram_budget_bytes);
    EXPECT_EQ(got.options.runtime_budget_seconds, sent.options.runtime_budget_seconds);
    EXPECT_EQ(got.options.minimize, sent.options.minimize);
    EXPECT_EQ(got.options.threads, sent.options.threads);
    EXPECT_EQ(got.options.niceness, sent.options.niceness);
    EXPECT_EQ(got.options.method, sent.options.method);
    EXPECT_EQ(got.options.python, sent.options.python);
    EXPECT_EQ(encoded(got), encoded(sent));  // and every other field
  }
}

// One field of a good request is changed.
void expectRefused(const char* part, const char* field, const Json& value, const char* says) {
  Json json = Json::parse(encoded(goodRequest(1)));
  if (json[part].is_string()) {  // a document of its own
    Json document = Json::parse(json[part].get<std::string>());
    document[field] = value;
    json[part] = document.dump();
  } else {
    json[part][field] = value;
  }
  EXPECT_THAT([&] { decodeRequest(json.dump()); }, ThrowsMessage<FormatError>(HasSubstr(says)))
      << part << "." << field << " = " << value;
}

TEST(Request, NamesTheOptionThatMakesNoSense) {
  constexpr const char* kPart = "options";
  expectRefused(kPart, "ram_budget_bytes", 0, "request.options.ram_budget_bytes");
  expectRefused(kPart, "ram_budget_bytes", -1, "request.options.ram_budget_bytes");
  expectRefused(kPart, "ram_budget_bytes", uint64_t{1} << 63, "request.options.ram_budget_bytes");
  expectRefused(kPart, "ram_budget_bytes", 1.5, "request.options.ram_budget_bytes");
  expectRefused(kPart, "minimize", "fame", "request: minimize: expected");
  expectRefused(kPart, "minimize", 3, "request.options.minimize");
  expectRefused(kPart, "time_limit_seconds", 0, "request: time_limit_s: expected");
  expectRefused(kPart, "time_limit_seconds", -1, "request: time_limit_s: expected");
  expectRefused(kPart, "time_limit_seconds", nullptr, "request.options.time_limit_seconds");
  expectRefused(kPart, "runtime_budget_seconds", -1, "request: runtime_budget: expected");
  expectRefused(kPart, "runtime_budget_seconds", "1", "request.options.runtime_budget_seconds");
  expectRefused(kPart, "threads", 0, "request.options.threads");
  expectRefused(kPart, "threads", 1000000, "request.options.threads");
  expectRefused(kPart, "threads", uint64_t{1} << 32, "request.options.threads");
  expectRefused(kPart, "niceness", 20, "request.options.niceness");
  expectRefused(kPart, "recompute", 1, "request.options.recompute");
  expectRefused(kPart, "colour", 1, "unknown field \"colour\"");
}

TEST(Request, NamesTheFieldOfTheProfileThatMakesNoSense) {
  constexpr const char* kPart = "profile";
  for (const char* field :
       {"compute_watts", "idle_watts", "memory_watts", "store_watts", "replay_factor",
        "replay_fixed_seconds", "store_read_rate", "store_write_rate", "store_read_latency_seconds",
        "store_write_latency_seconds", "wake_joules"}) {
    expectRefused(kPart, field, -1, field);
    expectRefused(kPart, field, nullptr, field);  // as JSON writes an infinite number
    expectRefused(kPart, field, "1", field);
  }
  expectRefused(kPart, "dma_channels", -1, "profile.dma_channels");
  expectRefused(kPart, "dma_channels", 1 << 20, "profile.dma_channels");
  expectRefused(kPart, "generator_state_bytes", -1, "profile.generator_state_bytes");
  expectRefused(kPart, "generator_state_bytes", int64_t{1} << 62, "generator_state_bytes");
  expectRefused(kPart, "name", 1, "profile.name");
  expectRefused(kPart, "colour", 1, "unknown field \"colour\"");
}

TEST(Request, NamesWhatIsMissing) {
  const Json good = Json::parse(encoded(goodRequest(1)));
  for (const char* part : {"graph", "profile", "options"}) {
    Json json = good;
    json.erase(part);
    EXPECT_THAT([&] { decodeRequest(json.dump()); },
                ThrowsMessage<FormatError>(
                    AllOf(HasSubstr("request"), HasSubstr(std::string("\"") + part + "\""))));
  }
  Json json = good;
  json["graph"] = "{}";
  EXPECT_THAT([&] { decodeRequest(json.dump()); },
              ThrowsMessage<FormatError>(HasSubstr("poet-graph")));
}

TEST(Request, SurvivesRandomDamage) {
  int64_t read = 0, refused = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = encoded(goodRequest(seed));
    for (uint64_t round = 0; round < 200; ++round) {
      try {
        decodeRequest(testing::corrupted(text, seed * 1000 + round));
        ++read;
      } catch (const FormatError&) {
        ++refused;
      }  // anything else ends the test
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 10) << "some damage is another valid request";
}

}  // namespace
}  // namespace poet::planner
