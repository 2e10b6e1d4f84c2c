// podwire-ipam as the contract describes it, with memory in place of the datastore.
import {
  AddressReleaseResult,
  AddressServiceService,
  type AddressRelease,
} from '@podwire/proto/podwire/ipam/v1/address';
import { EndpointServiceService, type Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { Pool, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId, hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import { checked, type Script } from './script.fixture.js';

const POOL_ADDRESSES = 64;

/** What this fake looks at of a request. */
type Asked = Pick<Endpoint, 'attachment' | 'nodeName' | 'pod' | 'netns'> & { readonly addresses: readonly string[] };

function hostCidr(address: string): string {
  return `${address}/${address.includes(':') ? 128 : 32}`;
}

/** IPAM with one pool of 64 addresses, which it gives first-in-first-out. */
export class FakeIpam {
  readonly #free = Array.from({ length: POOL_ADDRESSES }, (_, i) => `10.65.0.${i}/32`);
  readonly #endpoints = new Map<string, Endpoint>();
  #sequenceNumber = 0n;

  /** The endpoints, each as `handle address mac host-interface pod@node netns-inode`. */
  toString(): string {
    const lines = [...this.#endpoints.values()].map((endpoint) => {
      const { attachment, addresses, macAddress, nodeName, pod, netns } = endpoint;
      const owner = pod ? `${pod.namespace}/${pod.name}/${pod.uid}` : '-';
      const handle = handleId(checked(attachment));
      const list = addresses.map(({ address }) => address).join(',');
      return `${handle} ${list} ${macAddress} ${endpoint.hostInterfaceName} ${owner}@${nodeName} netns ${netns?.inode ?? '-'}`;
    });
    return lines.join('\n');
  }

  /** Records what nobody asked for, as an earlier boot or another node left it. */
  put(attachment: Attachment, rest: Partial<Endpoint> = {}): void {
    const request = { attachment, nodeName: 'node-1', pod: undefined, netns: undefined, addresses: [] };
    const { endpoint } = this.#allocate(request);
    this.#endpoints.set(formatAttachment(attachment), { ...endpoint, ...rest });
  }

  /** As if the attachment had given its address back and got another one, unseen by this node. */
  reallocate(attachment: Attachment): void {
    this.#release(attachment);
    this.put(attachment);
  }

  services(unary: Unary, script: Script): RpcService[] {
    const { listEndpoints } = EndpointServiceService;
    const list = script.play('ListEndpoints', (request: { readonly nodeName: string; readonly pageToken: string }) =>
      this.#list(request),
    );
    return [
      this.#addresses(unary, script),
      {
        name: 'podwire.ipam.v1.EndpointService',
        definition: EndpointServiceService,
        implementation: { listEndpoints: unary(listEndpoints, list) },
      },
      {
        name: 'podwire.ipam.v1.RequestPolicyService',
        definition: RequestPolicyServiceService,
        implementation: {
          authorizeRequests: unary(
            RequestPolicyServiceService.authorizeRequests,
            script.play('AuthorizeRequests', () => ({})),
          ),
        },
      },
      {
        name: 'podwire.ipam.v1.PoolService',
        definition: PoolServiceService,
        implementation: {
          getPool: unary(
            PoolServiceService.getPool,
            script.play('GetPool', ({ name }) => ({ pool: Pool.create({ name, cidr: '10.65.0.0/26' }) })),
          ),
        },
      },
    ];
  }

  #addresses(unary: Unary, script: Script): RpcService {
    const { allocate, release, getEndpoint, releaseAddresses, explainAllocation } = AddressServiceService;
    return {
      name: 'podwire.ipam.v1.AddressService',
      definition: AddressServiceService,
      implementation: {
        allocate: unary(
          allocate,
          script.play('Allocate', (request) => this.#allocate(request)),
        ),
        release: unary(
          release,
          script.play('Release', ({ attachment }) => this.#release(checked(attachment))),
        ),
        getEndpoint: unary(
          getEndpoint,
          script.play('GetEndpoint', ({ attachment }) => this.#get(checked(attachment))),
        ),
        releaseAddresses: unary(
          releaseAddresses,
          script.play('ReleaseAddresses', ({ releases }) => this.#releaseEach(releases)),
        ),
        explainAllocation: unary(
          explainAllocation,
          script.play('ExplainAllocation', () => this.#explain()),
        ),
      },
    };
  }

  #allocate(request: Asked) {
    const attachment = checked(request.attachment);
    const key = formatAttachment(attachment);
    const found = this.#endpoints.get(key);
    if (found) return { endpoint: found, alreadyAllocated: true };
    const addresses = request.addresses.length > 0 ? request.addresses.map(hostCidr) : [this.#next()];
    const { nodeName, pod, netns } = request;
    const endpoint: Endpoint = {
      attachment,
      namespace: pod?.namespace ?? 'default',
      uid: '',
      createTime: undefined,
      name: `${nodeName}-cni-${attachment.containerId}-${attachment.interfaceName}`,
      nodeName,
      pod,
      netns,
      addresses: addresses.map((address) => {
        const sequenceNumber = ++this.#sequenceNumber;
        return { address, blockCidr: '10.65.0.0/26', poolName: 'default', sequenceNumber };
      }),
      macAddress: podMac(attachment),
      hostInterfaceName: hostInterfaceName(attachment),
    };
    this.#endpoints.set(key, endpoint);
    return { endpoint, alreadyAllocated: false };
  }

  #next(): string {
    const address = this.#free.shift();
    if (address === undefined) throw new Failure('POOLS_EXHAUSTED', 'pool 10.65.0.0/26 has no address left');
    return address;
  }

  #release(attachment: Attachment) {
    const key = formatAttachment(attachment);
    const addresses = (this.#endpoints.get(key)?.addresses ?? []).map(({ address }) => address);
    this.#endpoints.delete(key);
    this.#free.push(...addresses);
    return { addresses };
  }

  /** Only the allocation that is meant goes. */
  #releaseEach(releases: readonly AddressRelease[]) {
    const addresses = releases.map(({ address, handleId: handle, sequenceNumber }) => {
      const held = [...this.#endpoints.values()].find(({ addresses: [first] }) => first?.address === `${address}/32`);
      const attachment = checked(held?.attachment ?? { network: 'none', containerId: 'none', interfaceName: 'none' });
      const isMeant =
        held !== undefined && held.addresses[0]?.sequenceNumber === sequenceNumber && handleId(attachment) === handle;
      if (isMeant) this.#release(attachment);
      const missing = held
        ? AddressReleaseResult.ADDRESS_RELEASE_RESULT_MISMATCH
        : AddressReleaseResult.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED;
      const result = isMeant ? AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED : missing;
      return { address, result, holder: undefined };
    });
    return { addresses };
  }

  #explain() {
    const isFull = this.#free.length === 0;
    const refusal = isFull ? 'pool 10.65.0.0/26 has no address left' : '';
    return {
      alreadyAllocated: false,
      refusalCode: isFull ? 'POOLS_EXHAUSTED' : '',
      refusal,
      families: [],
      requests: [],
    };
  }

  /** One endpoint a page, so that readers have to turn it. */
  #list({ nodeName, pageToken }: { readonly nodeName: string; readonly pageToken: string }) {
    const index = Number(pageToken);
    const endpoints = [...this.#endpoints.values()].filter((endpoint) => endpoint.nodeName === nodeName);
    const nextPageToken = index + 1 < endpoints.length ? String(index + 1) : '';
    return { endpoints: endpoints.slice(index, index + 1), nextPageToken };
  }

  #get(attachment: Attachment) {
    const endpoint = this.#endpoints.get(formatAttachment(attachment));
    if (!endpoint) throw new Failure('ENDPOINT_NOT_FOUND', `${formatAttachment(attachment)} holds no address`);
    return { endpoint };
  }
}
