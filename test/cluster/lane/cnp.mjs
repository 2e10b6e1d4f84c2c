// The conformance tests of ClusterNetworkPolicy (`--e2e=cnp`): network-policy-api's own, with its definition.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { runLogged, until } from './wait.mjs';

const TEST = 'TestConformanceProfiles';
const MINUTES = 30;

/** podwire-ipam looks for a missing definition once a minute. */
const NOTICE_SECONDS = 75;

const FEATURES = ['ClusterNetworkPolicyNamedPorts'];

/** The suite demands all of these. */
const IMPLEMENTATION = {
  organization: 'podwire',
  project: 'podwire',
  url: 'https://podwire.invalid',
  contact: 'none',
  'additional-info': 'test/cluster/README.md',
};

const PROBE = { apiVersion: 'policy.networking.k8s.io/v1beta1', kind: 'ClusterNetworkPolicy', name: 'noticed' };

/** A policy that selects no pod. */
function probe() {
  const { apiVersion, kind, name } = PROBE;
  const subject = { namespaces: { matchLabels: { 'kubernetes.io/metadata.name': name } } };
  const ingress = [{ action: 'Deny', from: [{ namespaces: {} }] }];
  return JSON.stringify({
    apiVersion,
    kind,
    metadata: { name },
    spec: { tier: 'Admin', priority: 0, subject, ingress },
  });
}

/** Adds the definition to the cluster while `action` runs: podwire-ipam has started without it. */
async function withDefinition({ controlPlane, podwire, programs }, action) {
  const definition = join(programs.cnp, 'crd.yaml');
  const isKnown = async () => (await podwire.podwirectl(['policy', 'list'])).includes(`${PROBE.kind} ${PROBE.name}`);
  controlPlane.kubectl(['create', '-f', definition]);
  try {
    controlPlane.kubectl(['wait', '--for=condition=Established', '--timeout=30s', '-f', definition]);
    const startMs = Date.now();
    controlPlane.kubectl(['create', '-f', '-'], probe());
    await until('podwire-ipam to follow ClusterNetworkPolicies', isKnown, NOTICE_SECONDS);
    process.stdout.write(`podwire-ipam noticed the definition in ${((Date.now() - startMs) / 1000).toFixed(0)} s\n`);
    return await action();
  } finally {
    controlPlane.kubectl(['delete', '-f', definition]);
    await until('podwire-ipam to forget the deleted policies', async () => !(await isKnown()), NOTICE_SECONDS);
  }
}

/** Name, state and time of each test, from the output of Go's tests; the message of a failed one names its failed parts. */
function specsOf(log) {
  const lines = readFileSync(log, 'utf8').matchAll(
    /^ *--- (PASS|FAIL|SKIP): [^ /]+\/([^ /]+)(?:\/(\S+))? \(([\d.]+)s\)$/gm,
  );
  const results = [...lines].map(([, result, name, part, seconds]) => ({ result, name, part, seconds }));
  const failedParts = (test) =>
    results.flatMap(({ result, name, part }) => (name === test && result === 'FAIL' && part ? [part] : []));
  const tests = results.filter(({ part }) => part === undefined);
  return tests.map(({ result, name, seconds }) => ({
    name,
    isSpec: true,
    state: { PASS: 'passed', FAIL: 'failed', SKIP: 'skipped' }[result],
    took: `${Number(seconds).toFixed(0)} s`,
    message: result === 'SKIP' ? 'Podwire does not have this feature' : failedParts(name).join('; '),
  }));
}

/**
 * Runs the suite; `only` selects tests by name. Without it, the suite writes its report.
 * @returns exit code and tests
 */
export function runCnp({ cluster, folder, only }) {
  const { programs, controlPlane, image } = cluster;
  const version = image.split(':').at(-1);
  const details = Object.entries({ ...IMPLEMENTATION, version }).map(([name, value]) => `--${name}=${value}`);
  const args = [
    `-test.run=^${TEST}$${only === undefined ? '' : `/${only}`}`,
    '-test.v',
    `-test.timeout=${MINUTES}m`,
    '--conformance-profiles=ClusterNetworkPolicy',
    `--supported-features=${FEATURES.join(',')}`,
    ...details,
    // The suite's report has tests that were not selected as passed.
    ...(only === undefined ? [`--report-output=${join(folder, 'report.yaml')}`] : []),
  ];
  return withDefinition(cluster, async () => {
    const log = join(folder, 'test.log');
    const env = { KUBECONFIG: controlPlane.kubeconfig, HOME: folder };
    const code = await runLogged(join(programs.cnp, 'cnp.test'), args, { log, env, cwd: folder });
    return { code, specs: specsOf(log), log: 'test.log' };
  });
}
