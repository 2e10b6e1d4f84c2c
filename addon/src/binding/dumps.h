#pragma once

#include <napi.h>

#include <memory>

#include "binding/job.h"
#include "socket/namespace.h"

namespace podwire::netlink {

// Promises of lists; an empty value leaves a pending exception about the filter.
Napi::Value DumpLinks(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value filter);
Napi::Value DumpAddresses(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value filter);
Napi::Value DumpRoutes(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value filter);
Napi::Value DumpRules(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value filter);
Napi::Value DumpFdb(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value filter);
Napi::Value DumpNeighbours(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value filter);

}  // namespace podwire::netlink
