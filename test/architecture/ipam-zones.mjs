import { NODE, PURE } from './zone-builtins.mjs';

/** Zones of podwire-ipam by feature, for `directions.mjs`. */

const IPAM = 'services/ipam';

/** The shared code that a rule may use. */
const VALUES = ['net', 'attachment', 'failure', 'network-policy', 'words'].map((folder) => `services/shared/${folder}`);

/** The stored values, and the rules about a single value. */
const RECORDS = [`${IPAM}/selectors`, `${IPAM}/records/*`];

/** The records with their stored form. */
const STORED = [...RECORDS, `${IPAM}/records/json`];

/**
 * The features, from the bottom. A folder may import only folders of the rows above it in this list. The engine and the
 * records lie below all of them.
 */
const FEATURES = [
  ['named-objects'],
  ['reservations', 'configuration'],
  ['blocks'],
  ['pools', 'endpoints'],
  ['request-policies'],
  ['addresses'],
  ['leases'],
  ['affinities'],
  ['nodes', 'handles', 'history', 'audit'],
  ['network-policies'],
  ['access', 'certificates', 'cluster', 'dry-run'],
];

/** Features whose rules need more: network policies are objects of Kubernetes, and named by the hash of their content. */
const RULES = { 'network-policies': { packages: ['zod'], builtins: ['node:crypto'] } };

/** The base of every operation. */
const UPDATES = [`${IPAM}/engine/updates/operation.ts`, `${IPAM}/engine/events.ts`, `${IPAM}/records/json/keys.ts`];

/**
 * The three zones of a feature. The name of a file shows its zone: `-rpc.ts` converts messages and serves them,
 * `-operations.ts` hands decisions to the update loop, everything else is a rule without I/O.
 */
function featureZones(folder, lower) {
  const path = `${IPAM}/${folder}`;
  const below = (kind) => [...lower, folder].map((name) => `${IPAM}/${name}#${kind}`);
  return [
    { path, kind: 'rules', zones: [...VALUES, ...RECORDS, ...below('rules')], packages: [], ...PURE, ...RULES[folder] },
    {
      path,
      kind: 'operations',
      zones: ['services/shared', ...RECORDS, ...UPDATES, ...below('rules'), ...below('operations')],
      packages: ['@opentelemetry/api'],
      ...PURE,
    },
    {
      path,
      kind: 'rpc',
      zones: [
        'services/shared',
        'proto/gen',
        `${IPAM}/messages`,
        ...RECORDS,
        ...UPDATES,
        ...['rules', 'operations', 'rpc'].flatMap(below),
      ],
      packages: [],
      ...PURE,
    },
  ];
}

const ALL_FEATURES = FEATURES.flat();

export const IPAM_ZONES = [
  { path: IPAM, zones: ['services/shared', IPAM], packages: ['@opentelemetry/api', 'jose', 'zod'], ...NODE },

  { path: `${IPAM}/selectors`, zones: VALUES, packages: [], ...PURE },
  { path: `${IPAM}/records`, zones: [...VALUES, `${IPAM}/selectors`], packages: [], ...PURE },
  { path: `${IPAM}/records/json`, zones: ['services/shared', ...RECORDS], packages: [], ...NODE },

  // The datastores, their copy in memory, and the one compare-and-swap loop.
  { path: `${IPAM}/engine`, zones: ['services/shared', ...STORED], packages: ['@opentelemetry/api'], ...NODE },
  {
    path: `${IPAM}/engine/mirror`,
    zones: ['services/shared', ...STORED, `${IPAM}/engine/*`],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },
  {
    path: `${IPAM}/engine/embedded`,
    zones: ['services/shared', ...STORED, `${IPAM}/engine/*`],
    packages: ['@opentelemetry/api', 'lmdb'],
    ...NODE,
  },
  {
    path: `${IPAM}/engine/etcd`,
    zones: ['services/shared', ...STORED, `${IPAM}/engine/*`],
    packages: ['@grpc/grpc-js', '@opentelemetry/api', 'etcd3'],
    ...NODE,
  },
  {
    path: `${IPAM}/engine/kubernetes`,
    zones: ['services/shared', ...STORED, `${IPAM}/engine/*`, `${IPAM}/api-server`],
    packages: ['@opentelemetry/api'],
    ...NODE,
  },
  {
    path: `${IPAM}/engine/updates`,
    zones: ['services/shared', ...STORED, `${IPAM}/engine`],
    packages: ['@opentelemetry/api'],
    // Only for `setMaxListeners`.
    builtins: ['node:events'],
  },
  // Streams of objects, whatever their kinds.
  { path: `${IPAM}/engine/streams`, zones: ['services/shared'], packages: [], ...PURE },

  // Parts of messages that several services share.
  { path: `${IPAM}/messages`, zones: ['services/shared', 'proto/gen', ...RECORDS], packages: [], ...PURE },

  ...FEATURES.flatMap((row, index) => {
    const lower = FEATURES.slice(0, index).flat();
    return row.flatMap((folder) => featureZones(folder, lower));
  }),

  // The history is read from the store directly, as it is not in the mirror.
  {
    path: `${IPAM}/history/history-log.ts`,
    zones: ['services/shared', ...STORED, `${IPAM}/engine/*`],
    packages: [],
    ...PURE,
  },

  // Objects of streams. Their messages belong to the features.
  {
    path: `${IPAM}/watch`,
    zones: ['services/shared', ...STORED, `${IPAM}/engine`],
    packages: [],
    ...PURE,
  },
  {
    path: `${IPAM}/watch`,
    kind: 'rpc',
    zones: [
      'services/shared',
      'proto/gen',
      ...RECORDS,
      `${IPAM}/engine/streams`,
      `${IPAM}/messages`,
      `${IPAM}/watch`,
      ...ALL_FEATURES.map((name) => `${IPAM}/${name}#rpc`),
    ],
    packages: [],
    ...PURE,
  },
  // The API server of the cluster, the nodes that it vouches for, and the authority that they trust.
  {
    path: `${IPAM}/api-server`,
    zones: ['services/shared', `${IPAM}/records/json/json.ts`],
    packages: ['jose', 'zod'],
    ...NODE,
  },
  // Which of several podwire-ipam serves.
  { path: `${IPAM}/leadership`, zones: ['services/shared', `${IPAM}/api-server`], packages: ['zod'], ...NODE },
  // Deleted Nodes and pods, and Nodes whose network works.
  {
    path: `${IPAM}/node-controller`,
    zones: [
      'services/shared',
      ...RECORDS,
      ...UPDATES,
      `${IPAM}/api-server`,
      ...['endpoints', 'addresses', 'nodes'].flatMap((name) => [`${IPAM}/${name}#rules`, `${IPAM}/${name}#operations`]),
    ],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },
  // Moves a datastore between stores, by a file.
  { path: `${IPAM}/transfer`, zones: ['services/shared', ...STORED, `${IPAM}/engine`], packages: ['zod'], ...NODE },
];
