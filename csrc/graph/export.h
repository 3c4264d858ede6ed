// POET_API marks what the shared libraries export; everything else has hidden visibility.
#pragma once

#define POET_API __attribute__((visibility("default")))
