import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { TEST_ACCOUNT } from '@podwire/ipam/api-server/token-signatures';
import { SETTINGS as IPAM_SETTINGS } from '@podwire/ipam/config';
import { nodeSettings } from '@podwire/node/settings';
import { INSTALL_SETTINGS } from '@podwire/plugin/install/settings';
import { describe, expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { z } from 'zod';

import { CHART, checksumOf, chartChecksum, NAMESPACE, RENDERED, UNINSTALL } from '../deploy/kubernetes/checksum.mjs';
import { ROOT } from './support/root.js';

const EXAMPLES = join(ROOT, 'deploy/kubernetes/examples');

const mountSchema = z.object({ name: z.string(), mountPath: z.string(), mountPropagation: z.string().optional() });
const probeSchema = z.object({ exec: z.object({ command: z.array(z.string()) }) });
const containerSchema = z.object({
  name: z.string(),
  image: z.string(),
  // The program that podwire-run starts, where it does.
  command: z.array(z.string()).transform((words) => (words[0] === 'podwire-run' ? words.slice(1) : words)),
  env: z.array(z.object({ name: z.string(), value: z.string().optional() })).default([]),
  envFrom: z.array(z.object({ configMapRef: z.object({ name: z.string() }) })).default([]),
  ports: z.array(z.unknown()).default([]),
  startupProbe: probeSchema.optional(),
  livenessProbe: probeSchema.optional(),
  readinessProbe: probeSchema.optional(),
  securityContext: z.strictObject({
    runAsUser: z.number(),
    runAsGroup: z.number(),
    runAsNonRoot: z.boolean(),
    allowPrivilegeEscalation: z.literal(false),
    readOnlyRootFilesystem: z.literal(true),
    capabilities: z.strictObject({ drop: z.tuple([z.literal('ALL')]), add: z.array(z.string()).default([]) }),
    seccompProfile: z.strictObject({ type: z.literal('RuntimeDefault') }),
  }),
  resources: z.strictObject({ requests: z.strictObject({ cpu: z.string(), memory: z.string() }) }),
  volumeMounts: z.array(mountSchema),
});
const volumeSchema = z.object({
  name: z.string(),
  configMap: z.object({ name: z.string() }).optional(),
  projected: z.looseObject({}).optional(),
});
const podSchema = z.object({
  hostNetwork: z.literal(true),
  hostPID: z.undefined().optional(),
  priorityClassName: z.string(),
  serviceAccountName: z.string(),
  automountServiceAccountToken: z.literal(false),
  terminationGracePeriodSeconds: z.number(),
  initContainers: z.array(containerSchema),
  containers: z.array(containerSchema),
  volumes: z.array(volumeSchema),
});
const objectSchema = z.looseObject({
  apiVersion: z.string(),
  kind: z.string(),
  metadata: z.object({
    name: z.string(),
    namespace: z.string().optional(),
    labels: z.record(z.string(), z.string()).default({}),
  }),
});
const ruleSchema = z.object({ rules: z.array(z.record(z.string(), z.array(z.string()))) });
const workloadSchema = z.object({ spec: z.object({ template: z.object({ spec: podSchema }) }) });
const nodeSchema = z.looseObject({ properties: z.record(z.string(), z.unknown()).optional() });

const rendered = readFileSync(RENDERED, 'utf8');
const objects = objectsOf(rendered);
const CLUSTER_KINDS = ['Namespace', 'ClusterRole', 'ClusterRoleBinding'];

function objectsOf(text: string) {
  return parseAllDocuments(text)
    .filter((document) => document.contents !== null)
    .map((document) => {
      expect(document.errors).toEqual([]);
      return objectSchema.parse(document.toJS());
    });
}

function find(kind: string, name: string) {
  const found = objects.find((object) => object.kind === kind && object.metadata.name === name);
  if (found === undefined) throw new Error(`${kind} ${name}: is not in ${RENDERED}; add it to the chart`);
  return found;
}

const podOf = (kind: string, name: string) => workloadSchema.parse(find(kind, name)).spec.template.spec;
const ipam = podOf('StatefulSet', 'podwire-ipam');
const node = podOf('DaemonSet', 'podwire-node');
const containers = [ipam, node].flatMap((pod) => [...pod.initContainers, ...pod.containers]);

const readChart = (file: string): string => readFileSync(join(CHART, file), 'utf8');

/** Paths of all properties that a schema declares, without properties of lists. */
function declaredPaths(schema: unknown, path = ''): string[] {
  return Object.entries(nodeSchema.parse(schema).properties ?? {}).flatMap(([name, inner]) => [
    `${path}${name}`,
    ...declaredPaths(inner, `${path}${name}.`),
  ]);
}

const objectOf = z.record(z.string(), z.unknown());

function valueAt(values: unknown, path: string): unknown {
  return path.split('.').reduce((value, name) => objectOf.safeParse(value).data?.[name], values);
}

describe('the chart', () => {
  const schema = objectOf.parse(JSON.parse(readChart('values.schema.json')));
  const values: unknown = parse(readChart('values.yaml'));
  const check = z.fromJSONSchema(schema);

  test('is what the plain YAML was rendered from: run `npm run manifests`', () => {
    for (const text of [rendered, readFileSync(UNINSTALL, 'utf8')]) expect(checksumOf(text)).toBe(chartChecksum());
  });

  test('has default values that its schema takes', () => {
    expect(check.safeParse(values).error).toBeUndefined();
  });

  test.each([
    { ipam: { store: 'paper' } },
    { ipam: { storre: 'etcd' } },
    { pools: [{ name: 'a', cidr: '10.0.0.0/16', encapsulation: 'gre' }] },
    { ipam: { address: 'fd00::1' } },
    { node: { settings: { LANG: 'C' } } },
    { node: { dataplane: {} } },
    { node: { plugin: {} } },
    { ipam: { nodeController: { graceSeconds: 0 } } },
    { ipam: { podAnnotations: { 'podwire.dev/a': 1 } } },
    { node: { extraVolumes: ['run'] } },
    { metrics: { podMonitor: { interval: '30s' } } },
  ])('has a schema that refuses %j', (wrong) => {
    expect(check.safeParse(wrong).success).toBe(false);
  });

  test('documents every value of its schema, with its default', () => {
    const undocumented = declaredPaths(schema).filter((path) => valueAt(values, path) === undefined);
    expect(undocumented).toEqual(['global']);
  });

  test('has the release of the programs', () => {
    const { version } = z
      .object({ version: z.string() })
      .parse(JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')));
    expect(parse(readChart('Chart.yaml'))).toMatchObject({ version, appVersion: version });
    expect(new Set(containers.map(({ image }) => image))).toEqual(new Set([`localhost/podwire:${version}`]));
  });
});

describe('helm test', () => {
  const template = readChart('templates/tests/connectivity.yaml');

  test('runs the connectivity test', () => {
    expect(template).toContain('command: [podwirectl, connectivity, test]');
  });

  test('has the service account whose tokens permit it, and neither root, capabilities nor files of the node', () => {
    const names = [...template.matchAll(/(?:serviceAccountName:|"name") "?([\w-]+)/g)].map(([, name]) => name);
    expect(names).toEqual([TEST_ACCOUNT, TEST_ACCOUNT, TEST_ACCOUNT]);
    expect(template).toContain('include "podwire.securityContext" (dict "user" 65532)');
    expect(template).not.toMatch(/hostPath|secret:/);
    expect(template).toContain('serviceAccountToken: { path: token, audience: podwire-ipam,');
  });
});

describe('the manifests', () => {
  test('are in one namespace', () => {
    const namespaces = objects
      .filter(({ kind }) => !CLUSTER_KINDS.includes(kind))
      .map(({ metadata }) => metadata.namespace);
    expect(new Set(namespaces)).toEqual(new Set([NAMESPACE]));
    expect(find('Namespace', NAMESPACE).metadata.labels).toMatchObject({
      'pod-security.kubernetes.io/enforce': 'privileged',
    });
  });

  test('give podwire-node a token for podwire-ipam alone, and the authority to check it with', () => {
    const { env, volumeMounts } = node.containers.find(({ name }) => name === 'node')!;
    const valueOf = (variable: string) => env.find(({ name }) => name === variable)?.value;
    const mountOf = (volume: string) => volumeMounts.find(({ name }) => name === volume)?.mountPath;
    expect(valueOf('PODWIRE_NODE_IPAM_TOKEN_FILE')).toBe(`${mountOf('token')}/token`);
    expect(valueOf('PODWIRE_NODE_IPAM_TLS_CA_FILE')).toBe(`${mountOf('authority')}/ca.crt`);
    const sources = [{ serviceAccountToken: { path: 'token', audience: 'podwire-ipam', expirationSeconds: 3600 } }];
    expect(node.volumes).toContainEqual(expect.objectContaining({ name: 'token', projected: { sources } }));
  });

  test('grant capabilities by name, and only to podwire-node and to the owner of the storage directory', () => {
    const granted = containers.map(({ name, securityContext }) => [name, securityContext.capabilities.add] as const);
    expect(Object.fromEntries(granted.filter(([, add]) => add.length > 0))).toEqual({
      storage: ['CHOWN'],
      node: ['NET_ADMIN', 'SYS_ADMIN', 'NET_RAW'],
    });
  });

  test('run podwire-ipam without root', () => {
    expect(ipam.containers.map(({ securityContext }) => securityContext)).toMatchObject([
      { runAsUser: 65_532, runAsNonRoot: true },
    ]);
  });

  test('grant podwire-ipam what tokens, Events, the node controller and network policies use, and the nodes nothing', () => {
    const core = (resource: string, ...verbs: string[]) => ({ apiGroups: [''], resources: [resource], verbs });
    const rules = objects.flatMap((object) => ruleSchema.safeParse(object).data?.rules ?? []);
    expect(rules).toEqual([
      { apiGroups: ['authentication.k8s.io'], resources: ['tokenreviews'], verbs: ['create'] },
      { nonResourceURLs: ['/.well-known/openid-configuration', '/openid/v1/jwks'], verbs: ['get'] },
      { apiGroups: ['events.k8s.io'], resources: ['events'], verbs: ['create', 'patch'] },
      core('nodes', 'get', 'list', 'watch', 'patch'),
      core('pods', 'get', 'list', 'watch'),
      core('namespaces', 'list', 'watch'),
      { apiGroups: ['networking.k8s.io'], resources: ['networkpolicies'], verbs: ['list', 'watch'] },
      { apiGroups: ['policy.networking.k8s.io'], resources: ['clusternetworkpolicies'], verbs: ['list', 'watch'] },
      core('nodes/status', 'patch'),
      { ...core('namespaces', 'get'), resourceNames: ['kube-system'] },
      { ...core('configmaps', 'get', 'update', 'patch'), resourceNames: ['podwire-authority'] },
      core('pods', 'list', 'watch'),
    ]);
    expect(ipam.serviceAccountName).toBe('podwire-ipam');
    expect(node.serviceAccountName).toBe('podwire-node');
  });

  test.each([
    ['ipam', ['/run/podwire/ipam.sock']],
    ['node', ['/run/podwire/cni.sock', '/run/podwire/dataplane.sock']],
  ])('probe all sockets of %s, and never restart it for its readiness', (name, sockets) => {
    const container = containers.find((each) => each.name === name)!;
    for (const probe of [container.startupProbe, container.livenessProbe]) {
      expect(probe!.exec.command).toEqual(['podwire-probe', '--live', ...sockets]);
    }
    expect(container.readinessProbe!.exec.command).toEqual(['podwire-probe', ...sockets]);
  });

  test('reserve no port of a node for the DaemonSet, so that two of its pods can overlap', () => {
    expect(node.containers.flatMap(({ ports }) => ports)).toEqual([]);
  });

  test('mount existing volumes, and define no volume without a use', () => {
    const configMaps = objects.filter(({ kind }) => kind === 'ConfigMap').map(({ metadata }) => metadata.name);
    for (const pod of [ipam, node]) {
      const all = [...pod.initContainers, ...pod.containers];
      const mounted = new Set(all.flatMap(({ volumeMounts }) => volumeMounts.map(({ name }) => name)));
      expect([...mounted].sort()).toEqual(pod.volumes.map(({ name }) => name).sort());
      const used = [
        ...pod.volumes.flatMap(({ configMap }) => (configMap === undefined ? [] : [configMap.name])),
        ...all.flatMap(({ envFrom }) => envFrom.map(({ configMapRef }) => configMapRef.name)),
      ];
      expect(used.filter((name) => !configMaps.includes(name))).toEqual([]);
    }
  });

  test('see network namespaces that the runtime makes later', () => {
    const mounts = node.containers.flatMap(({ volumeMounts }) => volumeMounts.filter(({ name }) => name === 'netns'));
    expect(mounts).toEqual([{ name: 'netns', mountPath: '/run/netns', mountPropagation: 'HostToContainer' }]);
  });

  test('leave time for the drain', () => {
    for (const pod of [ipam, node]) expect(pod.terminationGracePeriodSeconds).toBeGreaterThanOrEqual(10);
  });

  test('configure the pools and the network that the programs read', () => {
    const data = z.object({ data: z.record(z.string(), z.string()) });
    const pools = JSON.parse(data.parse(find('ConfigMap', 'podwire-ipam-pools')).data['pools.json']!);
    expect(pools).toMatchObject([{ cidr: '10.65.0.0/16', encapsulation: 'vxlan', natOutgoing: true }]);
    const conflist = data.parse(find('ConfigMap', 'podwire-cni')).data['podwire.conflist']!.replace('__CNI_MTU__', '0');
    const shipped: unknown = JSON.parse(readFileSync(join(ROOT, 'plugin/conflist/10-podwire.conflist'), 'utf8'));
    expect(JSON.parse(conflist)).toMatchObject(objectOf.parse(shipped));
  });
});

describe('the settings of the chart', () => {
  const variablesOf = (settings: Readonly<Record<string, { readonly variable: string }>>) =>
    Object.values(settings).map(({ variable }) => variable);
  /** The variables that each program reads. */
  const DECLARED: Readonly<Record<string, readonly string[]>> = {
    'podwire-ipam': variablesOf(IPAM_SETTINGS),
    'podwire-node': variablesOf(nodeSettings('node-1')),
    podwire: variablesOf(INSTALL_SETTINGS),
  };
  const isOurs = (name: string) => name.startsWith('PODWIRE_');
  const undeclared = (program: string, names: readonly string[]) =>
    names.filter((name) => isOurs(name) && DECLARED[program]?.includes(name) !== true);
  const configMapSchema = z.object({ data: z.record(z.string(), z.string()).nullish() });

  test.each(containers.map((container) => [container.name, container] as const))(
    'are read by the program of the container %s',
    (_, { command: [program = ''], env, envFrom }) => {
      const fromMaps = envFrom.flatMap(({ configMapRef }) =>
        Object.keys(configMapSchema.parse(find('ConfigMap', configMapRef.name)).data ?? {}),
      );
      expect(undeclared(program, [...env.map(({ name }) => name), ...fromMaps])).toEqual([]);
    },
  );

  test.each(['ipam', 'node'])('are read by podwire-%s, whatever the values choose', (name) => {
    const template = readChart('templates/settings.yaml');
    const [, body] = template.split(`"podwire-${name}-settings" `);
    const names = [...body!.split('\n---\n')[0]!.matchAll(/^ +([A-Z][A-Z0-9_]+):/gm)].map(([, variable]) => variable!);
    expect(names.length).toBeGreaterThan(0);
    expect(undeclared(`podwire-${name}`, names)).toEqual([]);
  });
});

test.each(readdirSync(EXAMPLES))('the example %s is YAML of Kubernetes', (file) => {
  const documents = parseAllDocuments(readFileSync(join(EXAMPLES, file), 'utf8'));
  const kinds = z.array(z.looseObject({ apiVersion: z.string(), kind: z.string() }));
  expect(kinds.parse(documents.map((document): unknown => document.toJS())).length).toBeGreaterThan(0);
});
