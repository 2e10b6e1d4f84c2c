import { Failure } from '@podwire/shared/failure/failure';

import { callDelegate } from '../addresses/ipam-plugin.js';
import { answeredEndpoint } from '../addresses/ipam-result.js';
import type { Difference, Endpoint } from '../clients/clients.js';
import type { Result } from '../cni/result.js';
import type { PodRequest } from '../requests/request.js';
import { endpointWithoutIpam, wantedPod } from './add.js';
import type { CommandTools } from './context.js';

/**
 * CHECK: compares what ADD answered with what IPAM has recorded, and both with the kernel. Changes nothing.
 * @throws Failure NOT_AS_WANTED that names the first difference
 */
export async function check(request: PodRequest, tools: CommandTools): Promise<undefined> {
  const hasWire = request.share.kind !== 'addresses';
  tools.netns.identify(request.netns, { allowsOwn: request.overridesNetns && !hasWire });
  const difference = hasWire ? await firstDifference(request, tools) : await addressesDifference(request, tools);
  if (!difference) return;
  const { object, wanted, actual } = difference;
  const { interfaceName, containerId } = request.attachment;
  throw new Failure(
    'NOT_AS_WANTED',
    `${object}: wanted ${wanted}, is ${actual} (interface ${interfaceName} of container ${containerId}); make the pod anew`,
    { details: { object, wanted, actual } },
  );
}

async function firstDifference(request: PodRequest, tools: CommandTools): Promise<Difference | undefined> {
  const { attachment, config } = request;
  const endpoint = endpointWithoutIpam(request) ?? (await recordedEndpoint(request, tools));
  if (!endpoint) return { object: "IPAM's endpoint", wanted: 'present', actual: 'missing' };

  if (!hasAnsweredInterface(request))
    return { object: `prevResult interface ${attachment.interfaceName}`, wanted: 'present', actual: 'missing' };
  const recorded = recordDifference(endpoint, config.prevResult);
  if (recorded) return recorded;

  return tools.dataplane.checkPod(wantedPod(request, endpoint), tools.limits);
}

/** The addresses recorded by the provider. Another IPAM plugin does not list them; its own CHECK verifies the result. */
async function recordedEndpoint(
  request: PodRequest,
  { ipam, clock, limits }: CommandTools,
): Promise<Endpoint | undefined> {
  const { attachment, share, config } = request;
  if (share.kind !== 'wire') return ipam.getEndpoint(attachment, limits);
  await callDelegate(share.delegate, 'CHECK', { clock, limits });
  return answeredEndpoint(attachment, config.prevResult);
}

/** Whether the result has the pod's interface: by its name, and inside a container. Its MAC address is the pod's own from then on. */
function hasAnsweredInterface({ attachment, config }: PodRequest): boolean {
  const interfaces = config.prevResult?.interfaces ?? [];
  return interfaces.some(({ name, sandbox }) => name === attachment.interfaceName && (sandbox ?? '') !== '');
}

/** The chain may have added addresses, so that the result holds at least those that IPAM gave. */
function recordDifference(endpoint: Endpoint, prevResult: Result | undefined): Difference | undefined {
  const answered = (prevResult?.ips ?? []).map(({ address }) => address);
  const missing = endpoint.addresses.find((address) => !answered.includes(address));
  if (missing === undefined) return undefined;
  return { object: 'prevResult ips', wanted: missing, actual: answered.length === 0 ? 'missing' : answered.join(', ') };
}

/** CHECK of `podwire-ipam`: IPAM has recorded what the chain's result says. The interfaces are the main plugin's to check. */
async function addressesDifference(
  { attachment, config }: PodRequest,
  { ipam, limits }: CommandTools,
): Promise<Difference | undefined> {
  const endpoint = await ipam.getEndpoint(attachment, limits);
  if (!endpoint) return { object: "IPAM's endpoint", wanted: 'present', actual: 'missing' };
  const answered = (config.prevResult?.ips ?? []).map(({ address }) => withoutLength(address));
  const missing = endpoint.addresses.map(withoutLength).find((address) => !answered.includes(address));
  if (missing === undefined) return undefined;
  return { object: 'prevResult ips', wanted: missing, actual: answered.length === 0 ? 'missing' : answered.join(', ') };
}

function withoutLength(cidr: string): string {
  return cidr.split('/')[0] ?? '';
}
