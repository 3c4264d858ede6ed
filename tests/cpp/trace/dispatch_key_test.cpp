#include "trace/dispatch_key.h"

#include <gtest/gtest.h>
#include <torch/library.h>

#include <cstdlib>
#include <iostream>

#include "graph/error.h"

namespace poet {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// What must be tried in a process where nothing has been registered yet.
class FreshProcess : public ::testing::Test {
 protected:
  FreshProcess() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  template <class F>
  static void exitWithMessage(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      std::cerr << e.what() << std::endl;
      std::_Exit(3);
    }
    std::cerr << "no error" << std::endl;
    std::_Exit(0);
  }
};
using FreshProcessDeathTest = FreshProcess;

TEST_F(FreshProcessDeathTest, ThisTorchHasTheKeyFreeAndInPlace) {
  EXPECT_EXIT(exitWithMessage(&checkListeningKey), ::testing::ExitedWithCode(0), "no error");
}

TEST_F(FreshProcessDeathTest, RegisteringTwiceIsOnce) {
  EXPECT_EXIT(exitWithMessage([] {
                registerListener();
                registerListener();
              }),
              ::testing::ExitedWithCode(0), "no error");
}

TEST_F(FreshProcessDeathTest, AKeyThatIsTakenIsRefusedBeforeAnythingIsRegistered) {
  EXPECT_EXIT(exitWithMessage([] {
                torch::Library other(torch::Library::IMPL, "_", kListeningKey, __FILE__, __LINE__);
                other.fallback(torch::CppFunction::makeFallthrough());
                registerListener();
              }),
              ::testing::ExitedWithCode(3), "Fake.*has registered a fallback on it already");
}

TEST(DispatchKeyTest, OurOwnFallbackTakesTheKey) {
  registerListener();
  EXPECT_THROW(checkListeningKey(), Error);
}

TEST(DispatchKeyTest, KeysBelowAreTheBackendsAlone) {
  const DispatchKeySet keys({DispatchKey::CPU, DispatchKey::AutogradCPU,
                             DispatchKey::ADInplaceOrView, kListeningKey,
                             DispatchKey::BackendSelect});
  const DispatchKeySet below = keysBelow(keys);
  EXPECT_TRUE(below.has(DispatchKey::CPU));
  EXPECT_TRUE(below.has(DispatchKey::BackendSelect));
  EXPECT_FALSE(below.has(kListeningKey));
  EXPECT_FALSE(below.has(DispatchKey::AutogradCPU));
  EXPECT_FALSE(below.has(DispatchKey::ADInplaceOrView));
}

TEST(DispatchKeyTest, GuardsPutBackWhatWasThere) {
  const auto listening = [] { return c10::impl::tls_is_dispatch_key_included(kListeningKey); };
  ASSERT_FALSE(listening());
  {
    const ListeningGuard outer;
    EXPECT_TRUE(listening());
    {
      const ListeningGuard inner;
      EXPECT_TRUE(listening());
    }
    EXPECT_TRUE(listening());
  }
  EXPECT_FALSE(listening());
}

}  // namespace
}  // namespace poet
