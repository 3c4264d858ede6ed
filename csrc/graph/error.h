// Failures of a call. The outcome of a solve is a status (schedule/schedule.h), never one of these.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "graph/export.h"

namespace poet {

// Base of everything that poet throws.
class POET_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument that makes no sense. Python: poet.ArgumentError (a ValueError).
class POET_API ArgumentError : public Error {
 public:
  using Error::Error;
};

// A file or a structure that is damaged or contradicts itself. Python: poet.FormatError (a
// ValueError).
class POET_API FormatError : public Error {
 public:
  using Error::Error;
};

// A schedule that does not belong to, or cannot be carried out on, a graph. Python:
// poet.ScheduleError (a ValueError).
class POET_API ScheduleError : public Error {
 public:
  using Error::Error;
};

// A live step cannot be kept inside its budget. Python: poet.BudgetError (a RuntimeError).
class POET_API BudgetError : public Error {
 public:
  using Error::Error;
};

namespace detail {
template <class... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
}  // namespace detail

// The user can mend it: say what was expected, what was got, what to do.
#define POET_CHECK_AS(ErrorType, condition, ...)                             \
  do {                                                                       \
    if (!(condition)) throw ErrorType(::poet::detail::message(__VA_ARGS__)); \
  } while (false)
#define POET_CHECK(condition, ...) POET_CHECK_AS(::poet::ArgumentError, condition, __VA_ARGS__)

// We must mend it.
#define POET_INTERNAL_ASSERT(condition, ...)                                                     \
  do {                                                                                           \
    if (!(condition))                                                                            \
      throw ::poet::Error(::poet::detail::message("poet: internal error at ", __FILE__, ":",     \
                                                  __LINE__, ": ", #condition, ": ", __VA_ARGS__, \
                                                  ". Please report this."));                     \
  } while (false)

}  // namespace poet
