import { Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { NodeSession } from '@podwire/proto/podwire/ipam/v1/lease';
import type { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { formatAddress } from '@podwire/shared/net/address';

import type { LeaseApi } from '../lease-api.js';
import type { IpamSession } from '../session.js';

/** The largest report of the contract. */
const MAX_ENDPOINTS_COUNT = 1024;

/** Reports the pods with addresses of another IPAM plugin, so that podwire-ipam has their workload endpoints. */
export class EndpointReporter {
  readonly #registry: Pick<AttachmentRegistry, 'all'>;
  readonly #session: IpamSession;
  /** The endpoints of the last report that was answered. */
  #reported: string | undefined;

  constructor({ registry, session }: { registry: Pick<AttachmentRegistry, 'all'>; session: IpamSession }) {
    this.#registry = registry;
    this.#session = session;
  }

  /** podwire-ipam may have other endpoints. */
  forget(): void {
    this.#reported = undefined;
  }

  /** Reports unless nothing has changed. @throws Failure of the call, or of OpenSession */
  async run(signal: AbortSignal): Promise<undefined> {
    const attached = this.#registry.all().filter(({ state }) => state === 'attached');
    // Sandboxes of one pod share an endpoint: the last one has it.
    const ordered = attached.toSorted((a, b) => a.createdAtMs - b.createdAtMs);
    const endpoints = ordered.flatMap(({ network: { attachment, addresses, mac, otherIpam } }) =>
      otherIpam ? { attachment, pod: otherIpam.pod, macAddress: mac, addresses: addresses.map(formatAddress) } : [],
    );
    const text = JSON.stringify(endpoints);
    if (text === this.#reported) return undefined;
    const { nodeName } = this.#session;
    const messages = endpoints
      .slice(0, MAX_ENDPOINTS_COUNT)
      .map(({ addresses, ...each }) =>
        Endpoint.fromPartial({ ...each, addresses: addresses.map((address) => ({ address })) }),
      );
    const report = { nodeName, endpoints: messages };
    const send = (api: LeaseApi, own: NodeSession) => api.reportEndpoints({ ...report, session: own }, signal);
    const { leftOut } = await this.#session.call(send, signal);
    this.#reported = leftOut === 0 ? text : undefined;
    return undefined;
  }
}
