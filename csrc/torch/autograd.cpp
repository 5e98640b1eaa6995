// Autograd for the native operators: what gma_kernels/ops.py does in Python for every backend, in C++ for short calls.
//
// It needs more of torch than the stable ABI has, so it is a library of its own, loaded only into the version of torch
// it was built with. Any other version uses ops.py.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

using Results = std::tuple<Tensor, Tensor>;
using Forward = Results(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const OptionalTensor&, int64_t, double, double);
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Backward = Gradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                           const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&, int64_t, double, double);

template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

const auto& forward_operator() {
  static const auto found = find_operator<Forward>("gma_kernels::native_forward");
  return found;
}

const auto& backward_operator() {
  static const auto found = find_operator<Backward>("gma_kernels::native_backward");
  return found;
}

template <class Operator, class... Arguments>
auto call_below_autograd(const Operator& op, const Arguments&... arguments) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(arguments...);
}

// Forward-mode derivatives also go to a node, which refuses them: past it they would vanish silently.
bool is_differentiated(const Tensor& x) {
  return (at::GradMode::is_enabled() && x.requires_grad()) || x._fw_grad(/*level=*/0).defined();
}

struct AttentionBackward : torch::autograd::Function<AttentionBackward> {
  static variable_list forward(AutogradContext*, const Tensor& grad_context, const Tensor& query, const Tensor& key,
                               const Tensor& value, const Tensor& center, const Tensor& width, const Tensor& visible,
                               const OptionalTensor& seed, const Tensor& context, const Tensor& logsumexp,
                               int64_t prior, double scale, double dropout_p) {
    auto [q, k, v, c, w] = call_below_autograd(backward_operator(), grad_context, query, key, value, center, width,
                                               visible, seed, context, logsumexp, prior, scale, dropout_p);
    return {q, k, v, c, w};
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK(false,
                "gma_kernels: backend 'native' has no double backward; pass backend='reference', which can be "
                "differentiated any number of times");
  }
};

Gradients route_backward(const Tensor& grad_context, const Tensor& query, const Tensor& key, const Tensor& value,
                         const Tensor& center, const Tensor& width, const Tensor& visible, const OptionalTensor& seed,
                         const Tensor& context, const Tensor& logsumexp, int64_t prior, double scale,
                         double dropout_p) {
  for (const Tensor* x : {&grad_context, &query, &key, &value, &center, &width, &context, &logsumexp})
    if (is_differentiated(*x)) {
      const variable_list grads = AttentionBackward::apply(grad_context, query, key, value, center, width, visible,
                                                           seed, context, logsumexp, prior, scale, dropout_p);
      return {grads[0], grads[1], grads[2], grads[3], grads[4]};
    }
  return call_below_autograd(backward_operator(), grad_context, query, key, value, center, width, visible, seed,
                             context, logsumexp, prior, scale, dropout_p);
}

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* node, const Tensor& query, const Tensor& key, const Tensor& value,
                               const Tensor& center, const Tensor& width, const Tensor& visible,
                               const OptionalTensor& seed, int64_t prior, double scale, double dropout_p) {
    auto [context, logsumexp] = call_below_autograd(forward_operator(), query, key, value, center, width, visible, seed,
                                                    prior, scale, dropout_p);
    node->save_for_backward({query, key, value, center, width, visible, seed.value_or(Tensor()), context, logsumexp});
    node->mark_non_differentiable({logsumexp});
    node->saved_data["prior"] = prior;
    node->saved_data["scale"] = scale;
    node->saved_data["dropout_p"] = dropout_p;
    return {context, logsumexp};
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const variable_list saved = node->get_saved_variables();
    const OptionalTensor seed = saved[6].defined() ? OptionalTensor(saved[6]) : std::nullopt;
    // through the dispatcher: its node refuses to differentiate these gradients again
    auto [q, k, v, c, w] =
        backward_operator().call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], seed, saved[7],
                                 saved[8], node->saved_data["prior"].toInt(), node->saved_data["scale"].toDouble(),
                                 node->saved_data["dropout_p"].toDouble());
    const Tensor none;
    return {q, k, v, c, w, none, none, none, none, none};
  }
};

Results route_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& center,
                      const Tensor& width, const Tensor& visible, const OptionalTensor& seed, int64_t prior,
                      double scale, double dropout_p) {
  for (const Tensor* x : {&query, &key, &value, &center, &width})
    if (is_differentiated(*x)) {
      const variable_list results =
          Attention::apply(query, key, value, center, width, visible, seed, prior, scale, dropout_p);
      return {results[0], results[1]};
    }
  return call_below_autograd(forward_operator(), query, key, value, center, width, visible, seed, prior, scale,
                             dropout_p);
}

}  // namespace

TORCH_LIBRARY_IMPL(gma_kernels, AutogradCPU, library) {
  library.impl("native_forward", route_forward);
  library.impl("native_backward", route_backward);
}
