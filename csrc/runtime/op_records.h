// OpRecords: what is kept of the calls of one step's ops, for those that may have to run again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/heap_bytes.h"
#include "runtime/op_record.h"

namespace poet {

// By op. Few ops of a plan are ever run again, so a record is made where one is captured first; it
// stays for the next step's, whose capture then allocates nothing. Not thread-safe.
class OpRecords {
 public:
  size_t size() const { return records_.size(); }
  // Those of the ops from `ops` on go.
  void resize(size_t ops) {
    while (!captured_.empty() && captured_.back() >= ops) captured_.pop_back();
    records_.resize(ops);
  }
  // Of an op for which nothing was captured it is not set.
  const OpRecord& operator[](size_t op) const {
    static const OpRecord none;
    return records_[op] ? *records_[op] : none;
  }
  // Where the op's call is to be captured: of the running op, the last so far.
  OpRecord& forCapture(size_t op) {
    if (!records_[op]) records_[op] = std::make_unique<OpRecord>();
    if (captured_.empty() || captured_.back() != op) captured_.push_back(op);
    return *records_[op];
  }
  // What the records hold goes; they stay.
  void clear() {
    for (const size_t op : captured_) records_[op]->clear();
    captured_.clear();
  }
  int64_t ownBytes() const {
    return heapBytes(captured_) + heapBytes(records_, [](const std::unique_ptr<OpRecord>& one) {
             return one ? heapBlock(sizeof(OpRecord)) + heapBytes(one->args()) +
                              heapBytes(one->held())
                        : 0;
           });
  }

 private:
  std::vector<std::unique_ptr<OpRecord>> records_;
  std::vector<size_t> captured_;  // ascending
};

}  // namespace poet
