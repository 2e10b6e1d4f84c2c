import { NodeContact, type NodeState } from '@podwire/proto/podwire/ipam/v1/cluster';
import {
  ProbeServiceService,
  type AddProbePodResponse,
  type Counter,
  type ProbeResult,
  type TracePacketsResponse,
} from '@podwire/proto/podwire/dataplane/v1/probe';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal, untilAborted } from '@podwire/shared/failure/signal';
import { familyOf, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Context } from '../../clients/services.js';
import { ADDRESS, oneOf, text, type Form } from '../../command-line/forms.js';
import { flag, option, repeatedOption, type Input, type Verb } from '../../command-line/verb.js';
import { DONE, PROBLEM_FOUND, sentence, type Report, type Section } from '../../output/report.js';
import { listPools } from '../../resources/ippool.js';
import { listNodeStates } from '../../resources/node.js';
import {
  NODE_TIMEOUT_MS,
  checkName,
  groupedBy,
  isPassed,
  plannedChecks,
  probeOf,
  testedNode,
  type Check,
  type CheckResult,
  type TestedNode,
  type TestOptions,
} from './checks.js';
import { breakingPoint, errorText, type BreakingPoint } from './diagnosis.js';
import { junitOf, type Case } from './junit.js';

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

interface Endpoint {
  readonly address: string;
  readonly port: number;
}

function endpointForm(): Form<Endpoint> {
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

const ANSWER_MS = 1000;

/** The contract's limit of one call. */
const MAX_PROBES = 512;

/** Broken paths that are traced; later ones are listed with their error. */
const MAX_TRACED = 6;
const TRACE_MS = 3000;
const TRACE_PROBES_MS = [1000, 500] as const;

/** Host ports of the test: above the ports that the kernel gives to connections. */
const HOST_PORTS = { first: 61_000, count: 3000 } as const;

export const connectivityTest: Verb = {
  name: 'connectivity test',
  about: 'whether packets pass between pods, nodes, Services and hosts outside, and where a broken path ends',
  details:
    'Makes a pod on each node through its CNI server, without an image and without the API server, so that it works in every\n' +
    'cluster alike. Sends pings, packets of the MTU, and TCP, in IPv4 and IPv6, and traces paths that are broken through the\n' +
    'nftables of their nodes. Pods of a test that was killed are deleted within a minute.\n' +
    'Exit code 4: a path is broken. 5: podwire-ipam did not answer.',
  options: [NODE, FAMILY, SERVICE, OUTSIDE, JUNIT],
  flags: [CLEANUP],
  examples: ['connectivity test', 'connectivity test --node node-1,node-2 --outside 192.0.2.7 --junit report.xml'],
  run: async (input, context) => {
    context.restartTimeout(TIMEOUT_MS);
    const states = selected(await listNodeStates(context.ipam), input);
    if (input.has(CLEANUP)) return cleanUp(states, context);
    const { random } = context.process;
    const run = Math.floor(random() * 2 ** 32).toString(16);
    const signal = context.process.stopSignal();
    const test = new ConnectivityTest(context, run, signal);
    try {
      return await untilAborted(test.run(states, await optionsOf(input, context)), signal).then((outcome) =>
        reportOf(outcome, input),
      );
    } finally {
      context.restartTimeout(CLEANUP_TIMEOUT_MS);
      await test.end();
    }
  },
};

function selected(states: readonly NodeState[], input: Input): readonly NodeState[] {
  const names = input.all(NODE).flatMap((list) => list.split(','));
  const unknown = names.find((name) => !states.some((state) => state.name === name));
  if (unknown !== undefined)
    throw new Failure('NODE_NOT_FOUND', `there is no node "${unknown}"; see podwirectl status`);
  const chosen = states.filter(({ name }) => names.length === 0 || names.includes(name));
  if (chosen.length === 0)
    throw new Failure('NODE_NOT_FOUND', 'no node is registered; start podwire-node on each node');
  return chosen;
}

async function optionsOf(input: Input, { ipam, env, process }: Context): Promise<TestOptions> {
  const family = input.get(FAMILY);
  const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port = '443' } = env;
  const found = host === undefined ? [] : [{ address: host, port: Number(port) }];
  const given = input.all(SERVICE);
  const pools = (await listPools(ipam)).filter(({ disabled }) => !disabled);
  const families = family
    ? [family]
    : ([4, 6] as const).filter((each) => pools.some(({ cidr }) => familyOf(cidr.replace(/\/.*/, '')) === each));
  if (families.length === 0)
    throw new Failure('NO_POOL', 'no pool allocates addresses; run podwirectl create ippool NAME cidr=RANGE');
  return {
    families,
    services: given.length > 0 ? given : found,
    outside: input.all(OUTSIDE),
    hostPort: HOST_PORTS.first + Math.floor(process.random() * HOST_PORTS.count),
  };
}

/** A path that is broken, with the place where it ends. */
interface Break extends CheckResult {
  readonly point: BreakingPoint;
  readonly counters: readonly (Counter & { readonly node: string })[];
}

interface Outcome {
  readonly nodes: readonly TestedNode[];
  readonly results: readonly CheckResult[];
  readonly breaks: readonly Break[];
  /** Untested paths, with the reasons. */
  readonly skipped: readonly (readonly [name: string, reason: string])[];
}

type Known = Pick<Outcome, 'nodes' | 'results'>;

/** One test, whose pods have its name. */
class ConnectivityTest {
  readonly #context: Context;
  readonly #run: string;
  readonly #signal: AbortSignal;
  /** Nodes that were asked for a pod, with the answers. */
  readonly #asked = new Map<string, Promise<unknown>>();
  /** Nodes that did not answer a call, with the reason. */
  readonly #silent = new Map<string, string>();

  constructor(context: Context, run: string, signal: AbortSignal) {
    this.#context = context;
    this.#run = run;
    this.#signal = signal;
  }

  async run(states: readonly NodeState[], options: TestOptions): Promise<Outcome> {
    const nodes = await Promise.all(states.map((state) => this.#prepare(state, options, states.length === 1)));
    const checks = plannedChecks(nodes, options);
    const results = await this.#settle(checks);
    const reached = nodes.map((node) => ({
      ...node,
      fault: node.fault === '' ? (this.#silent.get(node.name) ?? '') : node.fault,
    }));
    const breaks = await this.#diagnoseAll({ nodes: reached, results });
    return { nodes: reached, results, breaks, skipped: skippedOf(reached, options) };
  }

  /** Deletes the pods, also of ADDs that are in flight. Failures are notes: the nodes delete the pods later. */
  async end(): Promise<void> {
    await Promise.allSettled(this.#asked.values());
    const deletions = [...this.#asked.keys()].map(async (name) => {
      const node = await this.#context.onNode(name, NODE_TIMEOUT_MS);
      await node.call(ProbeServiceService.deleteProbePods, { run: this.#run });
    });
    for (const outcome of await Promise.allSettled(deletions))
      if (outcome.status === 'rejected')
        this.#context.note(`pods of the test stay for a minute: ${String(outcome.reason)}`);
  }

  async #prepare(state: NodeState, { families, hostPort }: TestOptions, isSingle: boolean): Promise<TestedNode> {
    const node = testedNode(state);
    const { name } = node;
    if (node.fault !== '') return node;
    try {
      const first = await this.#addPod(name, [...families], hostPort);
      // One node alone has paths between its own pods only.
      const pods = isSingle ? [first, await this.#addPod(name, [...families], 0)] : [first];
      return { ...node, pods, fault: '' };
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      return { ...node, pods: [], fault: `no pod can be made on ${name}: ${error.message}` };
    }
  }

  async #addPod(name: string, families: number[], hostPort: number): Promise<AddProbePodResponse> {
    const node = await this.#context.onNode(name, NODE_TIMEOUT_MS);
    if (this.#signal.aborted) throw failureOfSignal(this.#signal);
    const added = node.call(ProbeServiceService.addProbePod, { run: this.#run, families, hostPort });
    this.#asked.set(name, added);
    return added;
  }

  /** Runs the checks, and the failed ones again while routes may still come. */
  async #settle(checks: readonly Check[]): Promise<readonly CheckResult[]> {
    let results = await this.#check(checks);
    for (let round = 1; round < SETTLE_ROUNDS && results.some((each) => !isPassed(each)); round++) {
      await this.#context.clock.sleep(SETTLE_PAUSE_MS, this.#signal);
      if (this.#signal.aborted) throw failureOfSignal(this.#signal);
      const again = await this.#check(results.filter((each) => !isPassed(each)).map(({ check }) => check));
      const byCheck = new Map(again.map((each) => [each.check, each]));
      results = results.map((each) => byCheck.get(each.check) ?? each);
    }
    return results;
  }

  /** One call for each source. */
  async #check(checks: readonly Check[]): Promise<readonly CheckResult[]> {
    const bySource = groupedBy(checks, ({ node, containerId }) => `${node} ${containerId}`);
    const answers = bySource.map(async (group): Promise<readonly CheckResult[]> => {
      const [{ node, containerId }] = group;
      const results = await this.#probe(node, containerId, group);
      return group.map((check, at) => ({ check, result: results[at] ?? NO_RESULT }));
    });
    const results = new Map((await Promise.all(answers)).flat().map((each) => [each.check, each]));
    return checks.map((check) => results.get(check) ?? { check, result: NO_RESULT });
  }

  async #probe(name: string, containerId: string, checks: readonly Check[]): Promise<readonly ProbeResult[]> {
    if (this.#silent.has(name)) return checks.map(() => NO_RESULT);
    const node = await this.#context.onNode(name, NODE_TIMEOUT_MS);
    const results: ProbeResult[] = [];
    try {
      for (let at = 0; at < checks.length; at += MAX_PROBES) {
        const probes = checks.slice(at, at + MAX_PROBES).map(probeOf);
        const answer = await node.call(ProbeServiceService.runProbes, { containerId, probes, waitMs: ANSWER_MS });
        results.push(...answer.results);
      }
      return results;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#silent.set(name, `podwire-node of ${name} does not answer: ${error.message}`);
      return checks.map(() => NO_RESULT);
    }
  }

  /** One diagnosis for the broken paths between two nodes in a family, as they end at the same place. */
  async #diagnoseAll(known: Known): Promise<readonly Break[]> {
    const broken = known.results.filter((each) => !isPassed(each));
    const groups = groupedBy(
      broken,
      ({ check }) => `${check.node} ${check.target.node ?? check.target.name} ${check.family}`,
    );
    const breaks: Break[] = [];
    let tracedCount = 0;
    for (const group of groups) {
      const [first] = group;
      const shown =
        group.find(({ check }) => check.kind === 'pod-pod') ??
        group.find(({ check }) => check.kind !== 'pod-host-port') ??
        first;
      const { node, target } = shown.check;
      const likely =
        tracedCount < MAX_TRACED ? undefined : breaks.find(({ point }) => [node, target.node].includes(point.node));
      const { point, counters } = likely ?? (await this.#diagnose(shown, known, tracedCount < MAX_TRACED));
      if (!likely) tracedCount++;
      breaks.push(...group.map((each) => ({ ...each, point, counters: each === shown ? counters : [] })));
    }
    return breaks;
  }

  async #diagnose(
    broken: CheckResult,
    { nodes, results }: Known,
    isTraced: boolean,
  ): Promise<Pick<Break, 'point' | 'counters'>> {
    const { check } = broken;
    const named = (name: string | undefined) => nodes.find((each) => each.name === name);
    const source = named(check.node);
    if (!source) throw new Error(`check of unknown node ${check.node}`);
    const target = named(check.target.node);
    const isToPod = check.target.kind === 'pod';
    const isBetweenNodes = isToPod && target !== undefined && target !== source;
    // The address of a node that sends itself may be that of a tunnel; and a probe pod has no other packets.
    const ends = {
      sourceAddress: check.address,
      destinationAddress: check.target.address,
      durationMs: TRACE_MS,
      anySource: isToPod,
    };
    const isCallable = isTraced && source.fault === '' && (target?.fault ?? '') === '';
    const [sourceTrace, otherTrace] = isCallable
      ? await Promise.all([
          this.#trace(source.name, ends),
          isBetweenNodes ? this.#trace(target.name, ends) : undefined,
          this.#sendWhileTraced(check),
        ])
      : [];
    const targetTrace = isBetweenNodes ? otherTrace : sourceTrace;
    const point = breakingPoint({ broken, all: results, source, target, sourceTrace, targetTrace });
    const counters = [
      ...(sourceTrace?.counters ?? []).map((counter) => ({ ...counter, node: source.name })),
      ...(otherTrace?.counters ?? []).map((counter) => ({ ...counter, node: target?.name ?? '' })),
    ];
    return { point, counters };
  }

  async #trace(
    name: string,
    request: Parameters<typeof ProbeServiceService.tracePackets.requestSerialize>[0],
  ): Promise<TracePacketsResponse | undefined> {
    try {
      return await (await this.#context.onNode(name, NODE_TIMEOUT_MS)).call(ProbeServiceService.tracePackets, request);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#context.note(`${name}: no trace: ${error.message}`);
      return undefined;
    }
  }

  async #sendWhileTraced(check: Check): Promise<void> {
    for (const pauseMs of TRACE_PROBES_MS) {
      await this.#context.clock.sleep(pauseMs, this.#signal);
      await this.#probe(check.node, check.containerId, [check]);
    }
  }
}

const NO_RESULT: ProbeResult = { timeUs: 0, error: 'ETIMEDOUT', message: 'no answer', reporter: '', mtuBytes: 0 };

function skippedOf(nodes: readonly TestedNode[], { families, services, outside }: TestOptions): Outcome['skipped'] {
  const untested = ([4, 6] as const).filter((family) => !families.includes(family));
  const unregistered = nodes.filter(({ addresses, fault }) => addresses.length === 0 && fault === '');
  return [
    ...unregistered.map(
      ({ name }) => [`paths to ${name}`, 'its address is not registered yet; repeat the test'] as const,
    ),
    ...untested.map(
      (family) => [`IPv${family}`, 'no pool of the family allocates addresses, or --family excludes it'] as const,
    ),
    ...(services.length === 0 ? [['service', 'no Service is known; set --service ADDRESS:PORT'] as const] : []),
    ...(outside.length === 0 ? [['outside', 'no host is known; set --outside ADDRESS'] as const] : []),
  ];
}

async function cleanUp(states: readonly NodeState[], { onNode }: Context): Promise<Report> {
  const connected = states.filter(({ contact }) => contact === NodeContact.NODE_CONTACT_CONNECTED);
  const counts = await Promise.all(
    connected.map(
      async ({ name }) =>
        (await (await onNode(name, NODE_TIMEOUT_MS)).call(ProbeServiceService.deleteProbePods, { run: '' })).count,
    ),
  );
  const deleted = counts.reduce((sum, count) => sum + count, 0);
  const nodes = `${formatCount(connected.length, 'node')} of ${states.length}`;
  return {
    sections: [sentence(`deleted ${formatCount(deleted, 'probe pod')} on ${nodes}`)],
    data: () => ({ deleted }),
  };
}

async function reportOf(outcome: Outcome, input: Input): Promise<Report> {
  const { nodes, results, breaks, skipped } = outcome;
  const file = input.get(JUNIT);
  if (file !== undefined) {
    const { writeText } = await import('../../clients/terminal.js');
    await writeText(file, junitOf('podwirectl connectivity test', casesOf(outcome)));
  }
  const faulty = nodes.filter(({ fault }) => fault !== '');
  const conditions = nodes.flatMap(({ name, conditions: own }) => own.map((condition) => `${name}: ${condition}`));
  return {
    sections: [
      matrix(results),
      ...faulty.map(({ name, fault }) => sentence(`${name}: ${fault}`)),
      ...groupedBy(breaks, ({ point }) => `${point.place} ${point.node} ${point.detail}`).map(breakSection),
      ...(breaks.length > 0 ? conditions.map((condition) => sentence(`condition of ${condition}`)) : []),
      ...skipped.map(([name, reason]) => sentence(`skipped: ${name}: ${reason}`)),
      sentence(summary(outcome)),
    ],
    data: () => ({
      passed: breaks.length === 0 && faulty.length === 0,
      nodes: nodes.map(({ name, fault }) => ({ name, fault })),
      checks: results.map((each) => {
        const { check, result } = each;
        const place = breaks.find((broken) => broken.check === check);
        return {
          check: check.kind,
          family: check.family,
          path: checkName(check),
          address: check.target.address,
          passed: isPassed(each),
          ms: result.timeUs / 1000,
          error: isPassed(each) ? null : errorText(each),
          ends: place ? { ...place.point } : null,
          counters: (place?.counters ?? []).map(({ node, name, before, after }) => ({
            node,
            name,
            before: String(before),
            after: String(after),
          })),
        };
      }),
      skipped: skipped.map(([name, reason]) => ({ name, reason })),
    }),
    exitCode: breaks.length === 0 && faulty.length === 0 ? DONE : PROBLEM_FOUND,
  };
}

function summary({ results, breaks, nodes, skipped }: Outcome): string {
  const counts = `${results.length - breaks.length} of ${formatCount(results.length, 'path')} passed`;
  return `${counts} between ${formatCount(nodes.length, 'node')}, ${breaks.length} broken, ${skipped.length} skipped`;
}

/** A row for each kind of check and family. */
function matrix(results: readonly CheckResult[]): Section {
  const groups = groupedBy(results, ({ check }) => `${check.kind} IPv${check.family}`);
  const rows = groups.map((group) => {
    const [{ check }] = group;
    const passed = group.filter(isPassed);
    const slowestMs = Math.max(0, ...passed.map(({ result }) => result.timeUs)) / 1000;
    const state = passed.length === group.length ? 'passed' : 'broken';
    return [check.kind, `IPv${check.family}`, state, `${passed.length}/${group.length}`, slowestMs.toFixed(1)];
  });
  return {
    kind: 'table',
    columns: ['PATHS', 'FAMILY', 'RESULT', { right: 'PASSED' }, { right: 'SLOWEST MS' }],
    rows,
    none: 'paths: none',
  };
}

/** Most broken paths that are listed of one place. */
const MAX_LISTED = 12;

/** The broken paths that end at one place. */
function breakSection(group: readonly [Break, ...Break[]]): Section {
  const [{ point, counters }] = group;
  const paths = group.map((each) => {
    const { check } = each;
    return `  ${check.kind} IPv${check.family}: ${checkName(check)} (${check.target.address}): ${errorText(each)}`;
  });
  const further = paths.length > MAX_LISTED ? [`  and ${formatCount(paths.length - MAX_LISTED, 'further path')}`] : [];
  const changes = counters.map(({ node, name, before, after }) => `  counter: ${node} ${name} ${before} → ${after}`);
  const head = `${formatCount(group.length, 'path')} broken at ${point.place} of ${point.node}: ${point.detail}`;
  return { kind: 'text', text: [head, ...paths.slice(0, MAX_LISTED), ...further, ...changes].join('\n') };
}

function casesOf({ nodes, results, breaks, skipped }: Outcome): readonly Case[] {
  const passed = { failure: '', skipped: '' };
  return [
    ...nodes.map(({ name, fault }) => ({ ...passed, group: 'node', name, seconds: 0, failure: fault })),
    ...results.map(({ check, result }) => {
      const point = breaks.find((broken) => broken.check === check)?.point;
      const failure = point ? `ends at ${point.place} of ${point.node}: ${point.detail}` : '';
      const name = `${checkName(check)} ${check.target.address}`;
      return {
        ...passed,
        group: `${check.kind}.IPv${check.family}`,
        name,
        seconds: result.timeUs / 1_000_000,
        failure,
      };
    }),
    ...skipped.map(([name, reason]) => ({ ...passed, group: 'skipped', name, seconds: 0, skipped: reason })),
  ];
}
