#include "descriptor.h"

#include <unistd.h>

namespace podwire {

Descriptor::~Descriptor() { Reset(-1); }

void Descriptor::Reset(int descriptor) {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = descriptor;
}

}  // namespace podwire
