import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Mac } from '@podwire/shared/net/mac';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { endpointAt } from '../blocks/endpoint-key.js';
import { endpointsOfNode } from '../endpoints/endpoints.js';
import type { PodIdentity } from '../records/attributes.js';
import { endpointKey, formatEndpointKey, makeEndpoint, type ForeignEndpoint } from '../records/endpoint.js';
import type { Change, Decision, View } from '../records/view.js';
import { requireSession, updateSession, type SessionName } from './session.js';

/** A pod of a node with addresses of another IPAM plugin. */
export interface ReportedEndpoint {
  readonly attachment: Attachment;
  readonly pod: PodIdentity | undefined;
  /** Addresses of full length: /32 or /128. */
  readonly addresses: readonly Prefix[];
  /** MAC address of the pod's end. */
  readonly mac: Mac;
}

export interface EndpointReport {
  readonly nodeName: string;
  readonly session: SessionName;
  /** All of the node. */
  readonly endpoints: readonly ReportedEndpoint[];
  readonly nowMs: number;
}

export interface ReportedState {
  /** Whether no change is left. */
  readonly isDone: boolean;
  /** Endpoints whose key an attachment with addresses of podwire-ipam has, such as the pod's former sandbox. */
  readonly leftOutCount: number;
  readonly sessionRevision: number;
}

/** Endpoints that one transaction changes. */
const ENDPOINTS_PER_STEP = 32;

/**
 * Stores the reported endpoints of a node's pods with addresses of another IPAM plugin. Repeat it until it is
 * done. Idempotent.
 * @throws Failure SESSION_SUPERSEDED
 */
export function reportEndpoints(view: View, report: EndpointReport): Decision<ReportedState> {
  const { nodeName, nowMs } = report;
  const session = requireSession(view, nodeName, report.session);
  const missing = unrecorded(view, report);
  const changes = [...missing.flatMap(({ change }) => change ?? []), ...removals(view, report)];
  const step = changes.slice(0, ENDPOINTS_PER_STEP);
  const updated = updateSession(view, { session, patch: {}, nowMs });
  return {
    changes: step.length > 0 || updated.isWritten ? [...step, ...updated.changes] : [],
    outcome: {
      isDone: step.length === changes.length,
      leftOutCount: missing.filter(({ change }) => !change).length,
      sessionRevision: updated.revision,
    },
  };
}

interface Unrecorded {
  readonly endpoint: ReportedEndpoint;
  /** Change; undefined for an endpoint whose key is taken. */
  readonly change: Change | undefined;
}

/** The reported endpoints that the datastore does not have so. */
export function unrecorded(view: View, report: EndpointReport): Unrecorded[] {
  const { nodeName, nowMs } = report;
  return [...byKey(report).values()].flatMap((endpoint): Unrecorded[] => {
    const { attachment, pod, addresses, mac } = endpoint;
    const key = endpointKey({ attachment, nodeName, pod });
    const current = endpointAt(view, key);
    if (current?.kind === 'endpoint') return [{ endpoint, change: undefined }];
    if (current && isRecorded(current.value, endpoint)) return [];
    const made = makeEndpoint({ attachment, nodeName, pod, netns: undefined, createdAtMs: nowMs }, []);
    const { uid, createTimeMs, hostInterfaceName } = made;
    const identity = { ...attachment, nodeName, podName: pod?.name ?? '' };
    const value: ForeignEndpoint = { ...identity, addresses, uid, createTimeMs, mac, hostInterfaceName, stored: '' };
    return [{ endpoint, change: { type: 'put', record: { kind: 'foreignEndpoint', key, value } } }];
  });
}

function isRecorded(stored: ForeignEndpoint, { attachment, addresses }: ReportedEndpoint): boolean {
  return (
    stored.network === attachment.network &&
    stored.containerId === attachment.containerId &&
    stored.addresses.map(formatPrefix).join() === addresses.map(formatPrefix).join()
  );
}

/** Sandboxes of one pod share a key: the last one has it. */
function byKey({ nodeName, endpoints }: EndpointReport): ReadonlyMap<string, ReportedEndpoint> {
  return new Map(endpoints.map((each) => [formatEndpointKey(endpointKey({ ...each, nodeName })), each]));
}

function removals(view: View, report: EndpointReport): Change[] {
  const reported = byKey(report);
  return [...endpointsOfNode(view, report.nodeName)].flatMap((record): Change[] => {
    const isReported = record.kind === 'endpoint' || reported.has(formatEndpointKey(record.key));
    return isReported || record.value.network === undefined ? [] : [{ type: 'delete', record }];
  });
}
