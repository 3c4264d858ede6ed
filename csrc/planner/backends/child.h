// A forked process and the socket to it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>

#include "planner/clock.h"

namespace poet::planner {

// Killed and reaped when it goes out of scope; dies with the thread that made it. One thread at a
// time.
class Child {
 public:
  // Forks. `run` gets the child's end of the socket; the process ends when it returns or throws.
  // Where no process could be started, every call below fails.
  explicit Child(const std::function<void(int socket)>& run);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  // False where the child has ended or the time is over; the child is then killed.
  bool send(const void* data, size_t size, const WallDeadline& deadline);
  bool receive(void* data, size_t size, const WallDeadline& deadline);
  bool running() const { return pid_ > 0; }

 private:
  bool waitFor(short events, const WallDeadline& deadline);
  bool end();  // false

  pid_t pid_ = -1;
  int socket_ = -1;
};

// In the child: blocking, false where the parent is gone.
bool writeAll(int socket, const void* data, size_t size);
bool readAll(int socket, void* data, size_t size);

}  // namespace poet::planner
