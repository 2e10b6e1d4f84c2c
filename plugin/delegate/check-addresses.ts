import type { Difference } from '../clients/clients.js';
import type { CommandTools } from '../commands/context.js';
import type { PodRequest } from '../requests/request.js';

/** CHECK of `podwire-ipam`: IPAM has recorded what the chain's result says. The interfaces are the main plugin's to check. */
export async function addressesDifference(
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
