import { NODE, PURE } from './zone-builtins.mjs';

/** Zones of the node's service, for `directions.mjs`, by feature. An interface lies with its user; `kernel` implements them. */

const DATAPLANE = 'services/dataplane';

const at = (...folders) => folders.map((folder) => `${DATAPLANE}/${folder}`);

/** The base of every feature. */
const BASE = ['services/shared', ...at('conditions', 'cluster', 'wiring')];

/** The layer of nftables, without the program: only the root chooses that. */
const NFT = at(
  'nft/nft.ts',
  'nft/table.ts',
  'nft/table-form.ts',
  'nft/table-reconciler.ts',
  'nft/transaction-reports.ts',
  'nft/ruleset.ts',
);

export const DATAPLANE_ZONES = [
  {
    path: DATAPLANE,
    zones: ['services/shared', DATAPLANE, 'proto/gen'],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },

  // The node's conditions, the cluster as the node knows it, and the plan of one pod's interface.
  { path: `${DATAPLANE}/conditions`, zones: ['services/shared'], packages: ['@opentelemetry/api'], ...PURE },
  { path: `${DATAPLANE}/cluster`, zones: ['services/shared'], packages: [], ...PURE },
  {
    path: `${DATAPLANE}/wiring`,
    zones: ['services/shared/net', 'services/shared/attachment', 'services/shared/failure'],
    packages: [],
    ...PURE,
  },

  // Four independent columns. The first: the records of the attachments, the pods, and what repairs them without a call.
  { path: `${DATAPLANE}/records`, zones: BASE, packages: ['zod'], ...NODE },
  {
    path: `${DATAPLANE}/pods`,
    zones: [...BASE, `${DATAPLANE}/records`],
    packages: ['@opentelemetry/api'],
    // SHA-1, which Calico's plugin makes container IDs of.
    builtins: ['node:crypto'],
  },
  {
    path: `${DATAPLANE}/pods`,
    kind: 'rpc',
    zones: [...BASE, ...at('records', 'pods'), 'proto/gen'],
    packages: [],
    ...PURE,
  },
  {
    path: `${DATAPLANE}/repair`,
    zones: [...BASE, ...at('records', 'pods')],
    packages: ['@opentelemetry/api'],
    ...NODE,
  },
  // SHA-1, which the MAC addresses of tunnels are made of.
  { path: `${DATAPLANE}/routes`, zones: BASE, packages: ['@opentelemetry/api'], builtins: ['node:crypto'] },
  { path: `${DATAPLANE}/nft`, zones: ['services/shared'], packages: [], ...PURE },
  { path: `${DATAPLANE}/nft/nft-program.ts`, zones: ['services/shared', ...NFT], packages: ['zod'], ...NODE },
  { path: `${DATAPLANE}/filters`, zones: [...BASE, ...NFT], packages: [], ...PURE },
  {
    path: `${DATAPLANE}/network-policy`,
    zones: [...BASE, ...NFT, `${DATAPLANE}/pods/kernel.ts`, 'proto/gen'],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  {
    path: `${DATAPLANE}/policy-drops`,
    zones: [...BASE, ...NFT, ...at('pods/kernel.ts', 'network-policy'), 'proto/gen'],
    packages: [],
    ...PURE,
  },
  { path: `${DATAPLANE}/bird`, zones: BASE, packages: ['@opentelemetry/api', 'yaml', 'zod'], ...NODE },

  // The node itself: its registration, its addresses, its MTU, its settings.
  {
    path: `${DATAPLANE}/node`,
    zones: [...BASE, ...at('routes', 'bird'), 'proto/gen'],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },

  // Pods and packets of tests of connectivity, which need the kernel itself.
  {
    path: `${DATAPLANE}/probes`,
    zones: [
      ...BASE,
      ...NFT,
      ...at('nft/nft-program.ts', 'kernel/probe-kernel.ts', 'records', 'removal.ts'),
      'proto/gen',
    ],
    packages: ['zod'],
    ...NODE,
  },

  // The kernel by netlink: implements the interfaces of the features.
  {
    path: `${DATAPLANE}/kernel`,
    zones: [
      ...BASE,
      ...NFT,
      ...at('records', 'pods', 'routes', 'node', 'network-policy/live-connections.ts'),
      'addon/lib',
    ],
    packages: ['@opentelemetry/api'],
    ...NODE,
  },

  {
    path: `${DATAPLANE}/testing`,
    zones: ['services/shared', DATAPLANE, 'proto/gen', 'addon/lib'],
    packages: ['zod'],
    ...NODE,
  },
];
