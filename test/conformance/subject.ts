import { join } from 'node:path';

import { isObject, type JsonObject } from './specification/json.js';

/**
 * The kind of a plugin, which selects its cases: it creates an interface in the container, it only returns addresses to
 * the plugin that called it, or it works on the results of earlier plugins of its chain.
 */
export type Kind = 'interface' | 'ipam' | 'meta';

/** The plugin under test. */
export interface Subject {
  readonly name: string;
  /** Path of its program. */
  readonly program: string;
  /** Folder of the plugins that it may call: CNI_PATH. */
  readonly binDir: string;
  readonly kind: Kind;
  /** Its configuration without `cniVersion` and `name`. `{leases}` in a text becomes a folder of the case. */
  readonly template: JsonObject;
  /** The interface that runtimes request from it. */
  readonly interfaceName: string;
  /** Whether it creates that interface; `loopback` finds it there. */
  readonly makesInterface: boolean;
  /** Whether two containers get different addresses. */
  readonly givesDistinctAddresses: boolean;
  /** A link that it requires on the node. */
  readonly uplink?: string;
  /** Whether the plugin has a resident process: it must see the containers' namespaces, so the kit stays in its mount namespace. */
  readonly isResident?: boolean;
  /** Path of its node's network namespace; undefined where it uses the caller's. */
  readonly nodeNetns?: string;
  /** Objects that may stay on the node after its containers, as `expectNothingLeft` prints them: the node's own, not a container's. */
  readonly keeps?: RegExp;
  /** A command for its allocations, one line each, where they are in no folder. */
  readonly holdings?: () => Promise<readonly string[]>;
}

/** How to start with a plugin that this kit knows. */
export type Preset = Pick<Subject, 'kind' | 'template'> & Partial<Subject>;

const HOST_LOCAL: JsonObject = {
  type: 'host-local',
  ranges: [[{ subnet: '10.88.0.0/16' }], [{ subnet: 'fd00:88::/64' }]],
  routes: [{ dst: '0.0.0.0/0' }, { dst: '::/0' }],
  dataDir: '{leases}',
};

const STATIC: JsonObject = {
  type: 'static',
  addresses: [{ address: '10.77.0.2/24', gateway: '10.77.0.1' }],
  routes: [{ dst: '0.0.0.0/0', gw: '10.77.0.1' }],
};

/** IPAM configurations for `--ipam`. */
export const IPAM: Readonly<Record<string, JsonObject>> = {
  'host-local': HOST_LOCAL,
  static: STATIC,
  'podwire-ipam': { type: 'podwire-ipam' },
};

const PORT_MAPPINGS: JsonObject = { portMappings: true };

const PODWIRE_SOCKET = '/run/podwire/cni.sock';

export const PRESETS: Readonly<Record<string, Preset>> = {
  ptp: { kind: 'interface', template: { type: 'ptp', ipam: HOST_LOCAL } },
  bridge: {
    kind: 'interface',
    template: { type: 'bridge', bridge: 'conformance0', isGateway: true, ipam: HOST_LOCAL },
  },
  macvlan: {
    kind: 'interface',
    uplink: 'uplink0',
    template: { type: 'macvlan', master: 'uplink0', mode: 'bridge', ipam: HOST_LOCAL },
  },
  loopback: {
    kind: 'interface',
    interfaceName: 'lo',
    makesInterface: false,
    givesDistinctAddresses: false,
    template: { type: 'loopback' },
  },
  'host-local': { kind: 'ipam', template: { type: 'host-local', ipam: HOST_LOCAL } },
  static: { kind: 'ipam', givesDistinctAddresses: false, template: { type: 'static', ipam: STATIC } },
  portmap: {
    kind: 'meta',
    template: {
      type: 'portmap',
      capabilities: PORT_MAPPINGS,
      runtimeConfig: { portMappings: [{ hostPort: 18080, containerPort: 80, protocol: 'tcp' }] },
    },
  },
  firewall: { kind: 'meta', template: { type: 'firewall', backend: 'iptables' } },
  sbr: { kind: 'meta', template: { type: 'sbr' } },
  tuning: { kind: 'meta', template: { type: 'tuning', sysctl: { 'net.core.somaxconn': '500' }, mtu: 1400 } },
  bandwidth: {
    kind: 'meta',
    template: {
      type: 'bandwidth',
      runtimeConfig: {
        bandwidth: { ingressRate: 8_000_000, ingressBurst: 8_000_000, egressRate: 8_000_000, egressBurst: 8_000_000 },
      },
    },
  },
  podwire: {
    kind: 'interface',
    isResident: true,
    nodeNetns: '/proc/self/ns/net',
    // The node's blocks of addresses, which it keeps for its next containers.
    keeps: /^route blackhole /,
    template: { type: 'podwire', capabilities: PORT_MAPPINGS, socket: PODWIRE_SOCKET, ipam: { type: 'podwire-ipam' } },
  },
  'podwire-ipam': {
    kind: 'ipam',
    isResident: true,
    template: { type: 'podwire-ipam', socket: PODWIRE_SOCKET, ipam: { type: 'podwire-ipam', socket: PODWIRE_SOCKET } },
  },
};

export const DEFAULT_BIN_DIRS = ['/opt/cni/bin', '/usr/lib/cni'];

/** A subject with defaults for its remaining fields. */
export function subjectOf(known: Preset & Pick<Subject, 'name' | 'binDir'>): Subject {
  const usual = { interfaceName: 'eth0', makesInterface: known.kind === 'interface', givesDistinctAddresses: true };
  return { ...usual, program: join(known.binDir, known.name), ...known };
}

/** A configuration with every `{leases}` in its texts replaced. */
export function filledIn(template: JsonObject, leases: string): JsonObject {
  const fill = (value: unknown): unknown => {
    if (typeof value === 'string') return value.replaceAll('{leases}', leases);
    if (Array.isArray(value)) return value.map(fill);
    return isObject(value) ? filledIn(value, leases) : value;
  };
  return Object.fromEntries(Object.entries(template).map(([key, value]) => [key, fill(value)]));
}
