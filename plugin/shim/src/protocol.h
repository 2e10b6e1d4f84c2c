// Constants shared with the container runtime and the resident plugin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// Overridden by test builds, for speed and to stay within their own folder.
#ifndef PODWIRE_DEFAULT_SOCKET
#define PODWIRE_DEFAULT_SOCKET "/run/podwire/cni.sock"
#endif
#ifndef PODWIRE_CONNECT_WINDOW_MS
#define PODWIRE_CONNECT_WINDOW_MS 5000
#endif
#ifndef PODWIRE_DEL_WINDOW_MS
#define PODWIRE_DEL_WINDOW_MS 2000
#endif
#ifndef PODWIRE_VERSION_INPUT_MS
#define PODWIRE_VERSION_INPUT_MS 1000
#endif
#ifndef PODWIRE_OVERALL_DEADLINE_MS
#define PODWIRE_OVERALL_DEADLINE_MS 117000
#endif
#ifndef PODWIRE_SILENCE_MS
#define PODWIRE_SILENCE_MS 20000
#endif
#ifndef PODWIRE_PROBE_MS
#define PODWIRE_PROBE_MS 1000
#endif

namespace podwire {

// Oldest first; the last one is also the version the shim itself speaks.
inline constexpr std::string_view kSupportedVersions[] = {"0.1.0", "0.2.0", "0.3.0", "0.3.1",
                                                          "0.4.0", "1.0.0", "1.1.0"};
inline constexpr std::string_view kOwnVersion = "1.1.0";

// Podwire's release, sent in each request (services/shared/rpc/release.ts). The resident plugin rejects incompatible
// ones.
inline constexpr std::string_view kRelease = "1";

inline constexpr std::string_view kDefaultSocket = PODWIRE_DEFAULT_SOCKET;

// How long the shim waits for a socket that is missing or refuses connections: the resident plugin may be restarting.
inline constexpr int kConnectWindowMs = PODWIRE_CONNECT_WINDOW_MS;
inline constexpr int kConnectPauseMs = 10;

// The same for DEL: longer than a restart of the resident plugin takes. Then the DEL is spooled.
inline constexpr int kDelWindowMs = PODWIRE_DEL_WINDOW_MS;

// The folder beside the socket for DELs while no process listens, and the names in it
// (plugin/spool/spool-directory.ts).
inline constexpr const char* kSpoolFolder = "spool";
inline constexpr std::string_view kSpoolSuffix = ".del";
inline constexpr std::string_view kSpoolWriting = ".writing";
inline constexpr std::size_t kMaxSpooledCount = 4096;

// The resident plugin's HTTP status for a call that it cut off because it is stopping: the shim repeats the call at the
// next resident (plugin/http-routes.ts).
inline constexpr int kStatusStopping = 421;

// The file beside the socket. STATUS succeeds without the resident plugin until its modification time
// (plugin/commands/readiness-record.ts). A longer lease is ignored.
inline constexpr std::string_view kReadyFile = "node-ready";
inline constexpr std::uint64_t kMaxReadyLeaseNs = 60'000'000'000;

// How long VERSION waits for the end of its input, which it does not need.
inline constexpr int kVersionInputMs = PODWIRE_VERSION_INPUT_MS;

// Counted from the start of the process. The wait for the socket and the longest command of podwire-node take 115 s
// (plugin/settings.ts). The kubelet ends the removal of a sandbox after 2 minutes: the DEL must be in the spool by
// then.
inline constexpr int kOverallDeadlineMs = PODWIRE_OVERALL_DEADLINE_MS;

// How long the resident may be silent: while it executes a call, it sends an interim response every 5 s
// (plugin/http-routes.ts).
inline constexpr int kSilenceMs = PODWIRE_SILENCE_MS;

// The probe's time for all sockets.
inline constexpr int kProbeMs = PODWIRE_PROBE_MS;

inline constexpr std::size_t kMaxConfigurationBytes = 4u << 20;
inline constexpr std::size_t kMaxAnswerBytes = 4u << 20;

// Node.js refuses more than 16 KiB of headers with a bare 431. Refusing earlier lets the message name the variable.
inline constexpr std::size_t kMaxRequestHeadBytes = 15u << 10;
// Limit of an optional value, so that the required values have room. A longer value is left out.
inline constexpr std::size_t kMaxOptionalBytes = 2u << 10;
inline constexpr std::size_t kMaxAnswerHeadBytes = 16u << 10;

}  // namespace podwire
