import type { Difference } from '@podwire/shared/attachment/pod-network';
import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { Providers } from '../addresses/providers.js';
import type { Dataplane, Endpoint, Limits } from '../clients/clients.js';
import type { Result } from '../cni/result.js';
import type { AttachRequest } from '../requests/request.js';
import type { NetnsReader } from '../requests/netns.js';
import { podNetwork } from './add.js';

export interface CheckDeps {
  readonly dataplane: Pick<Dataplane, 'checkPod'>;
  readonly providers: Providers;
  readonly netns: NetnsReader;
}

/**
 * CHECK: compares the result of ADD with the provider's record, and both with the kernel. Read-only.
 * @throws Failure NOT_AS_WANTED that names the first difference
 */
export async function check(request: AttachRequest, limits: Limits, deps: CheckDeps): Promise<undefined> {
  const hasWire = request.mode.kind !== 'ipam-only';
  deps.netns.identify(request.netns, { allowsOwn: request.overridesNetns && !hasWire });
  const difference = await firstDifference(request, hasWire, { ...deps, limits });
  if (!difference) return;
  const { object, wanted, actual } = difference;
  const { interfaceName, containerId } = request.attachment;
  throw new Failure(
    'NOT_AS_WANTED',
    `${object}: wanted ${wanted}, is ${actual} (interface ${interfaceName} of container ${containerId}); recreate the pod`,
    { details: { object, wanted, actual } },
  );
}

async function firstDifference(
  request: AttachRequest,
  hasWire: boolean,
  { dataplane, providers, limits }: CheckDeps & { readonly limits: Limits },
): Promise<Difference | undefined> {
  const { attachment, config } = request;
  const endpoint = await providers.ofRequest(request).check(request, limits);
  if (!endpoint) return { object: "IPAM's endpoint", wanted: 'present', actual: 'missing' };
  // The main plugin checks its interfaces. Its result has the prefix lengths of segments.
  if (!hasWire) return recordDifference(endpoint, config.prevResult, withoutLength);

  if (!hasPodInterface(request))
    return { object: `prevResult interface ${attachment.interfaceName}`, wanted: 'present', actual: 'missing' };
  const resultDifference = recordDifference(endpoint, config.prevResult, (cidr) => cidr);
  return resultDifference ?? dataplane.checkPod(podNetwork(request, endpoint), limits);
}

/** Whether the result has the pod's interface, inside a container. Its MAC address is not compared: the pod may change it. */
function hasPodInterface({ attachment, config }: AttachRequest): boolean {
  const interfaces = config.prevResult?.interfaces ?? [];
  return interfaces.some(({ name, sandbox }) => name === attachment.interfaceName && (sandbox ?? '') !== '');
}

/** The result must have at least the recorded addresses: the chain may have added further ones. */
function recordDifference(
  endpoint: Endpoint,
  prevResult: Result | undefined,
  addressOf: (cidr: string) => string,
): Difference | undefined {
  const resultAddresses = (prevResult?.ips ?? []).map(({ address }) => addressOf(address));
  const missing = endpoint.addresses
    .map((address) => addressOf(formatPrefix(hostPrefix(address))))
    .find((address) => !resultAddresses.includes(address));
  if (missing === undefined) return undefined;
  return {
    object: 'prevResult ips',
    wanted: missing,
    actual: resultAddresses.length === 0 ? 'missing' : resultAddresses.join(', '),
  };
}

function withoutLength(cidr: string): string {
  return cidr.split('/')[0] ?? '';
}
