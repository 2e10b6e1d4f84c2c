// DEL requests that wait on disk for a resident plugin, so that deleting a pod does not fail while none listens.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "environment.h"
#include "failure.h"
#include "http/connection.h"
#include "text/buffer.h"

namespace podwire {

// The attachment of a DEL, as the resident plugin names it.
struct SpooledAttachment {
  Buffer network;
  std::string_view container_id;
  std::string_view interface_name;
};

// The attachment; nothing if a part of it is missing, or cannot be part of a file's name. The resident would reject
// such a DEL, so it is not spooled.
std::optional<SpooledAttachment> AttachmentOf(const Environment& environment, std::string_view configuration);

// Name of the attachment's file: its parts, separated by commas, and kSpoolSuffix.
Buffer SpoolName(const SpooledAttachment& attachment);

// Writes the request to the folder kSpoolFolder beside the socket; replaces an earlier one of the attachment. A process
// that is killed leaves at most a temporary file, which the resident plugin removes (plugin/spool/spool.ts).
//
// Returns why nothing was written: the folder of the socket is missing, the spool is full, or an error of the file
// system. Holds no phrase of failure.h.
std::optional<Buffer> WriteToSpool(std::string_view socket_path, std::string_view name, const Request& request);

}  // namespace podwire
