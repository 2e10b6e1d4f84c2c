// First process of a container: `podwire-run PROGRAM [ARGUMENT…]`.
#pragma once

namespace podwire {

// Runs a program, and starts it again when a signal has killed it: the kubelet waits up to five minutes before it
// restarts a container that is killed repeatedly. A program that exits by itself ends the container, so that the
// kubelet reports why it cannot run. Signals are passed on; orphaned processes are reaped.
//
// Returns the program's exit code, or 128 plus the signal that ended it after SIGTERM, SIGINT or SIGQUIT; 2 for a usage
// error, 127 when the program cannot be run. The arguments are those after the name podwire-run.
int RunSupervisor(int argument_count, char** arguments);

}  // namespace podwire
