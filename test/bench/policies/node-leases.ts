import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import {
  BindAddressesRequest,
  BindAddressesResponse,
  LeaseAddressesRequest,
  LeaseAddressesResponse,
  OpenSessionRequest,
  OpenSessionResponse,
} from '@podwire/proto/podwire/ipam/v1/lease';
import type { PolicyPodName } from '@podwire/proto/podwire/ipam/v1/network_policy';

import type { LightClient } from '../ipam/light-client.js';
import { attachmentOf, newContainerId } from '../ipam/load.js';

const RETRY_MS = 2000;

const SERVICE = '/podwire.ipam.v1.LeaseService';

export interface Lease {
  readonly address: string;
  readonly sequenceNumber: bigint;
}

/** The leases of one node, as podwire-node gets and binds them. */
export class NodeLeases {
  readonly #nodeName: string;
  readonly #client: LightClient;
  readonly #bootId = randomUUID();
  /** Number of the session; 0 before it is open. */
  #generation = 0n;
  #leases: Lease[] = [];

  constructor(nodeName: string, client: LightClient) {
    this.#nodeName = nodeName;
    this.#client = client;
  }

  /** Gets leases until it has that many. */
  async hold(count: number): Promise<void> {
    if (this.#generation === 0n) await this.#openSession();
    const request = LeaseAddressesRequest.fromPartial({
      nodeName: this.#nodeName,
      bootId: this.#bootId,
      family: IpFamily.IP_FAMILY_IPV4,
      count,
      session: this.#session,
    });
    const answer = await this.#call('LeaseAddresses', LeaseAddressesRequest.encode(request).finish());
    this.#leases = [...LeaseAddressesResponse.decode(answer).addresses];
  }

  /** @throws Error without a lease */
  take(): Lease {
    const lease = this.#leases.shift();
    if (!lease) throw new Error(`${this.#nodeName}: it has no leases`);
    return lease;
  }

  /** Tries twice, as podwire-node tries again. @throws Error when the binding is refused, or fails both times */
  async bind(pod: PolicyPodName, lease: Lease, attachTime: Date): Promise<void> {
    const attachment = attachmentOf(newContainerId());
    const request = BindAddressesRequest.fromPartial({
      nodeName: this.#nodeName,
      session: this.#session,
      bindings: [{ attachment, pod, addresses: [lease], attachTime }],
    });
    const bytes = BindAddressesRequest.encode(request).finish();
    const answer = await this.#call('BindAddresses', bytes).catch(async () => {
      await sleep(RETRY_MS);
      return this.#call('BindAddresses', bytes);
    });
    const refused = BindAddressesResponse.decode(answer).results.find(({ refusal }) => refusal !== '');
    if (refused) throw new Error(refused.refusal);
  }

  get #session() {
    return { bootId: this.#bootId, generation: this.#generation };
  }

  async #openSession(): Promise<void> {
    const [nodeName, machineId, bootId] = [this.#nodeName, randomUUID(), this.#bootId];
    const request = OpenSessionRequest.fromPartial({ nodeName, machineId, bootId });
    const answer = await this.#call('OpenSession', OpenSessionRequest.encode(request).finish());
    this.#generation = OpenSessionResponse.decode(answer).generation;
  }

  #call(method: string, request: Uint8Array): Promise<Buffer> {
    return this.#client.call(`${SERVICE}/${method}`, request);
  }
}
