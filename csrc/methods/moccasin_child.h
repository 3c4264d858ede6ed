// The source of moccasin_child.py, which CMake puts into the library.
#pragma once

namespace poet::methods {

extern const char* const kMoccasinChild;

}  // namespace poet::methods
