// podwire-ipam as the contract describes it, and the node's dataplane with memory in place of the kernel.
import { trace } from '@opentelemetry/api';
import {
  AddressReleaseResult,
  AddressServiceService,
  type AddressRelease,
} from '@podwire/proto/podwire/ipam/v1/address';
import { EndpointServiceService, type Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { Node, NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { Pool, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import type { Attachment as AttachmentMessage } from '@podwire/proto/podwire/net/v1/attachment';
import { attachmentFaults, formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import type { Difference, PodNetwork } from '@podwire/shared/attachment/pod-network';
import { handleId, HOST_MAC, hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, prefixOf } from '@podwire/shared/net/prefix';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { RpcServer, type RpcService } from '@podwire/shared/rpc/server';
import type { Handler, Unary } from '@podwire/shared/rpc/unary';
import { systemClock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { LOCAL_CALLER } from '@podwire/shared/tls/caller';
import { expect, vi } from 'vitest';

import type { Dataplane, Limits, Wire } from '../clients/clients.js';
import { DATAPLANE_CALLS, type LocalCalls } from '../clients/local-calls.js';

/** The node's dataplane with a list of interfaces as its kernel. */
export class FakeDataplane {
  readonly #wires = new Map<string, PodNetwork>();
  readonly #foreign = new Set<string>();
  readonly #stubborn = new Set<string>();
  readonly #drift: Difference[] = [];
  /** Whether it can wire pods. */
  isServing = false;
  #answering: Promise<void> = Promise.resolve();
  #answer = (): void => undefined;

  constructor() {
    this.hang();
  }

  /** Makes it answer no call. */
  hang(): void {
    this.#answer();
    this.isServing = false;
    this.#answering = new Promise((resolve) => (this.#answer = resolve));
  }

  /** Makes it answer, also the calls that wait. */
  serve(): void {
    this.isServing = true;
    this.#answer();
  }

  /** Puts an interface that is not Podwire's into a pod. */
  addForeignInterface(netns: string, name: string): void {
    this.#foreign.add(`${netns} ${name}`);
  }

  /** Makes the kernel differ from the wanted state. */
  addDrift(difference: Difference): void {
    this.#drift.push(difference);
  }

  /** The interfaces, each as `host-interface -> interface@netns mac addresses mtu forwarding`. */
  toString(): string {
    const lines = [...this.#wires.values()].map((pod) => {
      const { attachment, hostInterfaceName: host, netns, mac, mtuBytes = 0, ipForwarding } = pod;
      const addresses = pod.addresses.map((address) => formatPrefix(hostPrefix(address)));
      return `${host} -> ${attachment.interfaceName}@${netns} ${mac} ${addresses.join(',')} mtu ${mtuBytes} forwarding ${ipForwarding}`;
    });
    return lines.join('\n');
  }

  /** Client as the commands call it. */
  client(local: LocalCalls, script: Script): Dataplane {
    const call = <Request extends object, Answer>(
      name: keyof typeof DATAPLANE_CALLS,
      request: Request,
      limits: Limits,
      work: (request: Request) => Answer,
    ): Promise<Answer> =>
      local.call(DATAPLANE_CALLS[name], limits, async (signal) => {
        await this.#answering;
        signal.throwIfAborted();
        return script.play(DATAPLANE_CALLS[name].method, work)(request, { signal, caller: LOCAL_CALLER });
      });
    return {
      isServing: () => this.isServing,
      attachPod: (pod, limits) => call('attachPod', { pod }, limits, () => this.#attach(pod)),
      detachPod: (detachment, limits) =>
        call('detachPod', detachment, limits, ({ attachment }) => {
          this.#wires.delete(formatAttachment(attachment));
        }),
      checkPod: (pod, limits) => call('checkPod', { pod }, limits, () => this.#check(pod)),
      isAttached: (attachment, limits) =>
        call('isAttached', { attachment }, limits, () => this.#wires.has(formatAttachment(attachment))),
      collectGarbage: (garbage, limits) => call('collectGarbage', garbage, limits, (wanted) => this.#collect(wanted)),
      wires: (limits) =>
        call('wires', {}, limits, () =>
          [...this.#wires.values()].map(({ attachment, addresses }) => ({
            attachment,
            addresses: addresses.map(formatAddress),
          })),
        ),
    };
  }

  /** Makes the kernel keep an interface that is to be deleted. */
  makeStubborn(attachment: Attachment): void {
    this.#stubborn.add(formatAttachment(attachment));
  }

  #collect({ network, valid }: { readonly network: string; readonly valid: readonly Attachment[] }) {
    const kept = new Set(valid.map(formatAttachment));
    const garbage = [...this.#wires.values()].filter(
      ({ attachment }) => attachment.network === network && !kept.has(formatAttachment(attachment)),
    );
    const keys = garbage.map(({ attachment }) => ({ attachment, key: formatAttachment(attachment) }));
    for (const { key } of keys) if (!this.#stubborn.has(key)) this.#wires.delete(key);
    return keys
      .filter(({ key }) => this.#stubborn.has(key))
      .map(({ attachment }) => ({ attachment, message: 'link del: EBUSY' }));
  }

  #attach(wanted: PodNetwork): Wire {
    const { attachment, netns, hostInterfaceName: name, mac, mtuBytes = 1500 } = wanted;
    if (this.#foreign.has(`${netns} ${attachment.interfaceName}`)) {
      throw new Failure('INTERFACE_EXISTS', `${netns} has an interface ${attachment.interfaceName} already`);
    }
    this.#wires.set(formatAttachment(attachment), wanted);
    return { host: { name, mac: HOST_MAC, mtuBytes }, pod: { name: attachment.interfaceName, mac, mtuBytes } };
  }

  #check({ attachment }: PodNetwork): Difference | undefined {
    const object = `pod link ${attachment.interfaceName}`;
    if (!this.#wires.has(formatAttachment(attachment))) return { object, wanted: 'present', actual: 'missing' };
    return this.#drift[0];
  }
}

const POOL_ADDRESSES = 64;

/** The fields of a request that this fake reads. */
type Asked = Pick<Endpoint, 'attachment' | 'nodeName' | 'pod' | 'netns'> & { readonly addresses: readonly string[] };

function hostCidr(address: string): string {
  return `${address}/${address.includes(':') ? 128 : 32}`;
}

/** IPAM with one pool of 64 addresses, which it allocates first-in-first-out. */
export class FakeIpam {
  readonly #free = Array.from({ length: POOL_ADDRESSES }, (_, i) => `10.65.0.${i}/32`);
  readonly #endpoints = new Map<string, Endpoint>();
  #sequenceNumber = 0n;
  /** Ranges of the Kubernetes Node. */
  podCidrs: string[] = [];
  /** Prefix length of IPv4 blocks. */
  blockLength = 26;

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

  /** Records an allocation without a request, as an earlier boot or another node left it. */
  put(attachment: Attachment, rest: Partial<Endpoint> = {}): void {
    const request = { attachment, nodeName: 'node-1', pod: undefined, netns: undefined, addresses: [] };
    const { endpoint } = this.#allocate(request);
    this.#endpoints.set(formatAttachment(attachment), { ...endpoint, ...rest });
  }

  /** Releases the attachment's address and allocates another one, unseen by this node. */
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
        name: 'podwire.ipam.v1.NodeService',
        definition: NodeServiceService,
        implementation: {
          getNode: unary(
            NodeServiceService.getNode,
            script.play('GetNode', ({ name }) => ({ node: Node.create({ name }), podCidrs: this.podCidrs })),
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
        const [text = ''] = address.split('/');
        const inside = parseAddress(text);
        const blockCidr = inside?.family === 4 ? formatPrefix(prefixOf(inside, this.blockLength)) : 'fd65::/122';
        return { address, blockCidr, poolName: 'default', sequenceNumber };
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

  /** Releases the requested allocation only. */
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

  /** One endpoint a page, so that readers have to page. */
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

interface ServedFake {
  readonly fake: FakeIpam;
  readonly script: Script;
  readonly log: Logger;
  /** Its release; this one's when undefined. */
  readonly release?: number | undefined;
}

/** Serves podwire-ipam at a gRPC address. */
export async function serve(address: string, { fake, script, log, release }: ServedFake): Promise<RpcServer> {
  const server = new RpcServer({
    addresses: [address],
    ...(release !== undefined && { release }),
    log,
    clock: systemClock,
    defaultCallTimeoutMs: 5_000,
    drainTimeoutMs: 0,
    services: (unary) => fake.services(unary, script),
  });
  await server.listen();
  server.setServing();
  return server;
}

export type Method =
  | 'Allocate'
  | 'Release'
  | 'GetEndpoint'
  | 'GetNode'
  | 'GetPool'
  | 'AuthorizeRequests'
  | 'ReleaseAddresses'
  | 'ExplainAllocation'
  | 'ListEndpoints'
  | 'AttachPod'
  | 'DetachPod'
  | 'CheckPod'
  | 'GetPod'
  | 'ListPods'
  | 'CollectGarbage';

interface PlannedFault {
  readonly method: Method;
  readonly error: Error;
  /** Whether the work is done, so that only the answer is lost. */
  readonly afterWork: boolean;
}

/** The calls to the services, and the answers that a test plans instead. */
export class Script {
  /** Method and attachment of every call, in order of arrival. */
  readonly calls: string[] = [];
  /** The trace of each call. */
  readonly traceIds: (string | undefined)[] = [];
  /** The calls' messages. */
  readonly requests: { readonly method: Method; readonly request: object }[] = [];
  /** Methods that the services lack, as in an earlier release. */
  readonly lacks = new Set<Method>();
  readonly #faults: PlannedFault[] = [];
  readonly #holds = new Map<Method, Promise<void>>();

  failNext(method: Method, error: Error, { afterWork = false } = {}): void {
    this.#faults.push({ method, error, afterWork });
  }

  /** Planned failures that no call met: a test that plans one has to meet it. */
  unusedFaults(): string[] {
    return this.#faults.map(({ method, error }) => `${method}: ${error.message}`);
  }

  /** Makes the calls of a method wait. @returns what lets them continue */
  hold(method: Method): () => void {
    let letGo = () => undefined;
    const held = new Promise<void>((resolve) => {
      letGo = () => {
        this.#holds.delete(method);
        resolve();
      };
    });
    this.#holds.set(method, held);
    return letGo;
  }

  /** Resolves when a method has been called. */
  async untilCalled(method: string): Promise<void> {
    await vi.waitFor(() => expect(this.calls.join('\n')).toContain(method), { interval: 2, timeout: 20_000 });
  }

  /** A handler that records its calls, waits where it is held, and fails where that is planned. */
  play<Request extends object, Response>(
    method: Method,
    work: (request: Request) => Response,
  ): Handler<Request, Response> {
    return async (request, { signal }) => {
      this.requests.push({ method, request });
      this.calls.push(`${method}${subjectOf(request)}`);
      this.traceIds.push(trace.getActiveSpan()?.spanContext().traceId);
      const cut = new Promise<never>((_, reject) => {
        signal.addEventListener('abort', () => reject(new Failure('CANCELLED', 'the caller gave up')), { once: true });
      });
      cut.catch(() => undefined);
      const hold = this.#holds.get(method);
      if (hold) await Promise.race([hold, cut]);
      if (this.lacks.has(method)) throw new Failure('UNIMPLEMENTED', `the service does not know ${method}`);
      const fault = this.#take(method);
      if (fault && !fault.afterWork) throw fault.error;
      const response = work(request);
      if (fault) throw fault.error;
      return response;
    };
  }

  #take(method: Method): PlannedFault | undefined {
    const index = this.#faults.findIndex((fault) => fault.method === method);
    return index < 0 ? undefined : this.#faults.splice(index, 1)[0];
  }
}

function subjectOf(request: object): string {
  const about = 'pod' in request && isAbout(request.pod) ? request.pod : request;
  return isAbout(about) && about.attachment ? ` ${formatAttachment(about.attachment)}` : '';
}

function isAbout(value: unknown): value is { attachment: Attachment | undefined } {
  return typeof value === 'object' && value !== null && 'attachment' in value;
}

/** The attachment of a request. @throws Failure INVALID_REQUEST as the services answer */
function checked(attachment: AttachmentMessage | undefined): AttachmentMessage {
  const faults = attachment
    ? attachmentFaults(attachment).map(({ field, reason }) => ({ field: `attachment.${field}`, reason }))
    : [{ field: 'attachment', reason: 'is missing' }];
  if (!attachment || faults.length > 0) throw violationsFailure('INVALID_REQUEST', 'request refused', faults);
  return attachment;
}
