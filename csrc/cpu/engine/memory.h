// Memory that belongs to one owner, from the pool of blocks.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "../pool.h"

namespace gma {
namespace engine {

// A movable array, aligned to 64 bytes, contents arbitrary at first.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(int64_t count) : size_(count) {
    if (count == 0) return;
    data_ = static_cast<T*>(take_block(bytes()));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  Array(Array&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Array() {
    if (data_ != nullptr) give_block(data_, bytes());
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return size_; }
  size_t bytes() const { return size_t(size_) * sizeof(T); }

  void clear() {
    if (data_ != nullptr) std::memset(data_, 0, bytes());
  }

  // room for so many; what was there is lost
  void reserve(int64_t count) {
    if (count <= size_) return;
    Array().swap(*this);
    Array(count).swap(*this);
  }

  void swap(Array& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

// Rows of one width that grow by appending, as a sentence does: what one sentence holds costs no other one memory.
class GrowingRows {
 public:
  explicit GrowingRows(int64_t width) : width_(width) {}

  const float* data() const { return rows_.data(); }
  float* row(int64_t place) { return rows_.data() + place * width_; }
  int64_t width() const { return width_; }
  int64_t bytes() const { return int64_t(rows_.bytes()); }

  // `held` rows stay
  void reserve(int64_t held, int64_t count) {
    if (count * width_ <= rows_.size()) return;
    const int64_t had = rows_.size() / width_;
    Array<float> grown((had == 0 ? whole(count) : whole(count > had + had / 2 ? count : had + had / 2)) * width_);
    if (held > 0) std::memcpy(grown.data(), rows_.data(), size_t(held * width_) * sizeof(float));
    rows_.swap(grown);
  }

  void copy(const GrowingRows& other, int64_t held) {
    reserve(0, held);
    if (held > 0) std::memcpy(rows_.data(), other.rows_.data(), size_t(held * width_) * sizeof(float));
  }

 private:
  static constexpr int64_t step = 8;
  static int64_t whole(int64_t count) { return (count + step - 1) / step * step; }

  int64_t width_;
  Array<float> rows_;
};

}  // namespace engine
}  // namespace gma
