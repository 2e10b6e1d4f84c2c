import { Failure } from '@podwire/shared/failure/failure';

import type { Events } from './pods/events.js';
import type { Kernel } from './pods/kernel.js';
import type { Wanted } from './wiring/network.js';
import type { Observed } from './wiring/observed.js';
import { movedAddresses } from './wiring/wire.js';

interface Move {
  readonly wanted: Wanted;
  /** What was there before the addresses were routed to the pod. */
  readonly observed: Observed;
}

/** Flows of addresses that were another pod's are forgotten, or their packets would go on as was right for that one. */
export async function forgetMovedFlows(
  { wanted, observed }: Move,
  { kernel, events }: { readonly kernel: Kernel; readonly events: Events },
): Promise<void> {
  const forgetting = movedAddresses(wanted, observed).map(async ({ destination, device }) => {
    if (device !== wanted.host.link.name) events.routeTakenOver(destination, device);
    try {
      await kernel.forgetFlows(destination.replace(/\/.*/, ''));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      events.flowsNotForgotten(destination, error);
    }
  });
  await Promise.all(forgetting);
}
