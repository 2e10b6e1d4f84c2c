#pragma once

#include "binding/object_reader.h"
#include "socket/request.h"

namespace podwire::netlink {

/** Requests of the steps `link.*` (lib/native.ts); what is wrong leaves a pending exception. */
Request read_link_add(ObjectReader& reader);
Request read_link_set(ObjectReader& reader);
Request read_link_get(ObjectReader& reader);
Request read_link_delete(ObjectReader& reader);

}  // namespace podwire::netlink
