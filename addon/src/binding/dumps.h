#pragma once

#include <napi.h>

#include <memory>

#include "binding/job.h"
#include "socket/namespace.h"

namespace podwire::netlink {

// A promise of a list; an empty value leaves a pending exception about the filter.
using Dump = Napi::Value(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value filter);

Dump DumpLinks;
Dump DumpAddresses;
Dump DumpRoutes;
Dump DumpRules;
Dump DumpFdb;
Dump DumpNeighbours;

}  // namespace podwire::netlink
