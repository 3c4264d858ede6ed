#include "memory/page_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "support/random.h"

namespace poet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Runs = std::vector<std::pair<Page, Page>>;

Runs runs(const PageMap& map, Page begin, Page end, bool resident = true) {
  Runs found;
  map.forEachRun(begin, end, resident, [&](PageRun run) {
    found.emplace_back(run.begin, run.end);
    return true;
  });
  return found;
}

Runs pieces(const PageMap& map, Page begin, Page end, Page longest = 1000) {
  Runs found;
  map.forEachPiece(begin, end, longest, [&](PageRun run) {
    found.emplace_back(run.begin, run.end);
    return true;
  });
  return found;
}

void makeResident(PageMap& map, PageRun run) {
  map.setWritable(run, true);
  map.setResident(run, true);
}

TEST(PageMap, KnowsWhichPagesAreResident) {
  PageMap map;
  EXPECT_EQ(map.countResident(0, 1000), 0U);
  EXPECT_THAT(runs(map, 0, 1000), IsEmpty());
  EXPECT_THAT(runs(map, 3, 1000, false), ElementsAre(Pair(3, 1000)));
  map.setResident({10, 200}, true);
  map.setResident({64, 128}, false);
  EXPECT_EQ(map.countResident(0, 1000), 126U);
  EXPECT_EQ(map.countResident(60, 130), 6U);
  EXPECT_THAT(runs(map, 0, 1000), ElementsAre(Pair(10, 64), Pair(128, 200)));
  EXPECT_THAT(runs(map, 20, 150), ElementsAre(Pair(20, 64), Pair(128, 150)));
  EXPECT_THAT(runs(map, 0, 1000, false), ElementsAre(Pair(0, 10), Pair(64, 128), Pair(200, 1000)));
}

TEST(PageMap, AWalkEndsWhereItsVisitorSaysSo) {
  PageMap map;
  map.setResident({0, 10}, true);
  map.setResident({20, 30}, true);
  int visits = 0;
  map.forEachRun(0, 100, true, [&](PageRun) { return ++visits < 1; });
  EXPECT_EQ(visits, 1);
}

TEST(PageMap, MovedPagesArePiecesOfTheirOwn) {
  PageMap map;
  makeResident(map, {0, 100});
  EXPECT_THAT(pieces(map, 0, 300), ElementsAre(Pair(0, 100)));
  EXPECT_EQ(map.numMappings(), 3);  // what is writable, and what is before and behind
  map.move({40, 50}, 100);
  EXPECT_THAT(runs(map, 0, 300), ElementsAre(Pair(0, 40), Pair(50, 110)));
  EXPECT_THAT(pieces(map, 0, 300), ElementsAre(Pair(0, 40), Pair(50, 100), Pair(100, 110)));
  EXPECT_EQ(map.numMappings(), 5);  // what they left is writable still
  map.setHome({40, 50});
  EXPECT_EQ(map.numMappings(), 7);
  map.move({100, 110}, 40);  // home again
  map.setHome({100, 110});
  EXPECT_TRUE(map.isHome({0, 200}));
  EXPECT_THAT(pieces(map, 0, 300), ElementsAre(Pair(0, 100)));
  EXPECT_EQ(map.numMappings(), 3);
}

TEST(PageMap, PagesOfOneDistanceAreOnePiece) {
  PageMap map;
  map.setResident({0, 100}, true);
  map.move({0, 20}, 200);
  map.move({20, 40}, 220);
  EXPECT_THAT(pieces(map, 150, 300), ElementsAre(Pair(200, 240)));
  map.move({40, 60}, 180);
  EXPECT_THAT(pieces(map, 150, 300), ElementsAre(Pair(180, 200), Pair(200, 240)));
}

TEST(PageMap, LongPiecesComeInParts) {
  PageMap map;
  map.setResident({0, 100}, true);
  map.move({90, 100}, 200);
  EXPECT_THAT(pieces(map, 0, 300, 40),
              ElementsAre(Pair(0, 40), Pair(40, 80), Pair(80, 90), Pair(200, 210)));
}

TEST(PageMap, FreshPagesAreAtHome) {
  PageMap map;
  map.setResident({0, 100}, true);
  map.move({0, 50}, 100);
  map.setResident({100, 150}, false);
  map.setResident({100, 150}, true);  // of the mapping that was moved there
  EXPECT_THAT(pieces(map, 0, 300), ElementsAre(Pair(50, 100), Pair(100, 150)));
  map.setResident({100, 150}, false);
  map.setHome({100, 150});
  map.setResident({100, 150}, true);
  EXPECT_THAT(pieces(map, 0, 300), ElementsAre(Pair(50, 150)));
}

TEST(PageMap, KnowsWhichPlacesAreWritableWithoutPages) {
  PageMap map;
  EXPECT_FALSE(map.isWritable(PageRun{0, 1}));
  makeResident(map, {10, 100});
  map.setResident({20, 30}, false);
  map.move({40, 50}, 200);
  EXPECT_TRUE(map.isWritable({10, 100}));
  EXPECT_FALSE(map.isWritable({9, 100}));
  EXPECT_FALSE(map.isHome({190, 210}));
  Runs idle;
  map.forEachIdleRun([&](PageRun run) {
    idle.emplace_back(run.begin, run.end);
    return true;
  });
  EXPECT_THAT(idle, ElementsAre(Pair(20, 30), Pair(40, 50)));
}

// Against the same kept a page at a time.
TEST(PageMap, RandomMovesAreThoseOfSinglePages) {
  constexpr Page kPages = 300;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    testing::Random random(seed);
    PageMap map;
    std::vector<int> shift(kPages + 1, 0);
    std::vector<bool> resident(kPages + 1, false), writable(kPages + 1, false);
    for (int i = 0; i < 60; ++i) {
      const auto begin = static_cast<Page>(random.below(kPages));
      const auto size = static_cast<Page>(random.between(1, 40));
      const PageRun run{begin, std::min(kPages, begin + size)};
      if (random.chance(0.5)) {
        const bool comes = random.chance(0.6), home = random.chance(0.5);
        if (home) map.setHome(run);
        if (comes) map.setWritable(run, true);
        map.setResident(run, comes);
        for (Page p = run.begin; p < run.end; ++p) {
          resident[p] = comes;
          writable[p] = comes || (writable[p] && !home);
          if (home) shift[p] = 0;
        }
        continue;
      }
      const Runs from = pieces(map, run.begin, run.end), to = runs(map, 0, kPages, false);
      if (from.empty() || to.empty()) continue;
      const Page first = from[0].first, place = to[0].first;
      const Page moved = std::min(from[0].second - first, to[0].second - place);
      map.move({first, first + moved}, place);
      for (Page p = 0; p < moved; ++p) {
        resident[first + p] = false;
        resident[place + p] = writable[place + p] = true;
        shift[place + p] = shift[first] + static_cast<int>(place) - static_cast<int>(first);
      }
    }
    int64_t mappings = 1;
    for (Page p = 0; p < kPages; ++p) {
      ASSERT_EQ(map.countResident(p, p + 1), resident[p] ? 1U : 0U);
      ASSERT_EQ(map.isWritable(PageRun{p, p + 1}), writable[p]);
      mappings += (writable[p + 1] != writable[p]) + (shift[p + 1] != shift[p]);
    }
    EXPECT_EQ(map.numMappings(), mappings + writable[0]);
    for (const auto& [begin, end] : pieces(map, 0, kPages)) {
      for (Page p = begin + 1; p < end; ++p) ASSERT_EQ(shift[p], shift[p - 1]);
      EXPECT_TRUE(!resident[end] || shift[end] != shift[end - 1]);
    }
  }
}

}  // namespace
}  // namespace poet
