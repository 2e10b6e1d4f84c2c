// The health probe: `podwire-probe [--live] [SOCKET...]`, for exec probes of Kubernetes.
#pragma once

namespace podwire {

// Exit code 0 when a process at each unix socket is serving, or with --live answers at all; otherwise 1 and one line on
// stderr for the first that fails, or 2 for a usage error. The arguments are those after the program's name.
int RunProbe(int argument_count, char** arguments);

}  // namespace podwire
