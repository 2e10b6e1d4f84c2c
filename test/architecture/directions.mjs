/**
 * The dependency directions of the project, as data. The lint rule `allowed-imports` reads it; ARCHITECTURE.md draws it.
 *
 * A file belongs to the zone with the longest `path` that it lies under; where a zone has a `kind` ('rules', 'operations' or
 * 'rpc', see `kindOf`), only files of that kind belong to it. A file may import its own zone, the zones and npm packages that
 * its zone lists, and Node's built-in modules where the zone says so. `folder/*` names a folder without its subfolders,
 * `folder#kind` the files of one kind in it.
 */

import { DATAPLANE_ZONES } from './dataplane-zones.mjs';
import { IPAM_ZONES } from './ipam-zones.mjs';
import { NODE, PURE } from './zone-builtins.mjs';

/** The imports of a test besides the imports of its zone. */
export const TEST_IMPORTS = {
  packages: [
    'vitest',
    'fast-check',
    // A test needs these to read the spans of the code under test.
    '@opentelemetry/api',
    '@opentelemetry/context-async-hooks',
    '@opentelemetry/core',
    '@opentelemetry/sdk-trace-base',
    // The page of the demonstration, in a browser.
    'playwright-core',
  ],
  builtins: ['*'],
};

export const ZONES = [
  { path: 'proto/gen', zones: [], packages: ['@bufbuild/protobuf', '@grpc/grpc-js'], ...PURE },

  // Values at the base of every other part.
  { path: 'services/shared/json', zones: [], packages: [], ...PURE },
  { path: 'services/shared/net', zones: [], packages: ['ipaddr.js'], ...PURE },
  // Network policies in the form that podwire-ipam compiles and nodes enforce.
  {
    path: 'services/shared/network-policy',
    zones: ['services/shared/net'],
    packages: [],
    builtins: ['node:crypto'],
  },
  { path: 'services/shared/attachment', zones: ['services/shared/net'], packages: [], builtins: ['node:crypto'] },
  { path: 'services/shared/failure', zones: [], packages: ['@grpc/grpc-js'], ...PURE },
  {
    path: 'services/shared/failure/status.ts',
    zones: ['services/shared/failure', 'proto/gen'],
    packages: ['@grpc/grpc-js'],
    ...PURE,
  },
  { path: 'services/shared/reconcile/schedule.ts', zones: [], packages: [], ...PURE },
  { path: 'services/shared/words', zones: [], packages: [], ...PURE },
  {
    path: 'services/shared/reconcile/retry.ts',
    zones: ['services/shared/reconcile/schedule.ts', 'services/shared/runtime'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/shared/reconcile',
    zones: ['services/shared/failure', 'services/shared/reconcile/schedule.ts', 'services/shared/runtime'],
    packages: ['@opentelemetry/api'],
    ...NODE,
  },
  {
    path: 'services/shared/runtime',
    zones: ['services/shared/failure', 'services/shared/attachment'],
    packages: ['@opentelemetry/api', 'pino'],
    ...NODE,
  },
  // Environment variables of the processes, and their help.
  {
    path: 'services/shared/settings',
    zones: ['services/shared/failure', 'services/shared/words'],
    packages: ['zod'],
    ...PURE,
  },
  // Files that survive a crash, and locks of folders.
  { path: 'services/shared/files', zones: ['services/shared/failure'], packages: [], ...NODE },
  {
    path: 'services/shared/telemetry',
    zones: [
      'services/shared/failure',
      'services/shared/runtime',
      'services/shared/sockets/source-counts.ts',
      'services/shared/tls',
    ],
    packages: [
      '@opentelemetry/api',
      '@opentelemetry/context-async-hooks',
      '@opentelemetry/core',
      '@opentelemetry/exporter-metrics-otlp-grpc',
      '@opentelemetry/exporter-metrics-otlp-http',
      '@opentelemetry/exporter-metrics-otlp-proto',
      '@opentelemetry/exporter-prometheus',
      '@opentelemetry/exporter-trace-otlp-grpc',
      '@opentelemetry/exporter-trace-otlp-http',
      '@opentelemetry/exporter-trace-otlp-proto',
      '@opentelemetry/resources',
      '@opentelemetry/sdk-metrics',
      '@opentelemetry/sdk-trace-base',
    ],
    ...NODE,
  },
  // Programs of a network configuration, as a container runtime runs them; the decisions about their versions are pure.
  {
    path: 'services/shared/chain',
    zones: ['services/shared/failure', 'services/shared/json', 'services/shared/runtime'],
    packages: ['zod'],
    ...NODE,
  },
  // Certificates, and the identity of their holders.
  {
    path: 'services/shared/tls',
    zones: ['services/shared/failure', 'services/shared/files', 'services/shared/runtime', 'services/shared/settings'],
    packages: ['@grpc/grpc-js', '@peculiar/x509', 'reflect-metadata', 'zod'],
    ...NODE,
  },
  // Unix sockets: their files, their owner, and who may connect.
  {
    path: 'services/shared/sockets',
    zones: ['services/shared/failure', 'services/shared/files', 'services/shared/runtime', 'services/shared/sockets'],
    packages: [],
    ...NODE,
  },
  {
    path: 'services/shared/sockets/source-counts.ts',
    zones: ['services/shared/net'],
    packages: [],
    ...NODE,
  },
  // Node.js has no system call for the lock of a file, nor for the credentials of a connection's other end.
  {
    path: 'services/shared/files/directory-lock.ts',
    zones: ['addon/lib/file-lock.ts'],
    packages: [],
    ...NODE,
  },
  {
    path: 'services/shared/sockets/peer-check.ts',
    zones: ['services/shared/failure', 'services/shared/runtime', 'addon/lib/peer-credentials.ts'],
    packages: [],
    ...NODE,
  },
  // The fields of requests, and pages of lists.
  { path: 'services/shared/requests', zones: ['services/shared/failure', 'proto/gen'], packages: [], ...PURE },
  {
    path: 'services/shared/rpc',
    zones: [
      'services/shared/sockets',
      'services/shared/failure',
      'services/shared/runtime',
      'services/shared/telemetry',
      'services/shared/tls',
      'services/shared/rpc',
      'proto/gen',
    ],
    packages: ['@bufbuild/protobuf', '@grpc/grpc-js', '@grpc/reflection', '@opentelemetry/api', 'grpc-health-check'],
    ...NODE,
  },
  // Services that every process serves.
  {
    path: 'services/shared/common-services',
    zones: [
      'services/shared/failure',
      'services/shared/runtime',
      'services/shared/telemetry',
      'services/shared/rpc',
      'proto/gen',
    ],
    packages: [],
    ...PURE,
  },
  // Code shared by tests of several workspaces.
  {
    path: 'services/shared/testing',
    zones: ['services/shared', 'proto/gen'],
    packages: [
      '@bufbuild/protobuf',
      '@grpc/grpc-js',
      '@opentelemetry/api',
      '@opentelemetry/sdk-metrics',
      '@peculiar/x509',
      'pino',
      'reflect-metadata',
    ],
    ...NODE,
  },

  ...IPAM_ZONES,
  ...DATAPLANE_ZONES,

  // podwirectl knows the services by their contract only.
  {
    path: 'services/ctl',
    zones: ['services/shared', 'proto/gen', 'services/ctl'],
    packages: ['@bufbuild/protobuf', '@grpc/grpc-js', 'zod'],
    builtins: ['node:process', 'node:stream'],
  },
  {
    path: 'services/ctl/output',
    zones: ['services/shared/attachment', 'services/shared/failure'],
    packages: ['@bufbuild/protobuf', '@grpc/grpc-js', 'yaml'],
    builtins: ['node:fs', 'node:module', 'node:util'],
  },
  {
    path: 'services/ctl/clients',
    zones: ['services/shared', 'proto/gen', 'services/ctl/output'],
    packages: ['@bufbuild/protobuf', '@grpc/grpc-js', 'modern-tar', 'zod'],
    ...NODE,
  },
  {
    path: 'services/ctl/command-line',
    zones: ['services/shared', 'services/ctl/output', 'services/ctl/clients'],
    packages: ['commander'],
    ...PURE,
  },
  {
    path: 'services/ctl/certificates',
    zones: ['services/shared', 'proto/gen', 'services/ctl/output', 'services/ctl/clients', 'services/ctl/command-line'],
    packages: [],
    ...NODE,
  },
  {
    path: 'services/ctl/resources',
    zones: ['services/shared', 'proto/gen', 'services/ctl/output', 'services/ctl/clients', 'services/ctl/command-line'],
    packages: ['diff', 'yaml', 'zod'],
    builtins: ['node:util'],
  },
  {
    path: 'services/ctl/commands',
    zones: [
      'services/shared',
      'proto/gen',
      'services/ctl/output',
      'services/ctl/clients',
      'services/ctl/command-line',
      'services/ctl/resources',
      'services/ctl/page/data.ts',
    ],
    packages: ['@grpc/grpc-js', 'zod'],
    ...PURE,
  },
  // Runs in the browser: of other files it imports types only.
  {
    path: 'services/ctl/page',
    // The last three are for its tests.
    zones: [
      'services/shared/telemetry/phases.ts',
      'services/ctl/page',
      'services/ctl/commands',
      'services/ctl/testing',
      'deploy/local/programs.mjs',
    ],
    packages: [],
    ...PURE,
  },
  // Listens for the browser.
  {
    path: 'services/ctl/commands/page',
    zones: [
      'services/shared',
      'proto/gen',
      'services/ctl/output',
      'services/ctl/clients',
      'services/ctl/command-line',
      'services/ctl/resources',
      'services/ctl/commands',
      'services/ctl/page/data.ts',
    ],
    packages: [],
    ...NODE,
  },
  // The preflight runs before any service does, so it has the node's own checks in its process.
  {
    path: 'services/ctl/commands/node/preflight.ts',
    zones: [
      'services/shared',
      'proto/gen',
      'services/ctl/output',
      'services/ctl/clients',
      'services/ctl/command-line',
      'services/ctl/resources',
      'services/node/preflight/facts.ts',
    ],
    packages: [],
    ...PURE,
  },

  // The plugin knows the services by their contract only. From the bottom: the CNI protocol, the services' clients, providers
  // of addresses, the journal, the contents of a request, the spool, the commands.
  { path: 'plugin/cni', zones: ['services/shared'], packages: ['zod'], ...PURE },
  {
    path: 'plugin/clients',
    zones: ['services/shared', 'proto/gen', 'plugin/cni'],
    packages: ['@opentelemetry/api'],
    ...PURE,
  },
  {
    path: 'plugin/clients/local-calls.ts',
    zones: ['services/shared', 'plugin/clients'],
    packages: ['@opentelemetry/api'],
    builtins: ['node:events'],
  },
  { path: 'plugin/addresses', zones: ['services/shared', 'plugin/cni', 'plugin/clients'], packages: ['zod'], ...NODE },
  {
    path: 'plugin/journal',
    zones: ['services/shared', 'plugin/cni', 'plugin/clients', 'plugin/addresses'],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  {
    path: 'plugin/requests',
    zones: ['services/shared', 'plugin/cni', 'plugin/clients', 'plugin/addresses', 'plugin/journal'],
    packages: ['@opentelemetry/api'],
    ...NODE,
  },
  { path: 'plugin/spool', zones: ['services/shared', 'plugin/cni', 'plugin/requests'], packages: [], ...NODE },
  {
    path: 'plugin/commands',
    zones: [
      'services/shared',
      'plugin/cni',
      'plugin/clients',
      'plugin/addresses',
      'plugin/journal',
      'plugin/requests',
      'plugin/events.ts',
      'plugin/commands/readiness-record.ts',
    ],
    packages: ['@opentelemetry/api', 'zod'],
    ...PURE,
  },
  // The file that outlives the process.
  {
    path: 'plugin/commands/readiness-record.ts',
    zones: ['services/shared', 'plugin/addresses'],
    packages: ['zod'],
    ...NODE,
  },
  { path: 'plugin', zones: ['services/shared', 'plugin'], packages: ['@opentelemetry/api', 'zod'], ...NODE },
  // The installer knows the plugin by its shim only. Its decisions are pure.
  { path: 'plugin/install', zones: ['services/shared', 'plugin/install'], packages: ['zod'], ...NODE },
  ...['conflist', 'spec'].map((name) => ({
    path: `plugin/install/${name}.ts`,
    zones: ['services/shared/failure', 'services/shared/json', 'plugin/install/conflist.ts'],
    packages: ['zod'],
    ...PURE,
  })),

  // The node's addresses: the records of the attachments and the leases, driven by one client of podwire-ipam. The plugin and the
  // dataplane see it by interfaces of their own.
  {
    path: 'services/node/addresses',
    zones: [
      'services/shared',
      'services/dataplane/cluster',
      'services/dataplane/conditions',
      'services/dataplane/node-addresses.ts',
      'services/dataplane/pods',
      'services/dataplane/records',
      'services/dataplane/repair',
      // Zones of tests alone.
      'services/dataplane/testing',
      'plugin/clients',
      'proto/gen',
    ],
    packages: ['@opentelemetry/api', 'zod'],
    ...NODE,
  },
  {
    path: 'services/node/addresses/testing',
    zones: ['services/shared', 'services/dataplane', 'plugin/clients', 'services/node/addresses', 'proto/gen'],
    packages: [],
    ...NODE,
  },
  // One process of the parts of a node.
  {
    path: 'services/node',
    zones: ['services/shared', 'services/dataplane', 'plugin', 'services/node', 'proto/gen'],
    packages: [],
    ...NODE,
  },
  // The kernel's state, for support bundles.
  { path: 'services/node/diagnostics', zones: ['services/shared', 'addon/lib'], packages: [], ...NODE },
  // Checks of a node without a running service. Its rules are pure.
  {
    path: 'services/node/preflight',
    zones: ['services/shared', 'services/dataplane', 'plugin/install/conflist.ts', 'proto/gen'],
    packages: [],
    ...PURE,
  },
  {
    path: 'services/node/preflight/facts.ts',
    zones: [
      'services/shared',
      'services/dataplane',
      'services/node/preflight',
      'plugin/install/conflist.ts',
      'proto/gen',
      'addon/lib/clock.ts',
    ],
    packages: [],
    ...NODE,
  },

  { path: 'addon/lib', zones: [], packages: ['node-gyp-build'], ...NODE },
  { path: 'addon/test', zones: ['addon/lib'], packages: [], ...NODE },

  { path: 'deploy', zones: ['deploy/local'], packages: [], ...NODE },
  { path: 'deploy/local', zones: ['services/shared', 'services/ctl'], packages: ['playwright-core'], ...NODE },
  {
    path: 'deploy/observability',
    zones: ['services/shared/telemetry'],
    packages: ['@grafana/grafana-foundation-sdk', '@grafana/lezer-traceql', '@prometheus-io/lezer-promql', 'yaml'],
    ...NODE,
  },
  // Published separately: it tests any plugin, and shares no code with ours.
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

/** The folders of the workspaces; an import of `@podwire/x/y` is one of the file `y` in the folder of `@podwire/x`. */
export const WORKSPACES = {
  '@podwire/proto': 'proto/gen',
  '@podwire/shared': 'services/shared',
  '@podwire/ipam': 'services/ipam',
  '@podwire/dataplane': 'services/dataplane',
  '@podwire/ctl': 'services/ctl',
  '@podwire/node': 'services/node',
  '@podwire/plugin': 'plugin',
  '@podwire/netlink': 'addon/lib',
  '@podwire/conformance': 'test/conformance',
  '@podwire/test': 'test',
};
