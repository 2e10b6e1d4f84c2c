import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { FollowPoliciesResponse } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';

import type { ConnectionKernel } from '../../network-policy/live-connections.js';
import { PolicyFilter } from '../../network-policy/policy-filter.js';
import { PolicyStore } from '../../network-policy/policy-store.js';
import { PolicyView } from '../../network-policy/policy-view.js';
import type { Nft } from '../../nft/nft.js';
import { RecordedEvents } from '../nft.js';
import { address } from './policies.js';

interface PolicyNodeOptions {
  readonly nft: Nft;
  /** Directory of the records; default: a new one. */
  readonly recordsDirectory?: string;
  readonly connections?: ConnectionKernel;
  readonly clock?: Clock;
  readonly usesIpvs?: boolean;
}

/** A node that tracks no connections. */
export const NO_CONNECTIONS: ConnectionKernel = {
  nodeAddresses: () => Promise.resolve([]),
  endForbidden: () => Promise.resolve(0),
};

class NodeEvents extends RecordedEvents {
  connectionsEnded(count: number): void {
    this.lines.push(`${count} connections ended`);
  }

  connectionsNotJudged(error: unknown): void {
    this.lines.push(`connections not judged: ${String(error)}`);
  }
}

/** The node's side of network policies without podwire-ipam: a test sends the messages. */
export class PolicyNode {
  readonly events = new NodeEvents();
  readonly view = new PolicyView();
  readonly faults: string[] = [];
  readonly recordsDirectory: string;
  readonly filter: PolicyFilter;

  constructor({
    nft,
    recordsDirectory,
    connections = NO_CONNECTIONS,
    clock = systemClock,
    usesIpvs = false,
  }: PolicyNodeOptions) {
    this.recordsDirectory = recordsDirectory ?? join(mkdtempSync(join(tmpdir(), 'podwire-policy-')), 'attachments');
    const events = {
      policiesNotStored: (path: string, error: unknown) => this.faults.push(`${path}: ${String(error)}`),
    };
    const store = new PolicyStore({ recordsDirectory: this.recordsDirectory, clock, events });
    const options = {
      nft,
      kernel: connections,
      clock,
      events: this.events,
      random: () => 0.5,
      usesIpvs: () => usesIpvs,
    };
    this.filter = new PolicyFilter({ ...options, view: this.view, store });
  }

  /** Takes a message, and waits until it is in force. */
  async receive(message: FollowPoliciesResponse): Promise<void> {
    const change = this.view.apply(message);
    if (change) await this.filter.update(change);
  }

  /** Takes a snapshot of one message. */
  receiveSnapshot(message: FollowPoliciesResponse): Promise<void> {
    this.view.beginStream();
    this.view.isFollowed = true;
    return this.receive(message);
  }
}

/** A pod of the namespace `default`, as the dataplane passes it to filters. */
export function policyPod(name: string, hostInterfaceName: string, addresses: readonly string[] = []) {
  const pod = { namespace: 'default', name, uid: `uid-${name}` };
  return { hostInterfaceName, pod, addresses: addresses.map(address) };
}
