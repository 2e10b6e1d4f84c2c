#pragma once

#include <napi.h>

#include <memory>

#include "binding/job.h"
#include "socket/namespace.h"

namespace podwire::netlink {

/** Promises of lists; an empty value leaves a pending exception about the filter. */
Napi::Value dump_links(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value filter);
Napi::Value dump_addresses(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value filter);
Napi::Value dump_routes(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value filter);
Napi::Value dump_rules(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value filter);
Napi::Value dump_fdb(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value filter);
Napi::Value dump_neighbours(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value filter);

}  // namespace podwire::netlink
