// Whole files in and out: used by the readers and writers of graphs and schedules.
#pragma once

#include <string>
#include <string_view>

#include "graph/export.h"

namespace poet {

// Files above this are refused before they are read; a graph of 100,000 ops takes about 50 MB.
inline constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// The bytes of a regular file. Throws Error naming the path and the system's reason.
POET_API std::string readFile(const std::string& path);

// Replaces `path` in one go: a reader sees the old bytes or the new ones, also after a crash.
// Writes a temporary file in the same folder, flushes it to the disk and renames it. A file that is
// replaced keeps its permissions. What is no regular file (a terminal, a pipe, /dev/stdout) stays
// what it is: the bytes are written into it. Throws Error naming the path and the system's reason;
// the old file is then untouched and no temporary file is left.
POET_API void writeFileAtomically(const std::string& path, std::string_view bytes);

}  // namespace poet
