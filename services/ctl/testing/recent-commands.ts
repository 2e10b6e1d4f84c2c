import type { Command } from '../clients/plugin-socket.js';

const SECOND_MS = 1000;

/** An ADD that ended in second `order` of a made-up minute. Its phases: shim 1 ms, kernel 2 ms, dataplane 3 ms, and plugin the rest. */
export function addOf(order: number, changes: Partial<Command> = {}): Command {
  return {
    startedAt: new Date(Date.UTC(2026, 0, 1) + order * SECOND_MS).toISOString(),
    command: 'ADD',
    pod: { namespace: 'default', name: `web-${order}`, uid: '' },
    containerId: String(order).padStart(64, '0'),
    network: 'podwire',
    interface: 'eth0',
    result: 'success',
    message: null,
    durationMs: 10 + order,
    addresses: [`10.65.0.${order}`],
    traceId: null,
    intervals: [
      { name: 'shim', phase: 'shim', startMs: 0, durationMs: 1, depth: 0 },
      { name: 'dataplane AttachPod', phase: 'dataplane', startMs: 2, durationMs: 5, depth: 0 },
      { name: 'podwire.kernel.batch', phase: 'kernel', startMs: 3, durationMs: 2, depth: 1 },
    ],
    ...changes,
  };
}
