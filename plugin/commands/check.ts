import { Failure } from '@podwire/shared/failure/failure';

import { callDelegate } from '../addresses/ipam-plugin.js';
import { endpointFromResult } from '../addresses/ipam-result.js';
import type { Difference, Endpoint } from '../clients/clients.js';
import type { Result } from '../cni/result.js';
import type { AttachRequest } from '../requests/request.js';
import { endpointWithoutIpam, desiredPod } from './add.js';
import type { CommandTools } from './context.js';

/**
 * CHECK: compares the result of ADD with podwire-ipam's record, and both with the kernel. Read-only.
 * @throws Failure NOT_AS_WANTED that names the first difference
 */
export async function check(request: AttachRequest, tools: CommandTools): Promise<undefined> {
  const hasWire = request.mode.kind !== 'ipam-only';
  tools.netns.identify(request.netns, { allowsOwn: request.overridesNetns && !hasWire });
  const difference = hasWire ? await firstDifference(request, tools) : await addressesDifference(request, tools);
  if (!difference) return;
  const { object, wanted, actual } = difference;
  const { interfaceName, containerId } = request.attachment;
  throw new Failure(
    'NOT_AS_WANTED',
    `${object}: wanted ${wanted}, is ${actual} (interface ${interfaceName} of container ${containerId}); recreate the pod`,
    { details: { object, wanted, actual } },
  );
}

async function firstDifference(request: AttachRequest, tools: CommandTools): Promise<Difference | undefined> {
  const { attachment, config } = request;
  const endpoint = endpointWithoutIpam(request) ?? (await recordedEndpoint(request, tools));
  if (!endpoint) return { object: "IPAM's endpoint", wanted: 'present', actual: 'missing' };

  if (!hasPodInterface(request))
    return { object: `prevResult interface ${attachment.interfaceName}`, wanted: 'present', actual: 'missing' };
  const resultDifference = recordDifference(endpoint, config.prevResult);
  if (resultDifference) return resultDifference;

  return tools.dataplane.checkPod(desiredPod(request, endpoint), tools.limits);
}

/** The addresses recorded by the provider. A delegated IPAM plugin does not list them; its own CHECK verifies the result. */
async function recordedEndpoint(
  request: AttachRequest,
  { ipam, clock, limits }: CommandTools,
): Promise<Endpoint | undefined> {
  const { attachment, mode, config } = request;
  if (mode.kind !== 'delegated-ipam') return ipam.getEndpoint(attachment, limits);
  await callDelegate(mode.delegate, 'CHECK', { clock, limits });
  return endpointFromResult(attachment, config.prevResult);
}

/** Whether the result has the pod's interface, inside a container. Its MAC address is not compared: the pod may change it. */
function hasPodInterface({ attachment, config }: AttachRequest): boolean {
  const interfaces = config.prevResult?.interfaces ?? [];
  return interfaces.some(({ name, sandbox }) => name === attachment.interfaceName && (sandbox ?? '') !== '');
}

/** The result must have at least the recorded addresses: the chain may have added others. */
function recordDifference(endpoint: Endpoint, prevResult: Result | undefined): Difference | undefined {
  const resultAddresses = (prevResult?.ips ?? []).map(({ address }) => address);
  const missing = endpoint.addresses.find((address) => !resultAddresses.includes(address));
  if (missing === undefined) return undefined;
  return {
    object: 'prevResult ips',
    wanted: missing,
    actual: resultAddresses.length === 0 ? 'missing' : resultAddresses.join(', '),
  };
}

/** CHECK of `podwire-ipam`: compares the result with podwire-ipam's record. The main plugin checks the interfaces. */
async function addressesDifference(
  { attachment, config }: AttachRequest,
  { ipam, limits }: CommandTools,
): Promise<Difference | undefined> {
  const endpoint = await ipam.getEndpoint(attachment, limits);
  if (!endpoint) return { object: "IPAM's endpoint", wanted: 'present', actual: 'missing' };
  const resultAddresses = (config.prevResult?.ips ?? []).map(({ address }) => withoutLength(address));
  const missing = endpoint.addresses.map(withoutLength).find((address) => !resultAddresses.includes(address));
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
