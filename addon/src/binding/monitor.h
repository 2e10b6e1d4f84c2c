#pragma once

#include <napi.h>

#include <memory>

#include "socket/netns.h"

namespace podwire::netlink {

// Promises of a NativeMonitor (lib/native.ts); an empty value leaves a pending exception about the arguments.
Napi::Value OpenMonitor(const std::shared_ptr<const Netns>& netns, const Napi::CallbackInfo& info);
Napi::Value OpenTableMonitor(const std::shared_ptr<const Netns>& netns, const Napi::CallbackInfo& info);
Napi::Value OpenPacketMonitor(const std::shared_ptr<const Netns>& netns, const Napi::CallbackInfo& info);

}  // namespace podwire::netlink
