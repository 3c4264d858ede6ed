#include "graph/id_lists.h"

#include <gtest/gtest.h>

#include <vector>

#include "graph/ids.h"

namespace poet {
namespace {

TEST(IdLists, GivesEachListAsItWas) {
  const std::vector<std::vector<ValueId>> lists = {
      {ValueId(3), ValueId(1)}, {}, {ValueId(2)}, {}, {}, {ValueId(7), ValueId(7), ValueId(0)}};
  const IdLists<ValueId> all(lists);
  for (size_t i = 0; i < lists.size(); ++i) {
    EXPECT_EQ(std::vector<ValueId>(all[i].begin(), all[i].end()), lists[i]) << "list " << i;
  }
}

TEST(IdLists, OfNoListsAndOfEmptyOnesHasNoIds) {
  EXPECT_EQ(IdLists<OpId>().ownBytes(), 0);
  const IdLists<OpId> none(std::vector<std::vector<OpId>>{});
  EXPECT_LE(none.ownBytes(), 64);
  const IdLists<OpId> empty(std::vector<std::vector<OpId>>(4));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(empty[i].empty());
}

TEST(IdLists, TakesFourBytesAListAndFourAnId) {
  const IdLists<OpId> all(std::vector<std::vector<OpId>>(1'000, {OpId(1), OpId(2)}));
  EXPECT_LE(all.ownBytes(), 4 * 1'001 + 4 * 2'000 + 2 * kBlockHeaderBytes);
}

}  // namespace
}  // namespace poet
