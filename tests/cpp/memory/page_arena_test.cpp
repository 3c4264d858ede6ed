#include "memory/page_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "support/random.h"

namespace poet {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int64_t kPage = 4096;

// Pages of an address range that the kernel has in memory.
int64_t residentBytes(const void* begin, size_t bytes) {
  std::vector<unsigned char> pages((bytes + kPage - 1) / kPage);
  const auto start = reinterpret_cast<uintptr_t>(begin) / kPage * kPage;
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(start), bytes, pages.data()), 0);
  return kPage * std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; });
}

struct Block {
  std::byte* data;
  size_t bytes;
  int pattern;
};

Block filled(PageArena& arena, size_t bytes, int pattern) {
  Block block{static_cast<std::byte*>(arena.allocate(bytes)), bytes, pattern};
  if (block.data != nullptr) std::memset(block.data, pattern, bytes);
  return block;
}

bool isIntact(const Block& block) {
  return std::all_of(block.data, block.data + block.bytes,
                     [&](std::byte b) { return b == static_cast<std::byte>(block.pattern); });
}

int64_t numMappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
}

TEST(PageArena, KeepsToTheSideThatIsAskedForWhileItHasAPlace) {
  PageArena arena(512 * kMiB);
  const size_t boundary = 4 * kMiB;
  const ArenaSide low{ArenaSide::End::kLow, boundary}, high{ArenaSide::End::kHigh, boundary};
  auto* const first = static_cast<std::byte*>(arena.allocate(kPage));
  const auto offset = [first](void* block) { return static_cast<std::byte*>(block) - first; };
  std::vector<void*> lows, highs;
  for (int i = 0; i < 3; ++i) {
    lows.push_back(arena.allocate(kMiB, nullptr, low));
    highs.push_back(arena.allocate(kMiB, nullptr, high));
  }
  for (void* const block : lows)
    EXPECT_LT(offset(block), static_cast<int64_t>(3 * kMiB + 8 * kPage));
  for (void* const block : highs) EXPECT_GE(offset(block), static_cast<int64_t>(boundary - kPage));
  // A freed place of one side is not the other's, while that has one.
  arena.release(highs[1]);
  EXPECT_LT(offset(arena.allocate(kMiB / 2, nullptr, low)), static_cast<int64_t>(boundary));
  // The low side is full: any place is better than none.
  void* const over = arena.allocate(2 * kMiB, nullptr, low);
  ASSERT_NE(over, nullptr);
  EXPECT_GE(offset(over), static_cast<int64_t>(boundary - kPage));
  // Pages move from side to side like everywhere: no more are resident than were in use at once.
  const PageArena::Counters counters = arena.counters();
  EXPECT_LE(counters.resident_bytes, counters.most_in_use);
}

TEST(PageArena, TellsWhatLiesBetweenTwoBlocks) {
  PageArena arena(512 * kMiB);
  void* const a = arena.allocate(16 * kPage);
  void* const b = arena.allocate(8 * kPage);
  void* const c = arena.allocate(16 * kPage);
  ASSERT_NE(c, nullptr);
  ASSERT_LT(a, b);
  ASSERT_LT(b, c);
  EXPECT_EQ(arena.gapBetween(a, b), 0);
  EXPECT_EQ(arena.gapBetween(a, c), -1) << "b is in use";
  arena.release(b);
  const int64_t gap = arena.gapBetween(a, c);
  EXPECT_GE(gap, 8 * kPage);
  EXPECT_LE(gap, 9 * kPage) << "blocks begin some bytes into their first page";
  int elsewhere = 0;
  EXPECT_EQ(arena.gapBetween(a, &elsewhere), -1);
  EXPECT_EQ(arena.gapBetween(&elsewhere, c), -1);
  arena.release(a);
  arena.release(c);
}

TEST(PageArena, GivesAlignedMemoryOfItsOwn) {
  PageArena arena(512 * kMiB);
  void* const a = arena.allocate(100'000);
  void* const b = arena.allocate(1);
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 64, 0U);
  EXPECT_TRUE(arena.owns(a));
  int elsewhere = 0;
  EXPECT_FALSE(arena.owns(&elsewhere));
  EXPECT_FALSE(arena.owns(nullptr));
  arena.release(a);
  arena.release(b);
  EXPECT_EQ(arena.counters().in_use_bytes, 0);
}

TEST(PageArena, AFreedBlocksPagesServeTheNextBlock) {
  PageArena arena(512 * kMiB);
  void* const first = arena.allocate(8 * kMiB);
  const int64_t fresh = arena.counters().fresh_bytes;
  arena.release(first);
  void* const second = arena.allocate(8 * kMiB - 2 * kPage);
  EXPECT_EQ(arena.counters().fresh_bytes, fresh);
  EXPECT_EQ(arena.counters().returned_bytes, 0);
  arena.release(second);
}

TEST(PageArena, FreeNeighboursMerge) {
  PageArena arena(512 * kMiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(arena.allocate(kMiB));
  for (const int i : {1, 3, 5, 7, 0, 6, 2, 4}) arena.release(blocks[static_cast<size_t>(i)]);
  const int64_t fresh = arena.counters().fresh_bytes;
  void* const all = arena.allocate(8 * kMiB);
  EXPECT_EQ(arena.counters().fresh_bytes, fresh);
  arena.release(all);
}

// Eight blocks of 1 MiB with holes between them, then one of 4 MiB: no hole takes it.
TEST(PageArena, PagesOfHolesMoveWhereMoreThanTheMostInUseWouldBeResident) {
  PageArena arena(512 * kMiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(arena.allocate(kMiB));
  for (size_t i = 0; i < blocks.size(); i += 2) arena.release(blocks[i]);
  const auto before = arena.counters();
  void* const large = arena.allocate(4 * kMiB);
  std::memset(large, 1, 4 * kMiB);
  const auto after = arena.counters();
  EXPECT_LE(after.resident_bytes, before.most_in_use);
  EXPECT_GE(after.moved_bytes + after.returned_bytes, static_cast<int64_t>(4 * kMiB));
  EXPECT_LE(after.returned_bytes, static_cast<int64_t>(kMiB / 4));  // what is too short to move
  EXPECT_EQ(after.fresh_bytes - before.fresh_bytes, after.returned_bytes);
  EXPECT_EQ(residentBytes(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(blocks[0])),
                          24 * kMiB),
            after.resident_bytes);
}

TEST(PageArena, RestartGivesEveryFreePageBack) {
  PageArena arena(512 * kMiB);
  const Block kept = filled(arena, kMiB, 7);
  const Block gone = filled(arena, 32 * kMiB, 8);
  arena.release(gone.data);
  EXPECT_GE(residentBytes(gone.data, gone.bytes), static_cast<int64_t>(32 * kMiB));
  arena.restart();
  EXPECT_LE(residentBytes(gone.data, gone.bytes), 2 * kPage);
  EXPECT_TRUE(isIntact(kept));
  EXPECT_EQ(arena.counters().resident_bytes, arena.counters().in_use_bytes);
  EXPECT_EQ(arena.counters().most_in_use, arena.counters().in_use_bytes);
  arena.release(kept.data);
}

TEST(PageArena, RestartMayLeaveTheFreePagesThatAnotherMostAllows) {
  PageArena arena(512 * kMiB);
  arena.release(arena.allocate(32 * kMiB));
  arena.restart(8 * kMiB);
  EXPECT_EQ(arena.counters().resident_bytes, static_cast<int64_t>(8 * kMiB));
  EXPECT_EQ(arena.counters().most_in_use, static_cast<int64_t>(8 * kMiB));
  arena.restart(64 * kMiB);
  EXPECT_EQ(arena.counters().resident_bytes, static_cast<int64_t>(8 * kMiB));
}

// Bytes of an address range that the process may write to.
int64_t writableBytes(const void* begin, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin);
  std::ifstream maps("/proc/self/maps");
  int64_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0, to = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, rights) != 3)
      continue;
    from = std::max(from, first);
    to = std::min(to, first + bytes);
    if (rights[1] == 'w' && from < to) found += static_cast<int64_t>(to - from);
  }
  return found;
}

// Holes whose pages have moved elsewhere, and holes whose pages went back; how many bytes of the
// arena are writable without pages after that.
int64_t idleBytes(PageArena& arena, std::vector<Block>& kept) {
  std::vector<Block> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(filled(arena, kMiB, i));
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i % 2 == 0)
      arena.release(blocks[i].data);
    else
      kept.push_back(blocks[i]);
  }
  kept.push_back(filled(arena, 4 * kMiB, 77));
  arena.restart();
  return writableBytes(blocks[0].data, 64 * kMiB) - arena.counters().resident_bytes;
}

// In children: a limit can be lowered only.
int exitStatusOf(int (*body)()) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// To more than any process has: sanitizers map terabytes.
void limitData() {
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = RLIM_INFINITY / 2;
  ::setrlimit(RLIMIT_DATA, &limit);
}

TEST(PageArena, WhereRightsCountPlacesWithoutPagesHaveNone) {
  EXPECT_EQ(exitStatusOf([] {
              limitData();
              PageArena arena(512 * kMiB);
              std::vector<Block> kept;
              if (idleBytes(arena, kept) != 0) return 1;
              return std::all_of(kept.begin(), kept.end(), isIntact) ? 0 : 2;
            }),
            0);
}

TEST(PageArena, ElsewhereTheyKeepThemUntilTheyCount) {
  EXPECT_EQ(exitStatusOf([] {
              int mode = 0;  // 2: the kernel counts what is writable in any case
              std::ifstream("/proc/sys/vm/overcommit_memory") >> mode;
              PageArena arena(512 * kMiB);
              std::vector<Block> kept;
              const int64_t idle = idleBytes(arena, kept);
              if ((idle >= static_cast<int64_t>(4 * kMiB)) == (mode == 2)) return 1;
              limitData();
              arena.restart();
              if (writableBytes(kept[0].data - kMiB, 64 * kMiB) > arena.counters().resident_bytes)
                return 2;
              kept.push_back(filled(arena, 4 * kMiB, 78));
              return std::all_of(kept.begin(), kept.end(), isIntact) ? 0 : 3;
            }),
            0);
}

TEST(PageArena, ItIsNullWhereTheSpaceIsUsedUp) {
  PageArena arena(256 * kMiB);
  EXPECT_EQ(arena.allocate(512 * kMiB), nullptr);
  EXPECT_EQ(arena.allocate(SIZE_MAX / 2), nullptr);
  void* const most = arena.allocate(200 * kMiB);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(arena.allocate(100 * kMiB), nullptr);
  arena.release(most);
  PageArena none(0);
  EXPECT_EQ(none.allocate(kMiB), nullptr);
  EXPECT_FALSE(none.owns(&none));
}

// Every place that the pages lie in is one mapping more, of which a process may have only so many.
TEST(PageArena, MovesEndWhereTheyWouldTakeTooManyMappings) {
  testing::Random random(3);
  PageArena arena(4096 * kMiB);
  std::vector<Block> blocks;
  for (int i = 0; i < 60'000; ++i) {
    if (blocks.size() > 1000) {
      const auto which = static_cast<size_t>(random.below(static_cast<int64_t>(blocks.size())));
      ASSERT_TRUE(isIntact(blocks[which]));
      arena.release(blocks[which].data);
      blocks[which] = blocks.back();
      blocks.pop_back();
    }
    blocks.push_back(filled(arena, static_cast<size_t>(random.between(40'000, 400'000)), i % 256));
    ASSERT_NE(blocks.back().data, nullptr);
  }
  EXPECT_LT(numMappings(), 20'000);
  const auto now = arena.counters();
  EXPECT_LE(now.resident_bytes, now.most_in_use);
  EXPECT_GT(now.moved_bytes, 0);
  for (const Block& block : blocks) ASSERT_TRUE(isIntact(block));
}

// In a child: a limit can be lowered only.
TEST(PageArena, OfALimitedAddressSpaceItLeavesMostToOthers) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    size_t used_pages = 0;
    std::ifstream("/proc/self/statm") >> used_pages;
    limit.rlim_cur = limit.rlim_max = used_pages * kPage + 4096 * kMiB;
    ::setrlimit(RLIMIT_AS, &limit);
    const PageArena arena(size_t{64} << 30);
    void* const others =
        ::mmap(nullptr, 2900 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ::_exit(others == MAP_FAILED ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(PageArena, ManySmallHolesGoBackWithoutAMappingEach) {
  PageArena arena(size_t{16} << 30);
  std::vector<Block> blocks;
  for (int i = 0; i < 50'000; ++i) {
    blocks.push_back(filled(arena, 60'000, i % 256));
    ASSERT_NE(blocks.back().data, nullptr);
  }
  std::vector<Block> kept;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i % 2 == 0) {
      arena.release(blocks[i].data);
    } else {
      kept.push_back(blocks[i]);
    }
  }
  arena.restart();
  EXPECT_EQ(arena.counters().resident_bytes, arena.counters().in_use_bytes);
  EXPECT_LT(numMappings(), 20'000);
  for (const Block& block : kept) ASSERT_TRUE(isIntact(block));
  for (int i = 0; i < 25'000; ++i) kept.push_back(filled(arena, 60'000, i % 256));
  for (const Block& block : kept) ASSERT_TRUE(isIntact(block));
  EXPECT_LT(numMappings(), 40'000);
}

// No block overlaps another, keeps its bytes whatever else happens, and the kernel's count of
// resident pages is ours, and never above the most in use.
TEST(PageArena, RandomBlocksKeepTheirBytesAndTheResidentSetKeepsItsLimit) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    testing::Random random(seed);
    PageArena arena(1024 * kMiB);
    std::vector<Block> blocks;
    const std::byte* lowest = nullptr;
    for (int i = 0; i < 400; ++i) {
      const bool drop = !blocks.empty() && random.chance(blocks.size() > 20 ? 0.6 : 0.4);
      if (drop) {
        const auto which = static_cast<size_t>(random.below(static_cast<int64_t>(blocks.size())));
        ASSERT_TRUE(isIntact(blocks[which]));
        arena.release(blocks[which].data);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        const size_t bytes =
            static_cast<size_t>(random.between(1, random.chance(0.3) ? 3'000'000 : 200'000));
        blocks.push_back(filled(arena, bytes, static_cast<int>(random.below(256))));
        ASSERT_NE(blocks.back().data, nullptr);
        if (lowest == nullptr || blocks.back().data < lowest) lowest = blocks.back().data;
      }
      if (random.chance(0.01)) arena.restart();
      const auto now = arena.counters();
      ASSERT_LE(now.resident_bytes, now.most_in_use);
      ASSERT_GE(now.resident_bytes, now.in_use_bytes);
    }
    for (const Block& block : blocks) ASSERT_TRUE(isIntact(block));
    EXPECT_EQ(residentBytes(lowest, 200 * kMiB), arena.counters().resident_bytes);
    for (const Block& block : blocks) arena.release(block.data);
    EXPECT_EQ(arena.counters().in_use_bytes, 0);
  }
}

TEST(PageArena, ThreadsShareIt) {
  PageArena arena(1024 * kMiB);
  std::vector<std::thread> threads;
  std::atomic<int> damaged = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      testing::Random random(static_cast<uint64_t>(t + 1));
      for (int i = 0; i < 300; ++i) {
        const Block a = filled(arena, static_cast<size_t>(random.between(1, 300'000)), t);
        const Block b = filled(arena, static_cast<size_t>(random.between(1, 30'000)), 100 + t);
        damaged += isIntact(a) ? 0 : 1;
        arena.release(a.data);
        damaged += isIntact(b) ? 0 : 1;
        arena.release(b.data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(damaged, 0);
  EXPECT_EQ(arena.counters().in_use_bytes, 0);
}

TEST(PageArena, AForkedChildHasCopiesOfItsOwn) {
  PageArena arena(512 * kMiB);
  const Block shared = filled(arena, kMiB, 5);
  arena.lock();
  const pid_t child = ::fork();
  arena.unlock();
  if (child == 0) {
    const bool was_there = isIntact(shared);
    arena.release(shared.data);
    const Block own = filled(arena, 4 * kMiB, 9);
    ::_exit(was_there && own.data != nullptr && isIntact(own) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(isIntact(shared));
  arena.release(shared.data);
}

}  // namespace
}  // namespace poet
