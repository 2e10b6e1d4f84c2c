import type { TracePacketsResponse, TraceStep } from '@podwire/proto/podwire/dataplane/v1/probe';

import { endName, errorText, isPassed, type Check, type CheckResult, type TestedNode } from './checks.js';
import type { Traces } from './probe-calls.js';

/** Facts about a broken path. */
export interface BrokenPath extends Pick<Traces, 'sourceTrace' | 'targetTrace'> {
  readonly broken: CheckResult;
  readonly all: readonly CheckResult[];
  readonly source: TestedNode;
  /** The node of the target; undefined for services and hosts outside. */
  readonly target: TestedNode | undefined;
}

/** Where a path ends. */
export interface BreakingPoint {
  readonly place:
    'interface' | 'route' | 'tunnel' | 'firewall' | 'policy' | 'MTU' | 'network' | 'remote node' | 'unknown';
  readonly node: string;
  readonly detail: string;
}

function endAt(place: BreakingPoint['place'], node: string, detail: string): BreakingPoint {
  return { place, node, detail };
}

/** Tables of Podwire: drops of the last one are network policies. */
const OWN_TABLE = /^\w+ podwire/;
const POLICY_TABLE = 'inet podwire_policy';

/** Whether Podwire or BIRD made a route to another node. */
export function isRouteToNode(route: string): boolean {
  return / proto (87|12)$/.test(route) && !/^(blackhole|unreachable)/.test(route);
}

/** The first place of the path that explains the break: from the target's state to the source's interface, and on along the path. */
export function breakingPoint(path: BrokenPath): BreakingPoint {
  return (
    unreachableNode(path) ??
    tooLargePacket(path) ??
    dropIn(path.sourceTrace, path.source.name) ??
    dropIn(path.targetTrace, path.target?.name ?? '') ??
    missingStart(path) ??
    wrongRoute(path) ??
    betweenNodes(path) ??
    onTarget(path) ??
    endAt('unknown', path.source.name, `${errorText(path.broken)}; no packet was lost while the path was traced`)
  );
}

function unreachableNode({ source, target }: BrokenPath): BreakingPoint | undefined {
  const silent = [source, target].find((node) => node && node.fault !== '');
  return silent && endAt('remote node', silent.name, silent.fault);
}

function tooLargePacket(path: BrokenPath): BreakingPoint | undefined {
  const { broken, all, source, target, targetTrace } = path;
  const { check, result } = broken;
  const isShort = (other: Check): boolean =>
    other.packetBytes < check.packetBytes &&
    other.containerId === check.containerId &&
    other.target.address === check.target.address;
  if (!all.some((each) => isShort(each.check) && isPassed(each))) return undefined;
  const head = `packets of ${check.packetBytes} bytes are`;
  const remedy = 'while short ones pass; lower the MTU of pods, or raise it on the links between the nodes';
  if (result.error === 'EMSGSIZE') {
    const by = result.reporter === '' ? source.name : result.reporter;
    const limit = result.mtuBytes > 0 ? `, whose limit is ${result.mtuBytes}` : '';
    return endAt('MTU', source.name, `${head} refused by ${by}${limit}, ${remedy}`);
  }
  const dropped = targetTrace?.counters.find(({ name }) => /^(?!podw)\S+ receive (drops|errors)$/.test(name));
  if (target && dropped) return endAt('MTU', target.name, `${head} dropped (${dropped.name}), ${remedy}`);
  const suspect = losesAll(path, target?.name, source.name) ? (target?.name ?? '') : source.name;
  return endAt('MTU', suspect, `${head} lost without a message, ${remedy}`);
}

/** Whether the large packets of one end fail with every further node, and not the ones of the peer: its link is the small one. */
function losesAll({ broken, all }: BrokenPath, end: string | undefined, peer: string): boolean {
  const large = all.filter(({ check }) => check.kind === broken.check.kind && check.family === broken.check.family);
  const passes = (name: string | undefined, without: string | undefined): boolean =>
    large.some((each) => {
      const ends = [each.check.node, each.check.target.node];
      return isPassed(each) && ends.includes(name) && !ends.includes(without);
    });
  return end !== undefined && passes(peer, end) && !passes(end, peer);
}

/** A packet that nftables dropped. */
function dropIn(trace: TracePacketsResponse | undefined, node: string): BreakingPoint | undefined {
  const drop = trace?.steps.find(({ verdict }) => verdict === 'drop');
  if (!drop) return undefined;
  const { table, chain, kind, text } = drop;
  const rule = kind === 'policy' ? 'its policy' : `rule: ${text.replace(/counter packets \d+ bytes \d+ ?/, '')}`;
  const detail = `table ${table}, chain ${chain}, ${rule}`;
  if (table === POLICY_TABLE) return endAt('policy', node, detail);
  const owner = OWN_TABLE.test(table) ? 'Podwire’s own filter' : 'a rule of another program';
  return endAt('firewall', node, `${owner} drops the packet: ${detail}`);
}

/** Packets of one direction in a trace. */
export function packetsTo(trace: TracePacketsResponse | undefined, address: string): readonly TraceStep[] {
  return (trace?.steps ?? []).filter(({ kind, text }) => kind === 'packet' && text.includes(` daddr ${address} `));
}

function missingStart({ broken: { check }, source, sourceTrace }: BrokenPath): BreakingPoint | undefined {
  if (!sourceTrace || check.containerId === '' || packetsTo(sourceTrace, check.target.address).length > 0)
    return undefined;
  const detail = 'no packet of the pod arrives at its interface on the node; see podwirectl pods check';
  return endAt('interface', source.name, detail);
}

function wrongRoute({ broken, source, target, sourceTrace, targetTrace }: BrokenPath): BreakingPoint | undefined {
  const { address, target: end } = broken.check;
  if (broken.result.error === 'ENETUNREACH' || sourceTrace?.route === '')
    return endAt('route', source.name, `no route to ${end.address}; see podwirectl node status`);
  if (end.kind !== 'pod' || !target || target.name === source.name) return undefined;
  const isAnswered = packetsTo(targetTrace, address).length > 0;
  const routes = [
    { node: source.name, to: end.address, route: sourceTrace?.route },
    { node: target.name, to: address, route: isAnswered ? targetTrace?.routeBack : undefined },
  ];
  const foreign = routes.find(({ to, route }) => to !== '' && route !== undefined && !isRouteToNode(route));
  if (!foreign) return undefined;
  const detail = `packets to ${foreign.to} take the route "${foreign.route}", which is not Podwire’s route to the pod’s node`;
  return endAt('route', foreign.node, detail);
}

/** The packet left the node of its source, and did not arrive at the other one; or its answer did not. */
function betweenNodes(path: BrokenPath): BreakingPoint | undefined {
  const { check } = path.broken;
  const { all, source, target, sourceTrace, targetTrace } = path;
  if (!target || target.name === source.name || check.target.kind !== 'pod' || !targetTrace) return undefined;
  const isArrived = packetsTo(targetTrace, check.target.address).length > 0;
  const isAnswered = packetsTo(targetTrace, check.address).length > 0;
  const isAnswerBack = packetsTo(sourceTrace, check.address).length > 0;
  if (isArrived && (!isAnswered || isAnswerBack)) return undefined;
  const [from, to] = isArrived ? [target, source] : [source, target];
  const isBetween = ({ kind, family, node, target: end }: Check): boolean =>
    kind === 'node-node' && family === check.family && node === from.name && end.node === to.name;
  if (!all.some((each) => isBetween(each.check) && isPassed(each)))
    return endAt('network', from.name, `${from.name} does not reach ${to.name} itself; see the network between them`);
  const route = isArrived ? targetTrace.routeBack : sourceTrace?.route;
  const tunnel = from.tunnels.find((name) => route?.includes(` dev ${name} `));
  const head = `${isArrived ? 'the answer' : 'the packet'} leaves ${from.name}`;
  const tail = `and does not arrive at ${to.name}: the network or a firewall drops`;
  return tunnel === undefined
    ? endAt('network', from.name, `${head} ${tail} packets with addresses of pods`)
    : endAt('tunnel', from.name, `${head} by ${tunnel} ${tail} encapsulated packets`);
}

function onTarget({ broken, source, target, targetTrace }: BrokenPath): BreakingPoint | undefined {
  const { check, result } = broken;
  const { port, kind } = check.target;
  const name = endName(check.target);
  if (result.reporter !== '')
    return endAt('network', source.name, `host ${result.reporter} refuses the packet: ${errorText(broken)}`);
  if (result.error === 'ECONNREFUSED')
    return endAt('remote node', target?.name ?? name, `${name} refuses the connection to port ${port}`);
  const head = `the packet leaves ${source.name}, and no answer`;
  if (!target) return endAt('network', source.name, `${head} arrives`);
  const at = target.name;
  if (kind !== 'pod') return endAt('network', at, `${head} of ${at} arrives: a firewall of ${at} may drop it`);
  if (!targetTrace) return undefined;
  const detail = `the packet arrives at ${at}, and the pod does not answer; see podwirectl pods check --node ${at}`;
  return endAt('interface', at, detail);
}
