// What extensions do: native code that reads and fills tensors through their pointers. And memory
// that the machine does not have.
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <atomic>

namespace {

void cubeInto(const at::Tensor& x, at::Tensor& y) {
  const float* from = x.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * from[i] * from[i];
}

// The form of PyTorch's tutorial on extensions.
at::Tensor cube(at::Tensor x) {
  x = x.detach().contiguous();
  at::Tensor y = torch::empty_like(x);
  cubeInto(x, y);
  return y;
}

at::Tensor cubeOfZeros(at::Tensor x) {
  x = x.contiguous();
  at::Tensor y = torch::zeros(x.sizes(), x.options());
  cubeInto(x, y);
  return y;
}

at::Tensor cubeOfClone(const at::Tensor& x) {
  at::Tensor y = x.clone();
  cubeInto(y, y);
  return y;
}

// Into what an operator returned, as compiled kernels do with what follows a matrix product.
at::Tensor productAndCube(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor y = a.mm(b);
  cubeInto(y, y);
  return y;
}

at::Tensor halfFilled(at::Tensor x) {
  x = x.contiguous();
  at::Tensor y = torch::empty_like(x);
  cubeInto(x, y);
  y.narrow(0, 0, x.size(0) / 2).zero_();
  return y;
}

at::Tensor cubeBackward(at::Tensor gradient, at::Tensor x) {
  gradient = gradient.contiguous();
  x = x.contiguous();
  at::Tensor y = torch::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  const float* by = gradient.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 3 * from[i] * from[i] * by[i];
  return y;
}

class Cube : public torch::autograd::Function<Cube> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return cube(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    return {cubeBackward(gradients[0], ctx->get_saved_variables()[0])};
  }
};

at::Tensor cubeFunction(const at::Tensor& x) { return Cube::apply(x); }

// Reads its argument's memory, and nothing announces it.
double firstOf(const at::Tensor& x) { return x.const_data_ptr<float>()[0]; }

// In front of PyTorch's CPU allocator, whichever that is: one allocation fails.
class FailingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes == 0 || --left_ != 0, "injected: there are no ", bytes,
                     " bytes");
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

  // The nth from here on fails; 0: none. True where the one before has failed.
  bool arm(int64_t nth) {
    if (inner_ == nullptr) {
      inner_ = c10::GetCPUAllocator();
      c10::SetCPUAllocator(this, /*priority=*/100);
    }
    return left_.exchange(nth) <= 0;
  }

 private:
  c10::Allocator* inner_ = nullptr;
  std::atomic<int64_t> left_ = 0;
};

FailingAllocator& failing() {
  static auto* const allocator = new FailingAllocator;  // for good: storages refer to it
  return *allocator;
}

}  // namespace

TORCH_LIBRARY(poet_tests_native, m) {
  m.def("cube(Tensor x) -> Tensor");
  m.def("cube_(Tensor(a!) x) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(poet_tests_native, CPU, m) {
  m.impl("cube", [](const at::Tensor& x) { return cube(x); });
  m.impl("cube_", [](at::Tensor& x) -> at::Tensor& {
    cubeInto(x, x);
    return x;
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("cube", &cube);
  m.def("cube_of_zeros", &cubeOfZeros);
  m.def("cube_of_clone", &cubeOfClone);
  m.def("product_and_cube", &productAndCube);
  m.def("half_filled", &halfFilled);
  m.def("cube_backward", &cubeBackward);
  m.def("cube_function", &cubeFunction);
  m.def("first_of", &firstOf);
  m.def("fail_allocation", [](int64_t nth) { return failing().arm(nth); });
}
