import { interfaceNameFault } from '@podwire/shared/attachment/attachment';
import type { Family } from '@podwire/shared/net/address';
import type { SettingValues } from '@podwire/shared/settings/config-reader';
import { isLocalAddress } from '@podwire/shared/settings/service-address';
import { absolutePath, flag, listOf, oneOf, rpcAddress, wholeNumber } from '@podwire/shared/settings/setting';
import { z } from 'zod';

import { BIRD_SETTINGS } from './bird/settings.js';
import { NAT_EXCLUSIONS } from './filters/masquerade.js';
import { readAddressMethod } from './node/address-method.js';

/** Interface names, or prefixes with a trailing `*`, separated by commas; empty for none. */
export const interfacePatterns = z
  .string()
  .transform((list) => (list.trim() === '' ? [] : list.split(',').map((item) => item.trim())))
  .superRefine((patterns, context) => {
    for (const pattern of patterns) {
      const fault = patternFault(pattern);
      if (fault !== undefined) context.addIssue({ code: 'custom', message: `${JSON.stringify(pattern)} ${fault}` });
    }
  });

const MAX_PORT = 65_535;

/** `FIRST-LAST`, both included, of ports from 1; undefined when empty. */
export const portRange = z
  .string()
  .regex(/^(\d{1,5}-\d{1,5})?$/, 'must be FIRST-LAST')
  .transform((range) => {
    if (range === '') return undefined;
    const [first = 0, last = 0] = range.split('-').map(Number);
    return { first, last };
  })
  .refine(
    (range) => range === undefined || (range.first >= 1 && range.first <= range.last && range.last <= MAX_PORT),
    `must be a range of ports from 1 to ${MAX_PORT}`,
  );

/** Ports from 1, separated by commas, or `none`. */
const portList = z
  .string()
  .transform((list) => (list === 'none' ? [] : list.split(',').map((item) => item.trim())))
  .pipe(z.array(wholeNumber(1, MAX_PORT)));

/** The settings of the dataplane. */
export const DATAPLANE_SETTINGS = {
  listen: {
    variable: 'PODWIRE_NODE_LISTEN',
    schema: listOf(rpcAddress.refine(isLocalAddress, 'is neither a unix socket nor a loopback address')),
    default: 'unix:/run/podwire/dataplane.sock',
    about:
      'Where to serve gRPC: unix:/absolute/path, accessible to its owner only, or a loopback host:port, at which every ' +
      'process of the machine can rewire the node’s pods; several with commas between them.',
  },
  callTimeoutMs: {
    variable: 'PODWIRE_NODE_CALL_TIMEOUT_MS',
    schema: wholeNumber(1, 600_000),
    default: '10000',
    about: 'Timeout of a call without a deadline, in milliseconds, 1 to 600000.',
  },
  natExclude: {
    variable: 'PODWIRE_NODE_NAT_EXCLUDE',
    schema: oneOf(NAT_EXCLUSIONS),
    default: 'pools',
    about:
      'Destinations exempt from masquerading of pools with natOutgoing: pools, or pools-and-nodes for pools and the addresses ' +
      'of nodes. No effect without such a pool.',
  },
  natInterfaces: {
    variable: 'PODWIRE_NODE_NAT_INTERFACES',
    schema: interfacePatterns,
    default: '',
    about:
      'Outgoing interfaces on which packets of pods are masqueraded: names, or prefixes with a trailing *, separated by commas; ' +
      'empty for all. No effect without a pool with natOutgoing.',
  },
  natPorts: {
    variable: 'PODWIRE_NODE_NAT_PORTS',
    schema: portRange,
    default: '',
    about:
      'Source ports of masqueraded TCP and UDP packets, as FIRST-LAST within 1-65535; empty for any. No effect without a pool ' +
      'with natOutgoing.',
  },
  firewallAccept: {
    variable: 'PODWIRE_NODE_FIREWALL_ACCEPT',
    schema: flag,
    default: 'true',
    about:
      'Whether packets of pods are accepted first in the chain FORWARD of iptables, if it exists: true, or false. With false, a ' +
      'firewall whose policy is DROP, such as Docker’s, cuts pods off, which the condition ForwardDropped reports.',
  },
  blockedPorts: {
    variable: 'PODWIRE_NODE_BLOCKED_PORTS',
    schema: portList,
    default: '9091,9094,9650',
    about:
      'TCP ports of nodes that pods cannot reach, separated by commas; none for no such ports. The default has the ports of the metrics ' +
      'and of podwire-ipam.',
  },
  networkPolicies: {
    variable: 'PODWIRE_NODE_NETWORK_POLICIES',
    schema: flag,
    default: 'false',
    about:
      'Whether network policies of Kubernetes are enforced for pods of this node: true, or false. With true, podwire-ipam must serve them: a new pod is isolated until the node has received the policies once.',
  },
  policyWaitMs: {
    variable: 'PODWIRE_NODE_POLICY_WAIT_MS',
    schema: wholeNumber(0, 10_000),
    default: '5000',
    about:
      'Longest time for which a new pod waits until the nodes whose policies name it have put its addresses in force, in milliseconds; 0 for no wait. It takes some 5 ms, and more only on overloaded nodes.',
  },
  mtuBytes: {
    variable: 'PODWIRE_NODE_MTU_BYTES',
    schema: wholeNumber(0, 65_535).refine((value) => value === 0 || value >= 1280, 'must be 0, or from 1280 to 65535'),
    default: '0',
    about:
      'MTU in bytes of pods that request none, 1280 to 65535; 0 for the smallest MTU of the node’s interfaces minus the ' +
      'encapsulation overhead of the pools.',
  },
  mtuInterfaces: {
    variable: 'PODWIRE_NODE_MTU_INTERFACES',
    schema: interfacePatterns,
    default: 'en*,wl*,ww*,sl*,ib*,eth*,wlan*,wwan*',
    about:
      'Interfaces of the node whose MTU counts for pods while they are up: names, or prefixes with a trailing *, separated by ' +
      'commas. No effect when PODWIRE_NODE_MTU_BYTES is not 0.',
  },
  nodeIpv4: {
    variable: 'PODWIRE_NODE_IPV4',
    schema: addressMethod(4),
    default: 'auto',
    about:
      'IPv4 address at which other nodes reach this one, with the length of its subnet (192.0.2.7/24), or the method of finding it: auto ' +
      '(the interface with the default route, else the first with an address), interface=REGEX, skip-interface=REGEX, cidr=LIST (the ' +
      'first address in one of the prefixes), can-reach=ADDRESS (the source address of packets to it), or none. REGEX may be a list ' +
      'separated by commas; each matches anywhere in the name. Interfaces of pods, tunnels and container engines are ignored.',
  },
  nodeIpv6: {
    variable: 'PODWIRE_NODE_IPV6',
    schema: addressMethod(6),
    default: 'auto',
    about: 'The same for IPv6: 2001:db8::7/64, auto, …, none. Link-local and temporary addresses are ignored.',
  },
  recordsDirectory: {
    variable: 'PODWIRE_NODE_RECORDS_DIRECTORY',
    schema: absolutePath,
    default: '/run/podwire/attachments',
    about:
      'Absolute path of the directory for the records of attachments. Use tmpfs: records are as short-lived as namespaces, and ' +
      'each write delays a pod. One directory for each podwire-node.',
  },
  leasesLow: {
    variable: 'PODWIRE_NODE_LEASES_LOW',
    schema: wholeNumber(0, 100),
    default: '4',
    about: 'The node leases further addresses of a family when it has so many left that no pod uses, 0 to 100.',
  },
  leasesHigh: {
    variable: 'PODWIRE_NODE_LEASES_HIGH',
    schema: wholeNumber(0, 128),
    default: '12',
    about:
      'Number of leased addresses of a family that the node keeps for its next pods, 0 to 128. A busy node keeps more. 0 turns leasing off: each pod waits for podwire-ipam.',
  },
  procDirectory: {
    variable: 'PODWIRE_NODE_PROC_DIRECTORY',
    schema: absolutePath,
    default: '/proc',
    about:
      'Absolute path of a mount of proc, below which sysctls of pods and of the node are read and written. A container without ' +
      'privileged has a read-only /proc/sys: mount the host’s /proc at /host/proc, and set this to /host/proc. Checked at start.',
  },
  ...BIRD_SETTINGS,
} as const;

export interface Config extends SettingValues<typeof DATAPLANE_SETTINGS> {
  /** Name of this node in IPAM and in Kubernetes. */
  readonly nodeName: string;
  /** Time after SIGTERM until calls in flight are cancelled, in milliseconds. */
  readonly drainTimeoutMs: number;
}

/** A name, or a prefix with a trailing `*`. A leading `-` suggests a misplaced option. */
function patternFault(pattern: string): string | undefined {
  if (pattern.startsWith('-')) return 'begins with "-"';
  const name = pattern.endsWith('*') ? pattern.slice(0, -1) : pattern;
  if (name.includes('*')) return 'has a "*" that is not its end';
  return name === '' && pattern === '*' ? undefined : interfaceNameFault(name);
}

/** Method of finding the node's address of a family: `readAddressMethod`. */
function addressMethod(family: Family) {
  return z.string().transform((text, context) => {
    const read = readAddressMethod(text, family);
    if (read.ok) return read.method;
    context.addIssue({ code: 'custom', message: read.fault });
    return z.NEVER;
  });
}
