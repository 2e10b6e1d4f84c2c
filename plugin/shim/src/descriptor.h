#pragma once

namespace podwire {

// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  // Closes the current descriptor. -1 means none.
  void Reset(int descriptor);
  int Get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

}  // namespace podwire
