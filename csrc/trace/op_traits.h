// What an operator's schema and name say about running it again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace poet {

struct OpTraits {
  std::string name;              // "aten::add.Tensor"
  bool without_tensors = false;  // neither takes nor returns a tensor (profiler::*): passed
                                 // through, not part of a step
  bool random = false;           // Tag::nondeterministic_seeded
  bool reads_no_data = false;    // empty_like and kin: only the shape of the inputs matters
  // Its result is another look at its input, whatever that holds; not detach and alias, see Note
  // [Raw reads behind a view].
  bool is_view = false;
  bool looks_only = false;       // is_view, reads_no_data, or detach and kin: no byte is read
  bool makes_unwritten = false;  // empty and kin: their results hold what was there before
  bool known_pure = false;       // from a namespace whose ops keep no state of their own
  // It changes nothing but a generator: it may be run once more.
  bool repeatable = false;
  // ... and how much it makes depends on what its inputs hold (nonzero, masked_select).
  bool shaped_by_data = false;
  bool rebinds_storage = false;  // resize_, set_: what it touches must keep its memory
  bool lends_inputs = false;     // work on the inputs goes on when the op has returned (c10d)
  // Batch norm: running statistics that training updates though the schema may not say so.
  std::vector<int16_t> statistic_args;
  int16_t training_arg = -1;
  bool overwrites_first = false;  // copy_, fill_ and zero_: nothing of what it held is left
  std::vector<bool> writes_arg;   // per argument: the schema marks it as written
  std::vector<bool> fills_arg;    // ... and what it shows is written without being read

  bool isStatistic(int arg) const {
    return std::find(statistic_args.begin(), statistic_args.end(), arg) != statistic_args.end();
  }
  // The statistics are written, not read, in this very call.
  bool updatesStatistics(const c10::IValue* args) const {
    return !statistic_args.empty() && (training_arg < 0 || args[training_arg].toBool());
  }
};

// Cached by operator; thread-safe; the reference stays valid.
const OpTraits& traitsOf(const c10::OperatorHandle& op);

// Whether the op, which takes `t` as its first argument or in that list, writes every byte of t's
// storage whatever was there, and cannot fail.
bool overwrites(const c10::OperatorHandle& op, const c10::IValue* args, const at::Tensor& t);

}  // namespace poet
