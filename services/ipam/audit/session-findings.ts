import { formatAddress } from '@podwire/shared/net/address';

import { isAlive } from '../blocks/running-nodes.js';
import type { NodeSession } from '../records/session.js';
import type { View } from '../records/view.js';
import type { AuditContext } from './context.js';
import { makeFinding, noRemedy, objectOf, type Finding } from './finding.js';

/** Disagreements between podwire-ipam and a node, from the node's session. */

/** A node reports every 90 s, in milliseconds. */
const UNREPORTED_MS = 10 * 60_000;

/** Whether a node runs and does not report what it holds. */
function isUnreported(view: View, { name }: NodeSession): boolean {
  return isAlive(view, name) && view.reportAgeMs(name) >= UNREPORTED_MS;
}

/** Addresses that two nodes have, and a node without a report. */
export function findSessionFaults({ view }: AuditContext, session: NodeSession): Finding[] {
  const { name, conflicts, reportedAtMs } = session;
  const subject = { type: 'node', name } as const;
  const found = conflicts.map(({ address, attachment, holder }) =>
    makeFinding({
      kind: 'addressConflict',
      subject,
      objects: [objectOf.address(address), objectOf.node(name)],
      explanation: `node ${name} has ${formatAddress(address)} for ${attachment}, and the datastore has it for ${holder}`,
      remedy: noRemedy('two pods may share the address; delete one of them, and it gets another address'),
    }),
  );
  if (!isUnreported(view, session)) return found;
  const since = reportedAtMs === undefined ? 'never' : `not since ${new Date(reportedAtMs).toISOString()}`;
  const unreported = makeFinding({
    kind: 'nodeUnreported',
    subject,
    objects: [objectOf.node(name)],
    explanation: `node ${name} runs, and has ${since} reported what it holds`,
    remedy: noRemedy('the log of podwire-node has the reason; restart it there'),
  });
  return [...found, unreported];
}

/** State of all sessions, for metrics. */
export interface SessionState {
  /** The nodes with addresses that another holder has in the datastore. */
  readonly conflicts: readonly { readonly nodeName: string; readonly count: number }[];
  readonly unreportedCount: number;
}

export function sessionState(view: View): SessionState {
  const sessions = [...view.sessions()];
  return {
    conflicts: sessions.flatMap(({ name: nodeName, conflicts: { length: count } }) =>
      count > 0 ? [{ nodeName, count }] : [],
    ),
    unreportedCount: sessions.filter((session) => isUnreported(view, session)).length,
  };
}
