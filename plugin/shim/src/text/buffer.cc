#include "text/buffer.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace podwire {
namespace {

constexpr std::size_t kSmallestCapacity = 512;

[[noreturn]] void EndWithoutMemory() {
  constexpr std::string_view kDocument =
      R"({"cniVersion":"1.0.0","code":5,"msg":"podwire: out of memory","details":"free memory on the node"})"
      "\n";
  const ssize_t written = write(STDOUT_FILENO, kDocument.data(), kDocument.size());
  _exit(written < 0 ? 2 : 1);
}

}  // namespace

Buffer::~Buffer() { std::free(data_); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

char* Buffer::Room(std::size_t count) {
  if (capacity_ - size_ >= count) return data_ + size_;
  std::size_t capacity = capacity_ == 0 ? kSmallestCapacity : capacity_;
  while (capacity - size_ < count) capacity *= 2;
  char* const grown = static_cast<char*>(std::realloc(data_, capacity));
  if (grown == nullptr) EndWithoutMemory();
  data_ = grown;
  capacity_ = capacity;
  return data_ + size_;
}

void Buffer::Append(std::string_view bytes) {
  if (bytes.empty()) return;
  std::memcpy(Room(bytes.size()), bytes.data(), bytes.size());
  size_ += bytes.size();
}

Buffer Concat(std::initializer_list<std::string_view> parts) {
  Buffer text;
  for (const std::string_view part : parts) text.Append(part);
  return text;
}

Decimal::Decimal(std::uint64_t value) {
  do {
    digits_[--first_] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
}

}  // namespace podwire
