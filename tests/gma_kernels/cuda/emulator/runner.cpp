// Runs cases on the emulated kernels: runner CASES RESULTS. Both files are described in tests/support/cuda_emulator.py,
// which writes the one and reads the other. Every tensor has a block of memory of its own, of exactly its size.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "launch.h"

namespace {

struct File {
  std::FILE* file;

  File(const char* path, const char* mode) : file(std::fopen(path, mode)) {
    if (file == nullptr) quit(std::string("cannot open ") + path);
  }
  ~File() { std::fclose(file); }

  [[noreturn]] static void quit(const std::string& reason) {
    std::fprintf(stderr, "runner: %s\n", reason.c_str());
    std::exit(2);
  }
  void read(void* to, size_t bytes) {
    if (bytes > 0 && std::fread(to, 1, bytes, file) != bytes) quit("the file of cases ends too soon");
  }
  void write(const void* from, size_t bytes) {
    if (bytes > 0 && std::fwrite(from, 1, bytes, file) != bytes) quit("the results cannot be written");
  }
  template <class T>
  T next() {
    T x;
    read(&x, sizeof x);
    return x;
  }
};

// Memory that begins `shift` bytes past a multiple of 16 and ends where the tensor does.
struct Memory {
  size_t bytes = 0, shift = 0;
  std::unique_ptr<unsigned char[]> block;

  Memory() = default;
  Memory(size_t bytes, size_t shift) : bytes(bytes), shift(shift), block(new unsigned char[bytes + shift]) {
    // NaN in every floating-point type
    for (size_t i = 0; i < bytes + shift; ++i) block[i] = 0xff;
  }
  void* data() const { return bytes == 0 ? nullptr : block.get() + shift; }
};

// One that is absent has no bytes and shows null.
struct Input {
  Memory memory;
  int64_t strides[3];

  explicit Input(File& file) {
    const auto bytes = file.next<int64_t>(), shift = file.next<int64_t>();
    for (int64_t& stride : strides) stride = file.next<int64_t>();
    memory = Memory(size_t(bytes), size_t(shift));
    file.read(memory.data(), memory.bytes);
  }
  template <class T>
  gma::View<T> view() const {
    return {static_cast<T*>(memory.data()), strides[0], strides[1], strides[2]};
  }
};

// [B, heads, rows, columns], dense in memory as [B, rows, heads, columns]
struct Output {
  Memory memory;
  gma::View<void> view;

  Output(int64_t batches, int64_t heads, int64_t rows, int64_t columns, int64_t size)
      : memory(size_t(batches * heads * rows * columns * size), 0),
        view{memory.data(), rows * heads * columns, columns, heads * columns} {}

  void write(File& file) const {
    const auto bytes = int64_t(memory.bytes);
    file.write(&bytes, sizeof bytes);
    file.write(memory.data(), memory.bytes);
  }
};

// [B, heads, rows]; one head serves all through a stride of 0
Output row_output(int64_t batches, int64_t heads, int64_t rows) {
  Output output(batches, rows, heads, 1, 4);
  output.view = {output.memory.data(), heads * rows, heads == 1 ? 0 : rows, 1};
  return output;
}

void expect_success(const std::string& error) {
  if (!error.empty()) File::quit(error);
}

void run_case(File& cases, File& results) {
  gma::BackwardParams p{};
  p.scalar_type = static_cast<gma::ScalarType>(cases.next<int64_t>());
  p.prior = static_cast<gma::PriorKind>(cases.next<int64_t>());
  for (int64_t* size : {&p.batches, &p.heads, &p.group, &p.rows, &p.keys, &p.head_size, &p.value_size})
    *size = cases.next<int64_t>();
  const auto sentences = cases.next<int64_t>();  // -1 unless packed
  const auto center_heads = cases.next<int64_t>(), width_heads = cases.next<int64_t>();
  p.drop_below = static_cast<uint32_t>(cases.next<int64_t>());
  const auto seed = std::make_unique<uint64_t>(cases.next<uint64_t>());
  // by value or by pointer, as the caller likes
  if (*seed % 2 == 0) p.seed = *seed;
  else p.seed_pointer = seed.get();
  p.scale = cases.next<double>();
  p.keep_scale = cases.next<double>();
  const Input query(cases), key(cases), value(cases), center(cases), width(cases), visible(cases), grad(cases);
  const Input first(cases), grad_logsumexp(cases), query_offsets(cases), key_offsets(cases);
  p.query = query.view<const void>();
  p.key = key.view<const void>();
  p.value = value.view<const void>();
  p.center = center.view<const void>();
  p.width = width.view<const void>();
  p.visible = visible.view<const int32_t>();
  p.first = first.view<const int32_t>();
  p.grad_context = grad.view<const void>();
  p.grad_logsumexp = grad_logsumexp.view<const void>();

  const int64_t batches = p.batches, key_heads = p.heads / p.group;
  if (sentences >= 0) {
    p.packed_rows = p.rows;
    p.batches = sentences;
    p.query_offsets = query_offsets.view<const int32_t>().data;
    p.key_offsets = key_offsets.view<const int32_t>().data;
  }
  const int64_t size = p.scalar_type == gma::ScalarType::float32 ? 4 : 2;
  const Output context(batches, p.heads, p.rows, p.value_size, size);
  Output logsumexp(batches, p.heads, p.rows, 1, 4);
  logsumexp.view = {logsumexp.memory.data(), p.heads * p.rows, p.rows, 1};
  p.context = context.view;
  p.logsumexp = logsumexp.view;
  const Memory forward_space(gma::cuda::forward_workspace(p), 0);
  expect_success(gma::cuda::forward(p, forward_space.data(), nullptr));

  // there is no operator for weights of packed sentences
  const Memory weights(sentences >= 0 ? 0 : size_t(batches * p.heads * p.rows * p.keys * size), 0);
  if (sentences < 0) expect_success(gma::cuda::attention_weights(p, weights.data(), nullptr));

  const Output grad_query(batches, p.heads, p.rows, p.head_size, size);
  const Output grad_key(batches, key_heads, p.keys, p.head_size, size);
  const Output grad_value(batches, key_heads, p.keys, p.value_size, size);
  const Output grad_center = row_output(batches, center_heads, p.rows);
  const Output grad_width = row_output(batches, width_heads, p.rows);
  p.grad_query = grad_query.view;
  p.grad_key = grad_key.view;
  p.grad_value = grad_value.view;
  p.grad_center = grad_center.view;
  p.grad_width = grad_width.view;
  const Memory backward_space(gma::cuda::backward_workspace(p), 0);
  expect_success(gma::cuda::backward(p, backward_space.data(), nullptr));

  context.write(results);
  logsumexp.write(results);
  const auto bytes = int64_t(weights.bytes);
  results.write(&bytes, sizeof bytes);
  results.write(weights.data(), weights.bytes);
  for (const Output* output : {&grad_query, &grad_key, &grad_value, &grad_center, &grad_width}) output->write(results);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) File::quit("expected two arguments, the files of cases and of results");
  File cases(arguments[1], "rb"), results(arguments[2], "wb");
  for (auto left = cases.next<int64_t>(); left > 0; --left) run_case(cases, results);
}
