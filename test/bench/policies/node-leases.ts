import { randomUUID } from 'node:crypto';

import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import {
  BindAddressesRequest,
  BindAddressesResponse,
  LeaseAddressesRequest,
  LeaseAddressesResponse,
  OpenSessionRequest,
  OpenSessionResponse,
} from '@podwire/proto/podwire/ipam/v1/lease';

import type { LightClient } from '../ipam/light-client.js';
import { attachmentOf, newContainerId } from '../ipam/load.js';

const SERVICE = '/podwire.ipam.v1.LeaseService';

export interface Lease {
  readonly address: string;
  readonly sequenceNumber: bigint;
}

/** The leases of one node, as podwire-node gets and binds them. */
export class NodeLeases {
  readonly nodeName: string;
  readonly #client: LightClient;
  readonly #bootId = randomUUID();
  #generation = 0n;
  #leases: Lease[] = [];

  constructor(nodeName: string, client: LightClient) {
    this.nodeName = nodeName;
    this.#client = client;
  }

  /** Holds that many leases that are not taken. */
  async hold(count: number): Promise<void> {
    const { nodeName } = this;
    const bootId = this.#bootId;
    if (this.#generation === 0n) {
      const opening = OpenSessionRequest.fromPartial({ nodeName, machineId: randomUUID(), bootId });
      const opened = await this.#client.call(`${SERVICE}/OpenSession`, OpenSessionRequest.encode(opening).finish());
      this.#generation = OpenSessionResponse.decode(opened).generation;
    }
    const session = { bootId, generation: this.#generation };
    const request = LeaseAddressesRequest.fromPartial({
      nodeName,
      bootId,
      family: IpFamily.IP_FAMILY_IPV4,
      count,
      session,
    });
    const { addresses } = LeaseAddressesResponse.decode(
      await this.#client.call(`${SERVICE}/LeaseAddresses`, LeaseAddressesRequest.encode(request).finish()),
    );
    this.#leases = addresses.map(({ address, sequenceNumber }) => ({ address, sequenceNumber }));
  }

  take(): Lease {
    const lease = this.#leases.shift();
    if (!lease) throw new Error(`${this.nodeName}: no leases`);
    return lease;
  }

  /** @throws Error when the binding is refused */
  async bind(
    pod: { readonly namespace: string; readonly name: string; readonly uid: string },
    lease: Lease,
  ): Promise<void> {
    const request = BindAddressesRequest.fromPartial({
      nodeName: this.nodeName,
      session: { bootId: this.#bootId, generation: this.#generation },
      bindings: [{ attachment: attachmentOf(newContainerId()), pod, addresses: [lease], attachTime: new Date() }],
    });
    const answer = await this.#client.call(`${SERVICE}/BindAddresses`, BindAddressesRequest.encode(request).finish());
    const refused = BindAddressesResponse.decode(answer).results.find(({ refusal }) => refusal !== '');
    if (refused) throw new Error(refused.refusal);
  }
}
