#include "trace/known_tensor.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace poet {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

WeakTensor noTensor() { return WeakTensor(c10::intrusive_ptr<c10::TensorImpl>()); }

}  // namespace

struct KnownTensor::Cell {
  Cell() = default;
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;
  ~Cell();

  void refer(WeakTensor to) {
    const std::lock_guard<std::mutex> lock(mutex);
    tensor = std::move(to);
  }

  std::mutex mutex;  // of its own: steps that know other tensors share none
  WeakTensor tensor = noTensor();
};

namespace {

// The cell of each tensor that is known, by its address, which the cell's weak reference keeps from
// reuse. Never destroyed: recordings may outlive static destruction.
struct Cells {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, std::weak_ptr<KnownTensor::Cell>> of;
};

Cells& cells() {
  static auto* all = new Cells;
  return *all;
}

}  // namespace

KnownTensor::Cell::~Cell() {
  const std::lock_guard<std::mutex> lock(cells().mutex);
  const auto own = cells().of.find(tensor._unsafe_get_target());
  if (own != cells().of.end() && own->second.expired()) cells().of.erase(own);
}

KnownTensor::KnownTensor(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(cells().mutex);
  std::weak_ptr<Cell>& known = cells().of[tensor.unsafeGetTensorImpl()];
  cell_ = known.lock();
  if (cell_) return;
  cell_ = std::make_shared<Cell>();
  cell_->refer(WeakTensor(tensor.getIntrusivePtr()));
  known = cell_;
}

c10::intrusive_ptr<c10::TensorImpl> KnownTensor::lock() const {
  if (!cell_) return {};
  const std::lock_guard<std::mutex> lock(cell_->mutex);
  return cell_->tensor.lock();
}

void KnownTensor::whileSwapped(c10::TensorImpl* a, c10::TensorImpl* b,
                               const std::function<void()>& swap) {
  const auto let_go = [](const c10::TensorImpl* tensor) {
    const std::lock_guard<std::mutex> lock(cells().mutex);
    const auto known = cells().of.find(tensor);
    if (known == cells().of.end()) return std::shared_ptr<Cell>();
    std::shared_ptr<Cell> cell = known->second.lock();
    cells().of.erase(known);
    if (cell) cell->refer(noTensor());
    return cell;
  };
  const auto take = [](const std::shared_ptr<Cell>& cell, c10::TensorImpl* tensor) {
    if (!cell) return;
    const std::lock_guard<std::mutex> lock(cells().mutex);
    cell->refer(WeakTensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(tensor)));
    cells().of[tensor] = cell;
  };
  const std::shared_ptr<Cell> of_a = let_go(a), of_b = let_go(b);
  try {
    swap();
  } catch (...) {
    take(of_a, a);
    take(of_b, b);
    throw;
  }
  take(of_a, b);
  take(of_b, a);
}

}  // namespace poet
