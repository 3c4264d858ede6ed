// How many random cases a property test tries: POET_PROPERTY_FACTOR times as many as usual
// (`make nightly` asks for more).
#pragma once

#include <cstdlib>

namespace poet::testing {

inline int propertyCases(int usual) {
  const char* factor = std::getenv("POET_PROPERTY_FACTOR");
  return factor != nullptr ? usual * std::atoi(factor) : usual;
}

}  // namespace poet::testing
