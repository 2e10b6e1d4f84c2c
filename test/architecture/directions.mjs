/**
 * The dependency directions of the project, as data. The lint rule `allowed-imports` reads it; ARCHITECTURE.md draws it.
 *
 * A file belongs to the zone with the longest `path` that it lies under. It may import its own zone, the zones and npm
 * packages that its zone lists, and Node's built-in modules where the zone says so. Nothing else.
 */

import { DATAPLANE_ZONES } from './dataplane-zones.mjs';
import { NODE, PURE } from './zone-builtins.mjs';

/** What a test may import besides what its zone may. */
export const TEST_IMPORTS = {
  packages: [
    'vitest',
    'fast-check',
    // What a test needs to look at the spans that the code under test makes.
    '@opentelemetry/api',
    '@opentelemetry/context-async-hooks',
    '@opentelemetry/core',
    '@opentelemetry/sdk-trace-base',
  ],
  builtins: ['*'],
};

export const ZONES = [
  { path: 'proto/gen', zones: [], packages: ['@bufbuild/protobuf', '@grpc/grpc-js'], ...PURE },

  // Values that every other part stands on.
  { path: 'services/shared/json', zones: [], packages: [], ...PURE },
  { path: 'services/shared/net', zones: [], packages: ['ipaddr.js'], ...PURE },
  { path: 'services/shared/attachment', zones: ['services/shared/net'], packages: [], builtins: ['node:crypto'] },
  { path: 'services/shared/failure', zones: [], packages: ['@grpc/grpc-js'], ...PURE },
  {
    path: 'services/shared/failure/status.ts',
    zones: ['services/shared/failure', 'proto/gen'],
    packages: ['@grpc/grpc-js'],
    ...PURE,
  },
  { path: 'services/shared/retry', zones: [], packages: [], ...PURE },
  { path: 'services/shared/words', zones: [], packages: [], ...PURE },
  {
    path: 'services/shared/retry/retry.ts',
    zones: ['services/shared/retry', 'services/shared/runtime'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/shared/runtime',
    zones: ['services/shared/failure', 'services/shared/attachment'],
    packages: [
      '@opentelemetry/api',
      '@opentelemetry/context-async-hooks',
      '@opentelemetry/core',
      '@opentelemetry/sdk-node',
      '@opentelemetry/sdk-trace-base',
      'pino',
      'zod',
    ],
    ...NODE,
  },
  // Programs of a network configuration, as a container runtime runs them; what follows from their versions is pure.
  {
    path: 'services/shared/chain',
    zones: ['services/shared/failure', 'services/shared/json', 'services/shared/runtime'],
    packages: ['zod'],
    ...NODE,
  },
  {
    path: 'services/shared/rpc',
    zones: ['services/shared/failure', 'services/shared/runtime', 'proto/gen'],
    packages: ['@bufbuild/protobuf', '@grpc/grpc-js', '@grpc/reflection', '@opentelemetry/api', 'grpc-health-check'],
    ...NODE,
  },

  // IPAM: main → service → rpc → ipam → operations → store (interfaces) and allocator (pure).
  {
    path: 'services/ipam',
    zones: [
      'services/shared',
      'services/ipam/rpc',
      'services/ipam/ipam.ts',
      'services/ipam/operations',
      'services/ipam/events.ts',
      'services/ipam/allocator',
      'services/ipam/store',
      'services/ipam/watch',
      'services/ipam/transfer',
    ],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  {
    path: 'services/ipam/allocator',
    zones: ['services/shared/net', 'services/shared/attachment', 'services/shared/failure', 'services/shared/words'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/ipam/store',
    zones: ['services/shared', 'services/ipam/allocator'],
    packages: ['@opentelemetry/api'],
    ...NODE,
  },
  {
    path: 'services/ipam/store/embedded',
    zones: ['services/shared', 'services/ipam/store', 'services/ipam/allocator'],
    packages: ['@opentelemetry/api', 'lmdb'],
    ...NODE,
  },
  {
    path: 'services/ipam/store/etcd',
    zones: ['services/shared', 'services/ipam/store', 'services/ipam/allocator'],
    packages: ['@grpc/grpc-js', '@opentelemetry/api', 'cockatiel', 'etcd3'],
    ...NODE,
  },
  {
    path: 'services/ipam/rpc',
    zones: ['services/shared', 'proto/gen', 'services/ipam/allocator', 'services/ipam/ipam.ts', 'services/ipam/watch'],
    packages: [],
    ...PURE,
  },
  // Moves a datastore between stores, by a file.
  {
    path: 'services/ipam/transfer',
    zones: ['services/shared', 'services/ipam/store'],
    packages: ['zod'],
    ...NODE,
  },
  // What the store's mirror tells, to many who listen; the contract's messages come in as a codec.
  {
    path: 'services/ipam/watch',
    zones: ['services/shared', 'services/ipam/allocator', 'services/ipam/store'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/ipam/ipam.ts',
    zones: ['services/ipam/operations'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/ipam/operations',
    zones: ['services/shared', 'services/ipam/allocator', 'services/ipam/store', 'services/ipam/events.ts'],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },
  {
    path: 'services/ipam/events.ts',
    zones: ['services/shared', 'services/ipam/allocator'],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },

  ...DATAPLANE_ZONES,

  // An operator's terminal knows the services by their contract only.
  {
    path: 'services/ctl',
    zones: [
      'services/shared',
      'proto/gen',
      'services/ctl/clients',
      'services/ctl/command-line',
      'services/ctl/commands',
      'services/ctl/output',
    ],
    packages: ['@bufbuild/protobuf', '@grpc/grpc-js'],
    builtins: ['node:process', 'node:stream'],
  },
  {
    path: 'services/ctl/commands',
    zones: [
      'services/shared',
      'proto/gen',
      'services/ctl/clients',
      'services/ctl/command-line',
      'services/ctl/context.ts',
      'services/ctl/exit-codes.ts',
      'services/ctl/output',
    ],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/ctl/command-line',
    zones: ['services/shared', 'services/ctl/context.ts', 'services/ctl/exit-codes.ts', 'services/ctl/output'],
    packages: ['zod'],
    ...PURE,
  },
  {
    path: 'services/ctl/clients',
    zones: ['services/shared', 'services/ctl/context.ts'],
    packages: ['@grpc/grpc-js', 'zod'],
    ...NODE,
  },
  {
    path: 'services/ctl/output',
    zones: ['services/ctl/command-line/global-options.ts'],
    packages: ['@bufbuild/protobuf', '@grpc/grpc-js', 'yaml'],
    builtins: ['node:fs', 'node:module'],
  },

  // The plugin knows the services by their contract only.
  {
    path: 'plugin',
    zones: ['services/shared', 'plugin/cni', 'plugin/clients', 'plugin/journal'],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  // What outlives the process knows the services by the values of an allocation alone.
  {
    path: 'plugin/journal',
    zones: ['services/shared', 'plugin/clients', 'plugin/cni', 'plugin/delegate'],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  // The installer knows the plugin by its shim alone. What it leaves behind is decided without I/O.
  {
    path: 'plugin/install',
    zones: ['services/shared', 'plugin/install/wanted'],
    packages: ['zod'],
    ...NODE,
  },
  {
    path: 'plugin/install/wanted',
    zones: ['services/shared/failure', 'services/shared/json'],
    packages: ['zod'],
    ...PURE,
  },
  { path: 'plugin/cni', zones: ['services/shared'], packages: ['zod'], ...PURE },
  {
    path: 'plugin/clients',
    zones: ['services/shared', 'proto/gen', 'plugin/cni', 'plugin/netns.ts'],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },

  { path: 'addon/lib', zones: [], packages: ['node-gyp-build'], ...NODE },
  { path: 'addon/test', zones: ['addon/lib'], packages: [], ...NODE },

  { path: 'deploy', zones: [], packages: [], ...NODE },
  // Published by itself: it judges any plugin, and shares nothing with ours.
  {
    path: 'test/conformance',
    zones: [
      'test/conformance/cases',
      'test/conformance/machine',
      'test/conformance/report',
      'test/conformance/specification',
    ],
    packages: [],
    ...NODE,
  },
  {
    path: 'test/conformance/cases',
    zones: [
      'test/conformance/bench.ts',
      'test/conformance/case.ts',
      'test/conformance/machine',
      'test/conformance/specification',
    ],
    packages: [],
    builtins: ['node:path'],
  },
  { path: 'test/conformance/machine', zones: ['test/conformance/specification'], packages: [], ...NODE },
  { path: 'test/conformance/report', zones: ['test/conformance/case.ts'], packages: [], ...PURE },
  { path: 'test/conformance/specification', zones: [], packages: [], builtins: ['node:net'] },
  { path: 'test', zones: ['*'], packages: ['*'], ...NODE },
];

/** Where the workspaces are; an import of `@podwire/x/y` is one of the file `y` in the folder of `@podwire/x`. */
export const WORKSPACES = {
  '@podwire/proto': 'proto/gen',
  '@podwire/shared': 'services/shared',
  '@podwire/ipam': 'services/ipam',
  '@podwire/dataplane': 'services/dataplane',
  '@podwire/ctl': 'services/ctl',
  '@podwire/plugin': 'plugin',
  '@podwire/netlink': 'addon/lib',
  '@podwire/conformance': 'test/conformance',
  '@podwire/test': 'test',
};
