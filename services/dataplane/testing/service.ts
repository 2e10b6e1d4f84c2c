import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type PodNetwork } from '@podwire/proto/podwire/dataplane/v1/pod';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';

import { readConfig } from '../config.js';
import { BOOT, recordingLog } from '../dataplane.fixture.js';
import { HEALTH } from '../health.fixture.js';

const limits = (timeoutMs = 30_000) => ({ deadlineMs: Date.now() + timeoutMs });

/** What podwire-dataplane is started with in a folder of its own, without podwire-ipam, and a client of it. */
export class ServiceBench {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-dataplane-'));
  readonly socket = join(this.folder, 'run', 'dataplane.sock');
  readonly records = join(this.folder, 'attachments');
  readonly env = {
    PODWIRE_DATAPLANE_LISTEN: `unix:${this.socket}`,
    PODWIRE_DATAPLANE_STATE_DIRECTORY: this.records,
    PODWIRE_DATAPLANE_IPAM_ADDRESS: `unix:${join(this.folder, 'no-ipam.sock')}`,
  };
  #peer = this.#connect();

  config() {
    return readConfig(this.env, 'node-1');
  }

  surroundings() {
    return { log: recordingLog().log, clock: systemClock, random: Math.random, boot: BOOT, pid: process.pid };
  }

  /** Forgets the connection, as another process listens from now on. */
  reconnect(): void {
    this.#peer.close();
    this.#peer = this.#connect();
  }

  clear(): void {
    this.#peer.close();
    rmSync(this.folder, { recursive: true });
  }

  attach(pod: PodNetwork, timeoutMs?: number) {
    return this.#peer.call(PodServiceService.attachPod, { pod }, limits(timeoutMs));
  }

  detach({ attachment, hostInterfaceName: name }: PodNetwork) {
    return this.#peer.call(PodServiceService.detachPod, { attachment, hostInterfaceName: name }, limits());
  }

  /** @param recorded - the attachment, where the service is to know by itself what is wanted of it */
  check(pod: PodNetwork | undefined, recorded?: PodNetwork['attachment']) {
    return this.#peer.call(PodServiceService.checkPod, { pod, recorded }, limits());
  }

  /** As {@link check}. */
  repair(pod: PodNetwork | undefined, recorded?: PodNetwork['attachment']) {
    return this.#peer.call(PodServiceService.repairPod, { pod, recorded }, limits());
  }

  collect(valid: readonly PodNetwork[] | undefined, network = '') {
    const attachments = valid?.map(({ attachment }) => attachment!);
    const validAttachments = attachments && { attachments };
    return this.#peer.call(PodServiceService.collectGarbage, { validAttachments, network }, limits());
  }

  list(pageSize: number, pageToken = '') {
    return this.#peer.call(PodServiceService.listPods, { pageSize, pageToken }, limits());
  }

  nodeStatus() {
    return this.#peer.call(NodeServiceService.getNodeStatus, {}, limits());
  }

  health() {
    return this.#peer.call(HEALTH, null, limits());
  }

  #connect(): Peer {
    return new Peer('podwire-dataplane', `unix:${this.socket}`);
  }
}

/** A pod as a plugin asks for it. @param name - of its network namespace, too */
export function podMessage(name: string, address: string): PodNetwork {
  const attachment = { network: 'net', containerId: name, interfaceName: 'eth0' };
  return {
    attachment,
    netns: `/run/netns/${name}`,
    hostInterfaceName: hostInterfaceName(attachment),
    macAddress: podMac(attachment),
    addresses: [`${address}/32`],
    routes: [],
    mtuBytes: 0,
    ipForwarding: true,
    sourcePrefixes: [],
    txQueueLength: 0,
    queueCount: 0,
  };
}
