#pragma once

#include <napi.h>

#include <vector>

#include "socket/sequence.h"

namespace podwire::netlink {

// The array of NativeStep (lib/native.ts) as steps, those without a namespace of their own in `within`; leaves a
// pending exception when something in it is wrong.
std::vector<Step> ReadSteps(Napi::Value value, const std::shared_ptr<Namespace>& within);

}  // namespace podwire::netlink
