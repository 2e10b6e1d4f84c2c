// Kubernetes' own end-to-end tests of the network (`--e2e=GROUP`), on three nodes with CoreDNS.
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { runCnp } from './cnp.mjs';
import { withCoreDns } from './coredns.mjs';
import { CONTROL_PLANE, CONTROL_PLANE_IPV6, PODS } from './network.mjs';
import { must, runLogged } from './wait.mjs';

/** Specs that cannot pass here: part of their names, and why. `mode`: only in this mode of kube-proxy. */
const CANNOT_RUN = [
  { part: 'SCTPConnectivity', reason: 'needs a kernel with CONFIG_IP_SCTP' },
  { part: '\\[Feature:LoadBalancer\\]|\\[Provider:', reason: 'needs a cloud' },
  { part: '\\[Feature:Networking-|Forward PTR lookup', reason: 'needs the internet' },
  { part: 'KubeProxy', reason: "needs time-outs of conntrack and nfacct, which are the host's" },
  { part: 'LocalhostNodePorts', reason: 'kube-proxy has no node ports of 127.0.0.1', mode: 'nftables' },
  {
    part: 'NodePort and HealthCheckNodePort correctly',
    reason: "kube-proxy masquerades the node's connection with the tunnel's address; passes without encapsulation",
  },
  { part: 'pull an image from a registry', reason: 'needs the registry that the image agnhost has upstream' },
  { part: 'PerformanceDNS', reason: 'makes 10,000 Services' },
  { part: '\\[Disruptive\\]', reason: 'needs ssh to the nodes' },
];

/**
 * `focus` and `skip` are patterns of names; `processes` run specs at the same time, except [Serial] ones. `run`: instead of
 * Kubernetes' tests.
 */
const GROUPS = {
  conformance: {
    focus: [
      '\\[sig-network\\].*\\[Conformance\\]',
      'validates that there is no conflict between pods with same hostPort but different hostIP and protocol',
    ],
    skip: [],
    processes: 5,
    minutes: 25,
  },
  rest: {
    focus: ['\\[sig-network\\]'],
    skip: ['\\[Conformance\\]', 'NetworkPolicy', 'Netpol', '\\[Serial\\]', '\\[Slow\\]'],
    processes: 6,
    minutes: 30,
  },
  netpol: { focus: ['\\[sig-network\\] Netpol'], skip: [], processes: 6, minutes: 30 },
  serial: {
    focus: ['\\[sig-network\\].*\\[Serial\\]', 'SchedulerPredicates validates that there .* same hostPort'],
    skip: [],
    processes: 1,
    minutes: 30,
  },
  cnp: { focus: [], skip: [], run: runCnp },
};

export const E2E_GROUPS = Object.keys(GROUPS);

const MASQUERADE = `table inet api_server {
  chain postrouting {
    type nat hook postrouting priority srcnat
    ip saddr ${CONTROL_PLANE} ip daddr ${PODS.ipv4} masquerade
    ip6 saddr ${CONTROL_PLANE_IPV6} ip6 daddr ${PODS.ipv6} masquerade
  }
}`;

const ZONE = 'topology.kubernetes.io/zone';
/** States of specs that did not run. */
const SKIPPED = ['skipped', 'pending'];
const REPORT = 'report.json';
const NANOSECONDS_PER_SECOND = 1e9;

/**
 * The API server proxies to pods, and has no Podwire: it reaches them through a node while `action` runs. The node
 * masquerades, so that replies return through it; otherwise kube-proxy in iptables mode drops packets of unknown flows.
 */
async function withRoutesToPods({ nodes: [node] }, action) {
  for (const family of ['ipv4', 'ipv6']) {
    must('ip', [family === 'ipv6' ? '-6' : '-4', 'route', 'replace', PODS[family], 'via', node[family]]);
  }
  node.machine.run('nft', [MASQUERADE]);
  try {
    return await action();
  } finally {
    node.machine.run('nft', ['delete table inet api_server']);
  }
}

function argumentsOf({ focus, skip, processes, minutes }, { cluster, folder }) {
  const { controlPlane, programs, nodes, kubeProxy } = cluster;
  const ginkgo = [
    `--procs=${processes}`,
    `--timeout=${minutes}m`,
    '--no-color',
    '--poll-progress-after=0',
    `--focus=${focus.join('|')}`,
    `--skip=${[...skip, ...leftOutIn(kubeProxy).map(({ part }) => part)].join('|')}`,
    `--output-dir=${folder}`,
    `--json-report=${REPORT}`,
  ];
  const suite = [
    '--provider=skeleton',
    `--kubeconfig=${controlPlane.kubeconfig}`,
    `--kubectl-path=${join(programs.kubernetes, 'kubectl')}`,
    `--num-nodes=${nodes.length}`,
    '--node-os-distro=debian',
    '--dns-domain=cluster.local',
    '--disable-log-dump',
    '--dump-logs-on-failure=false',
    '--repo-root=/nonexistent',
    `--e2e-output-dir=${folder}`,
  ];
  return ['run', ...ginkgo, join(programs.e2e, 'e2e.test'), '--', ...suite];
}

/** @returns exit code, specs and the name of the log */
async function runGinkgo({ group, cluster, folder }) {
  const { programs } = cluster;
  const env = { PATH: `${programs.kubernetes}:/usr/sbin:/usr/bin:/sbin:/bin`, HOME: folder };
  const options = { log: join(folder, 'ginkgo.log'), env, cwd: folder };
  const args = argumentsOf(group, { cluster, folder });
  const code = await runLogged(join(programs.e2e, 'ginkgo'), args, options);
  return { code, specs: existsSync(join(folder, REPORT)) ? specsOf(folder) : [], log: 'ginkgo.log' };
}

/** Name, state, time and message of each spec, and of each setup of the suite. */
function specsOf(folder) {
  const suites = JSON.parse(readFileSync(join(folder, REPORT), 'utf8'));
  const reports = suites.flatMap(({ SpecReports }) => SpecReports ?? []);
  return reports.map((report) => ({
    name: [...(report.ContainerHierarchyTexts ?? []), report.LeafNodeText].filter(Boolean).join(' '),
    isSpec: report.LeafNodeType === 'It',
    state: report.State,
    took: `${(report.RunTime / NANOSECONDS_PER_SECOND).toFixed(0)} s`,
    message: report.Failure?.Message ?? '',
  }));
}

const leftOutIn = (kubeProxy) => CANNOT_RUN.filter(({ mode = kubeProxy }) => mode === kubeProxy);

const matches = (patterns, name) => patterns.some((pattern) => new RegExp(pattern).test(name));

/** Lines about specs of the group that are left out. */
function leftOut({ focus, skip }, specs, kubeProxy) {
  const ofGroup = specs.filter(({ name }) => matches(focus, name) && !matches(skip, name));
  return leftOutIn(kubeProxy).flatMap(({ part, reason }) => {
    const names = ofGroup.filter(({ name }) => matches([part], name));
    return names.length === 0 ? [] : [`left out: ${names.length} (${part}): ${reason}`];
  });
}

const oneLine = (text) =>
  text
    .trim()
    .split(/\s*\n\s*/)
    .slice(0, 8)
    .join(' ')
    .slice(0, 600);

/** Prints numbers and the skipped specs. @throws Error with a table of the failed specs */
function report(name, { group, specs, kubeProxy, took }) {
  // A spec that `--skip` left out has no message; one that skipped itself says why.
  const ran = specs.filter(({ isSpec, state, message }) => isSpec && (state !== 'skipped' || message !== ''));
  const skipped = ran.filter(({ state }) => SKIPPED.includes(state));
  const passed = ran.filter(({ state }) => state === 'passed');
  const failed = specs.filter(({ state }) => state !== 'passed' && !SKIPPED.includes(state));
  const counts = `${passed.length} passed, ${failed.length} failed, ${skipped.length} skipped`;
  const lines = [
    ...leftOut(group, specs, kubeProxy),
    ...skipped.map((spec) => `skipped: ${spec.name}: ${oneLine(spec.message)}`),
    `${name}: ${ran.length} specs, ${counts}, ${took}`,
  ];
  process.stdout.write(`${lines.join('\n')}\n`);
  if (failed.length > 0) {
    const texts = failed.map((spec) => `${spec.state} after ${spec.took}: ${spec.name}\n    ${oneLine(spec.message)}`);
    throw new Error(texts.join('\n'));
  }
  if (passed.length === 0) throw new Error(`${name}: no spec ran; change the patterns`);
}

/** Runs a group of the tests. @throws Error with a table of the failed specs */
async function runGroup(name, { cluster, only }) {
  const group = only === undefined ? GROUPS[name] : { ...GROUPS[name], focus: [only] };
  const folder = join(cluster.controlPlane.logs, `e2e-${name}`);
  mkdirSync(folder, { recursive: true });
  for (const node of cluster.nodes) {
    await cluster.api.patch('Node', undefined, node.name, { metadata: { labels: { [ZONE]: node.name } } });
  }
  const startMs = Date.now();
  const { run = runGinkgo } = group;
  const tests = () => run({ group, cluster, folder, only });
  const { code, specs, log } = await withRoutesToPods(cluster, () => withCoreDns(cluster, tests));
  const took = `${((Date.now() - startMs) / 1000).toFixed(0)} s`;
  const failure = new Error(`${name}: exit code ${code}; read e2e-${name}/${log}`);
  if (specs.length === 0) throw failure;
  report(name, { group, specs, kubeProxy: cluster.kubeProxy, took });
  if (code !== 0) throw failure;
}

/** The scenarios of a run of some groups. `only` selects specs instead of the groups' patterns. */
export function e2eScenarios(names, only) {
  return names.map((name) => ({
    name: `Kubernetes' own tests: ${name}`,
    run: ({ cluster }) => runGroup(name, { cluster, only }),
  }));
}
