import { writeResult, type Result, type ResultInterface } from './result-form.js';
import { hasResultMtu, type CniVersion } from './version.js';

/** What ADD made, for the result. */
export interface Added {
  readonly cniVersion: CniVersion;
  readonly hostInterface: AddedInterface;
  readonly podInterface: AddedInterface;
  /** The pod's addresses as CIDRs of full length. */
  readonly addresses: readonly string[];
  /** DNS settings that came with the addresses. */
  readonly dns?: unknown;
  /** What the plugins before this one in the chain answered. */
  readonly prevResult: Result | undefined;
}

/** An interface that ADD made. */
export interface AddedInterface {
  readonly name: string;
  /** MAC address, lower case with colons. */
  readonly mac: string;
  /** Path of the network namespace that it is in; absent for the node's own. */
  readonly sandbox?: string;
  /** In bytes. */
  readonly mtu: number;
}

const NOTHING_BEFORE: Result = { interfaces: [], ips: [], routes: [], rest: {} };

/**
 * The answer to a successful ADD, behind what the chain had before, in the form of the configuration's version. No field is null or
 * empty: readers have failed on both.
 *
 * It has no gateway and no routes, as Calico's: the next hop 169.254.1.1 is nobody's address and reachable from the pod's
 * interface alone, so a chained plugin that used it elsewhere would make a route to nowhere. Those that follow in practice
 * (`portmap`, `bandwidth`, `tuning`, `firewall`) look at interfaces and addresses only.
 */
export function addResult({ prevResult = NOTHING_BEFORE, ...added }: Added) {
  const { cniVersion, hostInterface, podInterface, addresses, dns } = added;
  const { interfaces, ips } = prevResult;
  const podInterfaceIndex = interfaces.length + 1;
  const result: Result = {
    ...prevResult,
    interfaces: [...interfaces, known(hostInterface, cniVersion), known(podInterface, cniVersion)],
    rest: dns === undefined ? prevResult.rest : { ...prevResult.rest, dns },
    ips: [...ips, ...addresses.map((address) => ({ interface: podInterfaceIndex, address }))],
  };
  return writeResult(result, cniVersion);
}

/** What the version has a field for: readers of earlier ones may refuse what they do not know. */
function known({ mtu, ...described }: AddedInterface, cniVersion: CniVersion): ResultInterface {
  return hasResultMtu(cniVersion) ? { ...described, mtu } : described;
}
