#pragma once

#include <napi.h>

#include <vector>

#include "socket/namespace.h"

namespace podwire::netlink {

/** The array of NativeStep (lib/native.ts) as steps; leaves a pending exception when something in it is wrong. */
std::vector<Step> read_steps(Napi::Value value);

}  // namespace podwire::netlink
