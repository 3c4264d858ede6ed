// StepUndo: what a step has changed of what was there before it, so that a call that cannot go on
// leaves no trace.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <utility>
#include <vector>

#include "runtime/generator_state.h"
#include "trace/recording.h"

namespace poet {

// Copies of small storages (running statistics, counters) from before their first write, and of the
// generators. Large writes (parameters, accumulated gradients) are not undone: whoever asks for one
// learns that there is no way back. Not thread-safe.
class StepUndo {
 public:
  static constexpr int64_t kMostBytes = int64_t{1} << 20;  // of all copies together

  void begin();
  void noteGenerator(at::CPUGeneratorImpl& generator);
  // Before the storage is written. False where its bytes are too many.
  bool noteWrite(const StorageHold& storage);
  // Puts everything back as it was. What has no memory any more stays as it is.
  void undo();
  void clear();

 private:
  struct Saved {
    WeakStorage storage;
    c10::StorageImpl* address;
    std::vector<char> bytes;
  };
  std::vector<Saved> storages_;
  std::vector<std::pair<at::Generator, GeneratorState>> generators_;
  int64_t saved_bytes_ = 0;
};

}  // namespace poet
