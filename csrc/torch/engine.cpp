// The decoding engine for Python: weights as arrays that stay where they are, everything else as plain numbers.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <stdexcept>

#include "cpu/engine/batch.h"
#include "threads.h"

namespace py = pybind11;

namespace {

using namespace gma::engine;
using Numbers = py::array_t<float, py::array::c_style>;
using Slots = std::vector<int64_t>;

// A model, and what keeps alive the arrays that it reads its embeddings from.
struct Packed {
  std::shared_ptr<const Model> model;
  py::dict tensors;
};

template <class T>
T setting(const py::dict& settings, const char* name) {
  if (!settings.contains(name)) throw std::invalid_argument(std::string("the setting ") + name + " is missing");
  return settings[name].cast<T>();
}

Settings read_settings(const py::dict& given) {
  Settings s{};
  s.width = setting<int64_t>(given, "width");
  s.heads = setting<int64_t>(given, "heads");
  s.feed_forward = setting<int64_t>(given, "feed_forward");
  s.encoder_layers = setting<int64_t>(given, "encoder_layers");
  s.decoder_layers = setting<int64_t>(given, "decoder_layers");
  s.source_vocabulary = setting<int64_t>(given, "source_vocabulary");
  s.target_vocabulary = setting<int64_t>(given, "target_vocabulary");
  s.end_token = setting<int64_t>(given, "end_token");
  s.causal = setting<bool>(given, "causal");
  const int policy = setting<int>(given, "policy"), prior = setting<int>(given, "prior");
  if (policy < 0 || policy > 3) throw std::invalid_argument("policy is out of range; expected 0 to 3");
  if (prior < 0 || prior > 3) throw std::invalid_argument("prior is out of range; expected 0 to 3");
  s.policy = static_cast<Policy>(policy);
  s.prior = static_cast<gma::PriorKind>(prior);
  s.alignments = setting<int64_t>(given, "alignments");
  s.shares_layers = setting<bool>(given, "shares_layers");
  s.absolute_positions = setting<bool>(given, "absolute_positions");
  s.reference_convention = setting<bool>(given, "reference_convention");
  s.width_factor = setting<double>(given, "width_factor");
  s.catch_up = setting<double>(given, "catch_up");
  return s;
}

WeightType weight_type(const std::string& name) {
  if (name == "float32") return WeightType::float32;
  if (name == "bfloat16") return WeightType::bfloat16;
  if (name == "int8") return WeightType::int8;
  throw std::invalid_argument("weights are '" + name + "'; expected 'float32', 'bfloat16' or 'int8'");
}

std::unique_ptr<Packed> pack(const py::dict& settings, const py::dict& tensors, const std::string& weights) {
  const Tensors find = [&](const std::string& name) -> Tensor {
    if (!tensors.contains(name)) throw std::invalid_argument("the tensor " + name + " is missing");
    const py::object given = tensors[name.c_str()];
    if (!py::isinstance<Numbers>(given))
      throw std::invalid_argument("the tensor " + name + " is not a contiguous array of float32");
    const auto array = given.cast<Numbers>();
    return {array.data(), std::vector<int64_t>(array.shape(), array.shape() + array.ndim())};
  };
  return std::make_unique<Packed>(
      Packed{std::make_shared<const Model>(read_settings(settings), weight_type(weights), find), tensors});
}

// What a batch does is done by one thread at a time, and meanwhile Python goes on.
template <class Body>
auto alone(Batch& batch, const Body& body) {
  const py::gil_scoped_release released;
  const std::lock_guard<std::mutex> lock(batch.mutex());
  return body();
}

}  // namespace

void bind_engine(py::module_& module) {
  // the SIMD level's, with what else the engine has on this CPU
  module.def("decoding_level", [] { return engine_level().name; });
  py::class_<Packed>(module, "PackedModel")
      .def(py::init(&pack), py::arg("settings"), py::arg("tensors"), py::arg("weights"))
      .def_property_readonly("bytes", [](const Packed& self) {
    return self.model->bytes();
  }).def_property_readonly("simd_level", [](const Packed& self) { return self.model->level.name; });

  py::class_<Batch>(module, "Batch")
      .def(py::init([](const Packed& packed) { return std::make_unique<Batch>(packed.model); }), py::keep_alive<1, 2>())
      .def("open", [](Batch& self, double delta,
                      int64_t token) { return alone(self, [&] { return self.open(delta, token); }); })
      .def("change_latency",
           [](Batch& self, int64_t slot, double delta) { alone(self, [&] { self.change_latency(slot, delta); }); })
      .def("close", [](Batch& self, int64_t slot) { alone(self, [&] { self.close(slot); }); })
      .def("fork", [](Batch& self, int64_t slot) { return alone(self, [&] { return self.fork(slot); }); })
      .def("copy",
           [](Batch& self, const std::map<int64_t, int64_t>& origins) { alone(self, [&] { self.copy(origins); }); })
      .def("push",
           [](Batch& self, const Batch::Sources& tokens, bool wanted) {
    const std::vector<float> states =
        alone(self, [&] { return self.push(tokens, wanted, gma::torch_threads().threads); });
    const auto width = py::ssize_t(self.model().settings.width);
    return Numbers({py::ssize_t(states.size()) / width, width}, states.data());
  })
      // None if no slot could go on, else slots, best tokens, source tokens needed, and by layer positions and widths
      .def("advance",
           [](Batch& self, const Slots& slots) -> py::object {
    Scores scores;
    if (!alone(self, [&] {
      const bool any = self.advance(slots, gma::torch_threads().threads);
      scores = self.scores();
      return any;
    }))
      return py::none();
    const auto by_layer = [&](const std::vector<float>& numbers) {
      const size_t layers = size_t(self.model().settings.decoder_layers);
      py::list rows(scores.slots.size());
      for (size_t row = 0; row < scores.slots.size(); ++row) {
        py::list of_layers(layers);
        for (size_t i = 0; i < layers; ++i) of_layers[i] = double(numbers[row * layers + i]);
        rows[row] = std::move(of_layers);
      }
      return rows;
    };
    return py::make_tuple(scores.slots, scores.best, scores.needed, by_layer(scores.positions),
                          by_layer(scores.widths));
  })
      // of the latest step: [n, target vocabulary]
      .def("logits",
           [](Batch& self) {
    const auto columns = py::ssize_t(self.model().settings.target_vocabulary);
    const auto rows = py::ssize_t(self.scores().slots.size());
    Numbers logits({rows, columns});
    float* to = logits.mutable_data();
    alone(self, [&] {
      for (py::ssize_t row = 0; row < rows; ++row, to += columns) std::copy_n(self.logits(row), columns, to);
    });
    return logits;
  })
      .def("write", [](Batch& self, const Slots& slots, const Slots& tokens,
                       int64_t end) { alone(self, [&] { self.write(slots, tokens, end); }); })
      .def("take_back",
           [](Batch& self, int64_t slot, int64_t arrived) { alone(self, [&] { self.take_back(slot, arrived); }); })
      .def("force", [](Batch& self, const Batch::Sources& tokens) {
    alone(self, [&] { self.force(tokens, gma::torch_threads().threads); });
  }).def("slots", [](Batch& self) {
    return alone(self, [&] { return self.slots(); });
  }).def("needed", [](Batch& self, int64_t slot) {
    return alone(self, [&] { return self.sentence(slot).needed; });
  }).def("arrived", [](Batch& self, int64_t slot) {
    return alone(self, [&] { return self.sentence(slot).arrived; });
  }).def_property_readonly("bytes", [](Batch& self) {
    return alone(self, [&] { return self.bytes(); });
  }).def_property_readonly("profile", [](Batch& self) {
    const Profile profile = alone(self, [&] { return self.profile(); });
    py::dict parts;
    parts["encoder"] = profile.encoder;
    parts["products"] = profile.products;
    parts["attention"] = profile.attention;
    parts["alignment"] = profile.alignment;
    parts["norms"] = profile.norms;
    parts["projection"] = profile.projection;
    parts["choice"] = profile.choice;
    parts["steps"] = profile.steps;
    parts["rows"] = profile.rows;
    return parts;
  });
}
