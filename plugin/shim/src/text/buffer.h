// A growable run of bytes. It stands in for std::string, which would bring libstdc++ and its start-up with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace podwire {

// Owns its bytes; moves, never copies. Callers bound its size. Without memory the process ends with a CNI error
// document on stdout, because no caller could do anything better.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void Append(std::string_view bytes);
  void Append(char byte) { Append(std::string_view(&byte, 1)); }

  // Room for `count` bytes behind the end, for a system call to fill; Grow then says how many it filled.
  char* Room(std::size_t count);
  void Grow(std::size_t count) { size_ += count; }

  void RemoveLast() { --size_; }
  void Clear() { size_ = 0; }

  std::string_view View() const { return {data_, size_}; }
  std::size_t Size() const { return size_; }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

Buffer Concat(std::initializer_list<std::string_view> parts);

// A number as decimal text, valid as long as the object lives.
class Decimal {
 public:
  explicit Decimal(std::uint64_t value);
  operator std::string_view() const { return {digits_ + first_, sizeof(digits_) - first_}; }

 private:
  char digits_[20];
  std::size_t first_ = sizeof(digits_);
};

}  // namespace podwire
