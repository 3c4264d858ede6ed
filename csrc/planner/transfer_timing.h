// When transfers run beside computation: when each of a schedule's begins. Only for devices with
// DMA.
#pragma once

#include <cstdint>

#include "device/profile.h"
#include "planner/event_list.h"
#include "schedule/schedule.h"

namespace poet::planner {

// Note [Timing of transfers]
// A plan decides what leaves and when it is needed again; as extracted, each value is freed right
// after its last touch, where the step waits for its page_out, and comes back right before its next
// one, where it waits for its page_in. The timing walks the events once, with the clock and the
// channels of Note [Time of transfers] (schedule/schedule.h), and
// - puts off a free whose page_out is not done, until it is, or until its bytes are needed: then
//   the values whose page_outs end first go first;
// - starts a page_in as soon as a channel would take it during the next event, once its time has
//   come, if its bytes fit at every event between there and its old place. Its time: the latest
//   start of a transfer that is done when it is needed and when the next one must begin,
//   finish_j = min(need_j, start_{j+1}), backwards over the page_ins in the order of their use, in
//   seconds of computation.
// Late starts leave memory to frees; early ones make up for what else the channel does. So a few
// walks with transfers stretched by different factors are made, and the fastest is taken.
class TransferTiming {
 public:
  TransferTiming(const GraphFacts& facts, const DeviceProfile& profile)
      : facts_(facts), profile_(profile) {}

  // Reorders the transfers and frees of the schedule within `budget_bytes` where that makes the
  // step faster, and writes believed_seconds and believed_peak_bytes. The schedule must be one that
  // the simulator carries out. O((ops + actions) x page-ins) at worst.
  // Without `moves` it only writes the two.
  void improve(int64_t budget_bytes, Schedule& schedule, bool moves = true) const;

 private:
  const GraphFacts& facts_;
  const DeviceProfile& profile_;
};

}  // namespace poet::planner
