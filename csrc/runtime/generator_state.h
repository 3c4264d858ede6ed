// The state of a CPU generator: mt19937 and the cached normal samples (5,056 bytes).
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/stack.h>

#include <mutex>
#include <optional>

namespace poet {

class GeneratorState {
 public:
  static GeneratorState of(at::CPUGeneratorImpl& generator) {
    const std::lock_guard<std::mutex> lock(generator.mutex_);
    return {generator.engine(), generator.next_float_normal_sample(),
            generator.next_double_normal_sample()};
  }
  void putInto(at::CPUGeneratorImpl& generator) const {
    const std::lock_guard<std::mutex> lock(generator.mutex_);
    generator.set_engine(engine_);
    generator.set_next_float_normal_sample(next_float_);
    generator.set_next_double_normal_sample(next_double_);
  }

 private:
  GeneratorState(at::mt19937 engine, std::optional<float> f, std::optional<double> d)
      : engine_(engine), next_float_(f), next_double_(d) {}
  at::mt19937 engine_;
  std::optional<float> next_float_;
  std::optional<double> next_double_;
};

// The generator that an op with these arguments draws from; null when it is no CPU generator.
inline at::CPUGeneratorImpl* generatorOf(const torch::jit::Stack& args) {
  for (const c10::IValue& arg : args) {
    if (!arg.isGenerator()) continue;
    const at::Generator generator = arg.toGenerator();
    return generator.device().is_cpu() ? at::check_generator<at::CPUGeneratorImpl>(generator)
                                       : nullptr;
  }
  return at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

// Draws from a saved state within its lifetime; afterwards the generator is as it was.
class GeneratorGuard {
 public:
  GeneratorGuard(at::CPUGeneratorImpl& generator, const GeneratorState& as_then)
      : generator_(generator), before_(GeneratorState::of(generator)) {
    as_then.putInto(generator_);
  }
  ~GeneratorGuard() { before_.putInto(generator_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  at::CPUGeneratorImpl& generator_;
  GeneratorState before_;
};

}  // namespace poet
