// A hash of what memory holds, as fast as memory is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace poet {

// Equal bytes have equal hashes in one process; another machine's may differ. Bytes of equal length
// that differ within one word of eight bytes have other sums before these are mixed; other ones
// have equal hashes with a chance of about 2^-64, unless somebody looks for such. Reads `size`
// bytes at any alignment.
uint64_t contentHash(const void* data, size_t size);

// The two ways there are; contentHash() takes the faster one that this processor has.
uint64_t portableContentHash(const void* data, size_t size);
bool hasVectorContentHash();
uint64_t vectorContentHash(const void* data, size_t size);

}  // namespace poet
