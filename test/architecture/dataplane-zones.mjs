import { NODE, PURE } from './zone-builtins.mjs';

/** Of `directions.mjs`: the node's service. */
export const DATAPLANE_ZONES = [
  // Dataplane: main → service → rpc → dataplane → kernel (interface) and plan (pure).
  {
    path: 'services/dataplane',
    zones: [
      'services/shared',
      'services/dataplane/rpc',
      'services/dataplane/plan',
      'services/dataplane/kernel',
      'services/dataplane/dataplane.ts',
      'services/dataplane/events.ts',
      'services/dataplane/attachments',
      'services/dataplane/bird',
      'services/dataplane/cluster',
      'services/dataplane/mtu',
      'services/dataplane/routing',
      'services/dataplane/sysctls',
      'services/dataplane/node-overview.ts',
    ],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  // What the node keeps of its attachments, and who looks after them.
  {
    path: 'services/dataplane/attachments',
    zones: [
      'services/shared',
      'services/dataplane/plan',
      'services/dataplane/kernel',
      'services/dataplane/routing',
      'services/dataplane/dataplane.ts',
      'services/dataplane/events.ts',
    ],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  {
    path: 'services/dataplane/attachments/ipam',
    zones: ['services/shared', 'proto/gen', 'services/dataplane/attachments'],
    packages: [],
    ...PURE,
  },
  // What IPAM tells of the cluster, and what it is told of this node.
  {
    path: 'services/dataplane/cluster',
    zones: [
      'services/shared',
      'proto/gen',
      'services/dataplane/routing',
      'services/dataplane/kernel',
      'services/dataplane/events.ts',
    ],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },
  // The plan of routes between nodes, and the loop that applies it.
  {
    path: 'services/dataplane/routing',
    zones: ['services/shared', 'services/dataplane/plan', 'services/dataplane/kernel', 'services/dataplane/events.ts'],
    packages: ['@opentelemetry/api'],
    // SHA-1, which tunnels' MAC addresses are made of.
    builtins: ['node:crypto'],
  },
  // Settings of the node that defeat pods' networks.
  {
    path: 'services/dataplane/sysctls',
    zones: ['services/shared', 'services/dataplane/routing', 'services/dataplane/kernel'],
    packages: [],
    ...PURE,
  },
  // The MTU of pods, from the node's interfaces and the pools.
  {
    path: 'services/dataplane/mtu',
    zones: ['services/shared', 'services/dataplane/routing', 'services/dataplane/kernel'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/dataplane/bird',
    zones: ['services/shared', 'services/dataplane/routing', 'services/dataplane/events.ts'],
    packages: ['@opentelemetry/api', 'yaml', 'zod'],
    ...NODE,
  },
  {
    path: 'services/dataplane/plan',
    zones: ['services/shared/net', 'services/shared/attachment', 'services/shared/failure'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/dataplane/kernel',
    zones: ['services/shared', 'services/dataplane/plan', 'services/dataplane/routing'],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },
  {
    path: 'services/dataplane/kernel/nft',
    zones: ['services/shared', 'services/dataplane/kernel', 'services/dataplane/routing'],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  {
    path: 'services/dataplane/kernel/netlink',
    zones: [
      'services/shared',
      'services/dataplane/kernel',
      'services/dataplane/plan',
      'services/dataplane/routing',
      'addon/lib',
    ],
    packages: ['@opentelemetry/api'],
    ...NODE,
  },
  {
    path: 'services/dataplane/rpc',
    zones: [
      'services/shared',
      'proto/gen',
      'services/dataplane/plan',
      'services/dataplane/dataplane.ts',
      'services/dataplane/attachments',
      'services/dataplane/routing',
      'services/dataplane/node-overview.ts',
    ],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/dataplane/node-overview.ts',
    zones: ['services/dataplane/bird', 'services/dataplane/cluster', 'services/dataplane/routing'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/dataplane/dataplane.ts',
    zones: [
      'services/shared',
      'services/dataplane/plan',
      'services/dataplane/kernel',
      'services/dataplane/attachments',
      'services/dataplane/events.ts',
      'services/dataplane/moved-flows.ts',
      'services/dataplane/source-rules.ts',
      'services/dataplane/under-way.ts',
    ],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },
  {
    path: 'services/dataplane/moved-flows.ts',
    zones: ['services/shared', 'services/dataplane/plan', 'services/dataplane/kernel', 'services/dataplane/events.ts'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/dataplane/source-rules.ts',
    zones: [
      'services/shared',
      'services/dataplane/plan',
      'services/dataplane/kernel',
      'services/dataplane/attachments',
      'services/dataplane/events.ts',
    ],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/dataplane/under-way.ts',
    zones: ['services/shared', 'services/dataplane/kernel', 'services/dataplane/lock.ts'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/dataplane/events.ts',
    zones: ['services/shared', 'services/dataplane/plan', 'services/dataplane/routing'],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },
];
