import { NodeContact, type NodeState } from '@podwire/proto/podwire/ipam/v1/cluster';
import { ProbeServiceService, type ProbeResult } from '@podwire/proto/podwire/dataplane/v1/probe';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal, untilAborted } from '@podwire/shared/failure/signal';
import { familyOf, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Context } from '../../clients/services.js';
import { ADDRESS, oneOf, text, type Form } from '../../command-line/forms.js';
import { flag, option, repeatedOption, type Input, type Verb } from '../../command-line/verb.js';
import { sentence, type Report } from '../../output/report.js';
import { listPools } from '../../resources/ippool.js';
import { listNodeStates } from '../../resources/node.js';
import { groupedBy, isPassed, plannedChecks, testedNode } from './checks.js';
import type { Check, CheckResult, TestedNode, TestOptions } from './checks.js';
import { breakingPoint } from './diagnosis.js';
import { attempt, callNode, followCheck, NO_RESULT, sendChecks } from './probe-calls.js';
import { junitOf, reportOf, type Break, type Outcome } from './test-report.js';

const NODE = repeatedOption('--node', text('NAME'), 'test this node; also as a list with commas (all nodes)');
const FAMILY = option(
  '--family',
  oneOf<Family>({ 4: 4, 6: 6 }),
  'addresses of this family only (the families of the pools)',
);
const SERVICE = repeatedOption('--service', endpointForm(), 'a Service to connect to (KUBERNETES_SERVICE_HOST)');
const OUTSIDE = repeatedOption('--outside', ADDRESS, 'a host outside the cluster that answers pings (not tested)');
const JUNIT = option('--junit', text('FILE'), 'also write a report in JUnit’s XML form');
const CLEANUP = flag('--cleanup', 'only delete the pods of earlier tests on the nodes');

function endpointForm(): Form<TestOptions['services'][number]> {
  return {
    placeholder: 'ADDRESS:PORT',
    read: (input) => {
      const [, host = '', port = ''] = /^\[?(.+?)\]?:(\d{1,5})$/.exec(input) ?? [];
      const address = parseAddress(host);
      const isPort = Number(port) > 0 && Number(port) < 65_536;
      if (!address || !isPort)
        return { ok: false, fault: 'is not ADDRESS:PORT, such as 10.96.0.1:443 or [fd96::1]:443' };
      return { ok: true, value: { address: formatAddress(address), port: Number(port) } };
    },
  };
}

const TIMEOUT_MS = 300_000;

/** Time that the deletion of the pods gets after the test, also after its timeout. */
const CLEANUP_TIMEOUT_MS = 60_000;

/** Routes to a block that a pod is the first one of are on other nodes some seconds later. */
const SETTLE_ROUNDS = 10;
const SETTLE_PAUSE_MS = 1000;

/** Broken paths that are traced; later ones are listed with their error. */
const MAX_TRACED = 6;

/** Host ports of the test: above the ports that the kernel gives to connections. */
const HOST_PORTS = { first: 61_000, count: 3000 } as const;

export const connectivityTest: Verb = {
  name: 'connectivity test',
  about: 'whether packets pass between pods, nodes, Services and hosts outside, and where a broken path ends',
  details:
    'Makes a pod on each node through its CNI server, without an image and without the API server, so that it works in every\n' +
    'cluster alike. Sends pings, packets of the MTU, TCP and UDP, in IPv4 and IPv6, and traces paths that are broken through the\n' +
    'nftables of their nodes. Pods of a test that was killed are deleted within a minute.\n' +
    'Exit code 4: a path is broken. 5: podwire-ipam did not answer.',
  options: [NODE, FAMILY, SERVICE, OUTSIDE, JUNIT],
  flags: [CLEANUP],
  examples: ['connectivity test', 'connectivity test --node node-1,node-2 --outside 192.0.2.7 --junit report.xml'],
  run: async (input, context) => {
    context.restartTimeout(TIMEOUT_MS);
    const nodes = chosenNodes(await listNodeStates(context.ipam), input);
    if (input.has(CLEANUP)) return cleanUp(nodes, context);
    const options = await optionsOf(input, context);
    const { writeText } = await import('../../clients/terminal.js');
    const file = input.get(JUNIT);
    // A file that cannot be written is reported before minutes of tests.
    if (file !== undefined) await writeText(file, '');
    const outcome = await new ConnectivityTest(context).run(nodes, options);
    if (file !== undefined) await writeText(file, junitOf(outcome));
    return reportOf(outcome);
  },
};

function chosenNodes(nodes: readonly NodeState[], input: Input): readonly NodeState[] {
  const names = input.all(NODE).flatMap((list) => list.split(','));
  const unknown = names.find((name) => !nodes.some((node) => node.name === name));
  if (unknown !== undefined)
    throw new Failure('NODE_NOT_FOUND', `there is no node "${unknown}"; see podwirectl status`);
  if (nodes.length === 0) throw new Failure('NODE_NOT_FOUND', 'no node is registered; start podwire-node on each node');
  return names.length === 0 ? nodes : nodes.filter(({ name }) => names.includes(name));
}

async function optionsOf(input: Input, { ipam, env, process }: Context): Promise<TestOptions> {
  const family = input.get(FAMILY);
  const pools = (await listPools(ipam)).filter(({ disabled }) => !disabled);
  const inUse = ([4, 6] as const).filter((each) =>
    pools.some(({ cidr }) => familyOf(cidr.replace(/\/.*/, '')) === each),
  );
  const families = family ? [family] : inUse;
  if (families.length === 0)
    throw new Failure('NO_POOL', 'no pool allocates addresses; run podwirectl create ippool NAME cidr=RANGE');
  const { KUBERNETES_SERVICE_HOST: address, KUBERNETES_SERVICE_PORT: port = '443' } = env;
  const found = address === undefined ? [] : [{ address, port: Number(port) }];
  const given = input.all(SERVICE);
  return {
    families,
    services: given.length > 0 ? given : found,
    outside: input.all(OUTSIDE),
    hostPort: HOST_PORTS.first + Math.floor(process.random() * HOST_PORTS.count),
  };
}

async function cleanUp(nodes: readonly NodeState[], context: Context): Promise<Report> {
  const connected = nodes.filter(({ contact }) => contact === NodeContact.NODE_CONTACT_CONNECTED);
  const answers = await Promise.all(
    connected.map(({ name }) => callNode(context, name, ProbeServiceService.deleteProbePods, { run: '' })),
  );
  const deleted = answers.reduce((sum, { count }) => sum + count, 0);
  const where = `${formatCount(connected.length, 'node')} of ${nodes.length}`;
  return {
    sections: [sentence(`deleted ${formatCount(deleted, 'probe pod')} on ${where}`)],
    data: () => ({ deleted }),
  };
}

/** One test: it adds pods, sends the packets, diagnoses broken paths, and deletes the pods. */
class ConnectivityTest {
  readonly #context: Context;
  readonly #signal: AbortSignal;
  /** Identifies the pods of the test. */
  readonly #run: string;
  /** Nodes that were asked for a pod, with the answers. */
  readonly #asked = new Map<string, Promise<unknown>>();
  /** Nodes that did not answer a call, with the reason. */
  readonly #silent = new Map<string, string>();

  constructor(context: Context) {
    this.#context = context;
    this.#signal = context.process.stopSignal();
    this.#run = Math.floor(context.process.random() * 2 ** 32).toString(16);
  }

  async run(states: readonly NodeState[], options: TestOptions): Promise<Outcome> {
    try {
      return await untilAborted(this.#outcome(states, options), this.#signal);
    } finally {
      this.#context.restartTimeout(CLEANUP_TIMEOUT_MS);
      await this.#deletePods();
    }
  }

  async #outcome(states: readonly NodeState[], options: TestOptions): Promise<Outcome> {
    const added = await Promise.all(states.map((state) => this.#addPods(state, options, states.length === 1)));
    const answers = await Promise.all(this.#asked.values());
    const [denial, ...further] = answers.filter(isDenied);
    // One node may be at fault itself; all together are refused because of the caller.
    if (denial && answers.length === further.length + 1) throw denial;
    const results = await this.#settledResults(plannedChecks(added, options));
    const nodes = added.map((node) => ({ ...node, fault: this.#silent.get(node.name) ?? node.fault }));
    const breaks = await this.#diagnoseAll(nodes, results);
    return { nodes, results, breaks, skipped: skippedOf(nodes, options) };
  }

  async #addPods(state: NodeState, { families, hostPort }: TestOptions, isSingle: boolean): Promise<TestedNode> {
    const node = testedNode(state);
    const { name } = node;
    if (node.fault !== '') return node;
    const add = (port: number) =>
      callNode(this.#context, name, ProbeServiceService.addProbePod, {
        run: this.#run,
        families: [...families],
        hostPort: port,
      });
    const adding = attempt(async () => {
      const first = await add(hostPort);
      if (!isSingle || this.#signal.aborted) return [first];
      // One node alone has paths between its own pods only.
      return [first, await add(0)];
    });
    this.#asked.set(name, adding);
    const pods = await adding;
    return pods instanceof Failure
      ? { ...node, fault: `no pod can be made on ${name}: ${pods.message}` }
      : { ...node, pods };
  }

  /** Runs the checks, and the failed ones again while routes may still come. */
  async #settledResults(checks: readonly Check[]): Promise<readonly CheckResult[]> {
    const results = new Map<Check, ProbeResult>();
    let failed = checks;
    for (let round = 0; round < SETTLE_ROUNDS && failed.length > 0; round++) {
      if (round > 0) await this.#context.clock.sleep(SETTLE_PAUSE_MS, this.#signal);
      if (this.#signal.aborted) throw failureOfSignal(this.#signal);
      const bySource = groupedBy(failed, ({ node, containerId }) => `${node} ${containerId}`);
      const answers = (await Promise.all(bySource.map((group) => this.#send(group)))).flat();
      for (const { check, result } of answers) results.set(check, result);
      failed = answers.filter((each) => !isPassed(each)).map(({ check }) => check);
    }
    return checks.map((check) => ({ check, result: results.get(check) ?? NO_RESULT }));
  }

  async #send(checks: readonly [Check, ...Check[]]): Promise<readonly CheckResult[]> {
    const [{ node }] = checks;
    if (!this.#silent.has(node)) {
      const results = await attempt(() => sendChecks(checks, this.#context));
      if (!(results instanceof Failure)) return results;
      this.#silent.set(node, `podwire-node of ${node} does not answer: ${results.message}`);
    }
    return checks.map((check) => ({ check, result: NO_RESULT }));
  }

  /** One diagnosis for the broken paths between two nodes in a family, as they end at the same place. */
  async #diagnoseAll(nodes: readonly TestedNode[], results: readonly CheckResult[]) {
    const broken = results.filter((each) => !isPassed(each));
    const pathOf = ({ check: { node, target, family } }: CheckResult) =>
      `${node} ${target.node ?? target.kind} ${family}`;
    const breaks = new Map<Check, Break>();
    let tracedCount = 0;
    for (const group of groupedBy(broken, pathOf)) {
      const shown =
        group.find(({ check }) => check.kind === 'pod-pod') ??
        group.find(({ check }) => check.kind !== 'pod-host-port') ??
        group[0];
      const { node, target } = shown.check;
      const isTraced = tracedCount < MAX_TRACED;
      const likely = [...breaks.values()].find(({ point }) => [node, target.node].includes(point.node));
      const found = (isTraced ? undefined : likely) ?? (await this.#diagnose(shown, nodes, { results, isTraced }));
      if (isTraced) tracedCount++;
      for (const { check } of group)
        breaks.set(check, { ...found, counters: check === shown.check ? found.counters : [] });
    }
    return breaks;
  }

  async #diagnose(
    broken: CheckResult,
    nodes: readonly TestedNode[],
    { results, isTraced }: { readonly results: readonly CheckResult[]; readonly isTraced: boolean },
  ): Promise<Break> {
    const { check } = broken;
    const source = nodes.find(({ name }) => name === check.node);
    if (!source) throw new Error(`check of unknown node ${check.node}`);
    const target = nodes.find(({ name }) => name === check.target.node);
    const isCallable = source.fault === '' && (target?.fault ?? '') === '';
    // A probe pod has only packets of the test.
    const options = { anySource: check.target.kind === 'pod', signal: this.#signal };
    const traces = isTraced && isCallable ? await followCheck(check, this.#context, options) : { counters: [] };
    return {
      point: breakingPoint({ broken, all: results, source, target, ...traces }),
      counters: traces.counters,
    };
  }

  /** Deletes the pods, also of ADDs that are in flight. Failures are notes: the nodes delete the pods later. */
  async #deletePods(): Promise<void> {
    await Promise.allSettled(this.#asked.values());
    const deletions = [...this.#asked.keys()].map(async (name) => {
      const answer = await attempt(() =>
        callNode(this.#context, name, ProbeServiceService.deleteProbePods, { run: this.#run }),
      );
      if (answer instanceof Failure && !isDenied(answer))
        this.#context.note(`pods of the test stay for a minute: ${answer.message}`);
    });
    await Promise.all(deletions);
  }
}

function isDenied(answer: unknown): answer is Failure & { readonly code: 'ACCESS_DENIED' } {
  return answer instanceof Failure && answer.code === 'ACCESS_DENIED';
}

function skippedOf(nodes: readonly TestedNode[], { families, services, outside }: TestOptions): Outcome['skipped'] {
  const unregistered = nodes.filter(({ addresses, fault }) => addresses.length === 0 && fault === '');
  const untested = ([4, 6] as const).filter((family) => !families.includes(family));
  return [
    ...unregistered.map(({ name }) => ({
      name: `paths to ${name}`,
      reason: 'its address is not registered yet; repeat the test',
    })),
    ...untested.map((family) => ({
      name: `IPv${family}`,
      reason: 'no pool of the family allocates addresses, or --family excludes it',
    })),
    ...(services.length > 0 ? [] : [{ name: 'service', reason: 'no Service is known; set --service ADDRESS:PORT' }]),
    ...(outside.length > 0 ? [] : [{ name: 'outside', reason: 'no host is known; set --outside ADDRESS' }]),
  ];
}
