import { Failure } from '@podwire/shared/failure/failure';

import { isRouteReached } from '../routes/convergence.js';
import type { Heard } from '../routes/kernel-events.js';
import type { KnownNode } from '../routes/known-node.js';
import { objectOf, type NodeStep } from '../routes/step.js';
import type { Condition, WantedNode } from '../routes/wanted.js';

/** What an operator is told of a turn that was cut off. */
export function turnFault(error: unknown): Condition {
  const reason = error instanceof Failure ? error.message : 'internal error: see the log of podwire-dataplane';
  const message = `routes between nodes are not looked after (${reason}): what is there stays; it is tried again`;
  return { reason: 'KernelSilent', message };
}

export interface Planned {
  readonly wanted: WantedNode;
  /** Destinations whose route is another than before. */
  readonly routes: ReadonlySet<string>;
  readonly hasOtherRest: boolean;
  readonly isFirst: boolean;
}

interface DriftContext {
  readonly before: KnownNode;
  /** Undefined: everything was read anew. */
  readonly heard: Heard | undefined;
  readonly planned: Planned;
}

/** Whether others have caused a difference: it is not what was planned, and was not there before. */
export function isDrift(step: NodeStep, { before, heard, planned }: DriftContext): boolean {
  if (objectOf(step) !== 'route') return !planned.hasOtherRest && (heard === undefined || heard.rest);
  const destination = step.type === 'route-delete' || 'route' in step ? step.route.destination : '';
  if (planned.routes.has(destination)) return false;
  return heard ? heard.drifted.has(destination) : isRouteReached(destination, planned.wanted, before);
}
