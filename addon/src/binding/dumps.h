#pragma once

#include <napi.h>

#include <memory>

#include "binding/job.h"
#include "socket/namespace.h"

namespace podwire::netlink {

/** The jobs behind the dump methods; null leaves a pending exception about the filter. */
std::unique_ptr<Job> links_job(std::shared_ptr<Namespace> from, Napi::Value filter);
std::unique_ptr<Job> addresses_job(std::shared_ptr<Namespace> from, Napi::Value filter);
std::unique_ptr<Job> routes_job(std::shared_ptr<Namespace> from, Napi::Value filter);
std::unique_ptr<Job> neighbours_job(std::shared_ptr<Namespace> from, Napi::Value filter);

}  // namespace podwire::netlink
