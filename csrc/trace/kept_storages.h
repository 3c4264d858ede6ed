// Storages whose memory the program has asked to keep (poet.keep), or has handed out.
#pragma once

#include <c10/core/StorageImpl.h>

#include "graph/export.h"
#include "trace/recording.h"

namespace poet {

// Of the whole process, for as long as the storage lives. Thread-safe.
class POET_API KeptStorages {
 public:
  static void add(const StorageHold& storage);
  static bool has(const c10::StorageImpl& storage);
  // Others share its memory for good (DLPack, say), and may write it.
  static void addShared(const StorageHold& storage);
  static bool isShared(const c10::StorageImpl& storage);
};

}  // namespace poet
