#pragma once

#include <napi.h>

#include "binding/shape.h"

namespace podwire::netlink {

/** What each environment (the main thread, every worker thread) has for itself. */
struct Environment {
  /** The constructor of NativeNamespace. */
  Napi::FunctionReference namespaces;
  Shapes shapes;
};

}  // namespace podwire::netlink
