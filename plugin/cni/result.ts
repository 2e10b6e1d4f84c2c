import { z } from 'zod';

import type { CniVersion } from './version.js';

/** An interface in a result (CNI specification 1.0.0, "ADD Success"). */
export interface ResultInterface {
  readonly name: string;
  /** MAC address, lower case with colons. */
  readonly mac: string;
  /** Path of the network namespace that it is in; absent for the node's own. */
  readonly sandbox?: string;
}

/** An address in a result. */
export interface ResultIp {
  /** The address family, in the versions before 1.0.0 only. */
  readonly version?: '4' | '6';
  /** Place of its interface in the list of interfaces. */
  readonly interface: number;
  /** The address in CIDR notation. */
  readonly address: string;
}

const OPTIONAL_TEXT = z.string({ error: 'is no text' }).optional();

/**
 * What was answered before: by the plugins earlier in the chain, or by the ADD that CHECK looks after. Only what is used
 * here is looked into; the rest passes through.
 */
export const PREV_RESULT = z.looseObject(
  {
    interfaces: z
      .array(
        z.looseObject({
          name: z.string({ error: 'is missing' }),
          mac: OPTIONAL_TEXT,
          sandbox: OPTIONAL_TEXT,
        }),
        { error: 'is no list' },
      )
      .optional(),
    ips: z
      .array(z.looseObject({ address: z.string({ error: 'is missing' }), interface: z.int().optional() }), {
        error: 'is no list',
      })
      .optional(),
  },
  { error: 'is no object' },
);

export type PrevResult = z.infer<typeof PREV_RESULT>;

/** What ADD made, for the result. */
export interface Added {
  readonly cniVersion: CniVersion;
  readonly hostInterface: ResultInterface;
  readonly podInterface: ResultInterface;
  /** The pod's addresses as CIDRs of full length. */
  readonly addresses: readonly string[];
  /** What the plugins before this one in the chain answered. */
  readonly prevResult: PrevResult | undefined;
}

/**
 * The answer to a successful ADD, behind what the chain had before. No field is null or empty: readers have failed on both.
 *
 * It has no gateway and no routes, as Calico's: the next hop 169.254.1.1 is nobody's address and reachable from the pod's
 * interface alone, so a chained plugin that used it elsewhere would make a route to nowhere.
 */
export function addResult({ cniVersion, hostInterface, podInterface, addresses, prevResult }: Added) {
  const before = prevResult?.interfaces ?? [];
  const podInterfaceIndex = before.length + 1;
  return {
    ...prevResult,
    cniVersion,
    interfaces: [...before, hostInterface, podInterface],
    ips: [...(prevResult?.ips ?? []), ...addresses.map((address) => resultIp(address, podInterfaceIndex, cniVersion))],
  };
}

function resultIp(address: string, interfaceIndex: number, cniVersion: CniVersion): ResultIp {
  const ip = { interface: interfaceIndex, address };
  if (cniVersion === '1.0.0') return ip;
  return { version: address.includes(':') ? '6' : '4', ...ip };
}
