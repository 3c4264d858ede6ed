// Requests on every engine: what they answer, and that whoever waits for them sleeps.
#include "store/io_engine.h"

#include <gtest/gtest.h>

#include <set>

#include "store/page_file.h"
#include "store/store_testing.h"

namespace poet::store {
namespace {

constexpr int kDepth = 4;
constexpr int64_t kOneWrite = 64 << 10;

class IoEngineTest : public StoreTest, public ::testing::WithParamInterface<IoPath> {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    engine_ = openEngine(GetParam(), true, kDepth);
    if (engine_ == nullptr) GTEST_SKIP() << "not on this machine";
    file_ = std::make_unique<PageFile>(directory_);
    file_->growTo(16 * kOneWrite);
  }

  // Everything at `offsets`, kDepth at once.
  void carryOutAll(Transfer kind, std::byte* data, const std::vector<int64_t>& offsets) {
    std::vector<IoRequest> requests(offsets.size());
    std::set<const IoRequest*> back;
    size_t under_way = 0;
    const auto take = [&] {
      IoRequest* const request = engine_->take(true);
      ASSERT_NE(request, nullptr);
      EXPECT_EQ(request->answer, kOneWrite);
      EXPECT_TRUE(back.insert(request).second) << "given back twice";
      --under_way;
    };
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (under_way == kDepth) take();
      requests[i] = file_->request(kind, data + offsets[i], kOneWrite, offsets[i]);
      engine_->submit(&requests[i]);
      ++under_way;
    }
    while (under_way > 0) take();
    EXPECT_EQ(back.size(), offsets.size());
    EXPECT_EQ(engine_->take(false), nullptr);
  }

  std::vector<int64_t> everyOffset() const {
    std::vector<int64_t> offsets;
    for (int64_t at = 0; at < file_->bytes(); at += kOneWrite) offsets.push_back(at);
    return offsets;
  }

  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<PageFile> file_;
};

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineTest,
                         ::testing::Values(IoPath::kRing, IoPath::kThreads, IoPath::kBlocking),
                         [](const auto& run) {
                           return run.param == IoPath::kRing      ? "Ring"
                                  : run.param == IoPath::kThreads ? "Threads"
                                                                  : "Blocking";
                         });

TEST_P(IoEngineTest, GivesEveryRequestBackOnce) {
  const AlignedBuffer out(file_->bytes());
  const AlignedBuffer in(file_->bytes());
  const Bytes value = randomValue(out.bytes(), 1);
  std::memcpy(out.data(), value.data(), value.size());
  std::memset(in.data(), 0xEE, value.size());
  carryOutAll(Transfer::kWrite, out.data(), everyOffset());
  carryOutAll(Transfer::kRead, in.data(), everyOffset());
  EXPECT_EQ(std::memcmp(in.data(), value.data(), value.size()), 0);
  EXPECT_EQ(engine_->path(), GetParam());
}

TEST_P(IoEngineTest, AFailureIsAnAnswer) {
  const AlignedBuffer buffer(kOneWrite);
  std::memset(buffer.data(), 0, kOneWrite);
  for (const Transfer kind : {Transfer::kRead, Transfer::kWrite}) {
    IoRequest request = file_->request(kind, buffer.data(), kOneWrite, 0);
    request.fd = -1;
    engine_->submit(&request);
    ASSERT_EQ(engine_->take(true), &request);
    EXPECT_EQ(request.answer, -EBADF);
  }
}

TEST_P(IoEngineTest, EndsWithoutARequest) { engine_ = nullptr; }

// As a process does that closes all descriptors it does not know.
TEST(IoEngineRing, GoesOnWithoutItsDescriptor) {
  const auto engine = openEngine(IoPath::kRing, true, kDepth);
  if (engine == nullptr) GTEST_SKIP() << "no io_uring here";
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error);
    if (target.find("io_uring") != std::string::npos) {
      ASSERT_EQ(::close(std::stoi(entry.path().filename())), 0);
    }
  }
  const AlignedBuffer buffer(kOneWrite);
  const PageFile file(PageStore::open("")->directory());
  for (int i = 0; i < 3 * kDepth; ++i) {
    IoRequest request = file.request(Transfer::kRead, buffer.data(), kOneWrite, 0);
    engine->submit(&request);
    ASSERT_EQ(engine->take(true), &request);
    EXPECT_EQ(request.answer, 0) << "the end of an empty file";
  }
}

}  // namespace
}  // namespace poet::store
