import type { TracePacketsResponse, TraceStep } from '@podwire/proto/podwire/dataplane/v1/probe';

import { isPassed, type CheckResult, type TestedNode } from './checks.js';

/** Facts about a broken path. */
export interface BrokenPath {
  readonly broken: CheckResult;
  readonly all: readonly CheckResult[];
  readonly source: TestedNode;
  /** The node of the target; undefined for services and hosts outside. */
  readonly target: TestedNode | undefined;
  /** Trace of the packet, and of its answer, on the node that sends it. Undefined: there is none. */
  readonly sourceTrace: TracePacketsResponse | undefined;
  readonly targetTrace: TracePacketsResponse | undefined;
}

/** Where a path ends. */
export interface BreakingPoint {
  readonly place:
    'interface' | 'route' | 'tunnel' | 'firewall' | 'policy' | 'MTU' | 'network' | 'remote node' | 'unknown';
  readonly node: string;
  readonly detail: string;
}

/** Tables of Podwire: drops of the last one are network policies. */
const OWN_TABLE = /^\w+ podwire/;
const POLICY_TABLE = 'inet podwire_policy';

/** Protocols of routes of Podwire, and of BIRD. */
const ROUTE_PROTOCOLS = [' proto 87', ' proto 12'];

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
    onTarget(path) ?? {
      place: 'unknown',
      node: path.source.name,
      detail: `${errorText(path.broken)}; no packet was lost while the path was traced`,
    }
  );
}

function unreachableNode({ source, target }: BrokenPath): BreakingPoint | undefined {
  const silent = [source, target].find((node) => node && node.fault !== '');
  return silent && { place: 'remote node', node: silent.name, detail: silent.fault };
}

function tooLargePacket({ broken, all, source, target, targetTrace }: BrokenPath): BreakingPoint | undefined {
  const { check, result } = broken;
  const isShortAnswered = all.some(
    (each) =>
      each.check.packetBytes < check.packetBytes &&
      each.check.containerId === check.containerId &&
      each.check.target.address === check.target.address &&
      isPassed(each),
  );
  if (check.packetBytes === 0 || !isShortAnswered) return undefined;
  const head = `packets of ${check.packetBytes} bytes are`;
  const remedy = 'while short ones pass; lower the MTU of pods, or raise it on the links between the nodes';
  if (result.error === 'EMSGSIZE') {
    const by = result.reporter === '' ? source.name : result.reporter;
    const limit = result.mtuBytes > 0 ? `, whose limit is ${result.mtuBytes}` : '';
    return { place: 'MTU', node: source.name, detail: `${head} refused by ${by}${limit}, ${remedy}` };
  }
  const dropped = targetTrace?.counters.find(({ name }) => /^(?!podw)\S+ receive (drops|errors)$/.test(name));
  if (target && dropped)
    return { place: 'MTU', node: target.name, detail: `${head} dropped (${dropped.name}), ${remedy}` };
  return { place: 'MTU', node: source.name, detail: `${head} lost without a message, ${remedy}` };
}

/** A packet that nftables dropped. */
function dropIn(trace: TracePacketsResponse | undefined, node: string): BreakingPoint | undefined {
  const drop = trace?.steps.find(({ verdict }) => verdict === 'drop');
  if (!drop) return undefined;
  const rule =
    drop.kind === 'policy' ? 'its policy' : `rule: ${drop.text.replace(/counter packets \d+ bytes \d+ ?/, '')}`;
  const detail = `table ${drop.table}, chain ${drop.chain}, ${rule}`;
  if (drop.table === POLICY_TABLE) return { place: 'policy', node, detail };
  const owner = OWN_TABLE.test(drop.table)
    ? 'Podwire’s own filter drops the packet'
    : 'a rule of another program drops the packet';
  return { place: 'firewall', node, detail: `${owner}: ${detail}` };
}

/** Packets of one direction in a trace. */
function packetsTo(trace: TracePacketsResponse | undefined, address: string): readonly TraceStep[] {
  return (trace?.steps ?? []).filter(({ kind, text }) => kind === 'packet' && text.includes(` daddr ${address} `));
}

function missingStart({ broken: { check }, source, sourceTrace }: BrokenPath): BreakingPoint | undefined {
  if (!sourceTrace || check.containerId === '' || packetsTo(sourceTrace, check.target.address).length > 0)
    return undefined;
  const detail = 'no packet of the pod arrives at its interface on the node; see podwirectl pods check';
  return { place: 'interface', node: source.name, detail };
}

function wrongRoute({ broken, source, target, sourceTrace, targetTrace }: BrokenPath): BreakingPoint | undefined {
  const { address, target: end } = broken.check;
  const isMissing = broken.result.error === 'ENETUNREACH' || sourceTrace?.route === '';
  if (isMissing)
    return { place: 'route', node: source.name, detail: `no route to ${end.address}; see podwirectl node status` };
  if (end.kind !== 'pod' || !target || target.name === source.name) return undefined;
  const isAnswered = packetsTo(targetTrace, address).length > 0;
  return (
    foreignRoute(sourceTrace?.route, { to: end.address, node: source.name }) ??
    (isAnswered ? foreignRoute(targetTrace?.routeBack, { to: address, node: target.name }) : undefined)
  );
}

function foreignRoute(
  route: string | undefined,
  { to, node }: { readonly to: string; readonly node: string },
): BreakingPoint | undefined {
  if (route === undefined || to === '') return undefined;
  const isOwn = ROUTE_PROTOCOLS.some((protocol) => route.endsWith(protocol)) && !/^(blackhole|unreachable)/.test(route);
  if (isOwn) return undefined;
  const detail = `packets to ${to} take the route "${route}", which is not Podwire’s route to the pod’s node`;
  return { place: 'route', node, detail };
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
  const isNodeReached = all.some(
    (each) =>
      each.check.kind === 'node-node' &&
      each.check.family === check.family &&
      each.check.node === from.name &&
      each.check.target.node === to.name &&
      isPassed(each),
  );
  if (!isNodeReached) {
    const detail = `${from.name} does not reach ${to.name} itself; see the network between them`;
    return { place: 'network', node: from.name, detail };
  }
  const route = isArrived ? targetTrace.routeBack : sourceTrace?.route;
  const tunnel = from.tunnels.find((name) => route?.includes(` dev ${name} `));
  const head = `${isArrived ? 'the answer' : 'the packet'} leaves ${from.name}`;
  const tail = `and does not arrive at ${to.name}: the network or a firewall drops`;
  if (tunnel === undefined)
    return { place: 'network', node: from.name, detail: `${head} ${tail} packets with addresses of pods` };
  return { place: 'tunnel', node: from.name, detail: `${head} by ${tunnel} ${tail} encapsulated packets` };
}

function onTarget({ broken, source, target, targetTrace }: BrokenPath): BreakingPoint | undefined {
  const { check, result } = broken;
  if (result.error === 'ECONNREFUSED') {
    const by = target?.name ?? check.target.name;
    return {
      place: 'remote node',
      node: by,
      detail: `${check.target.name} refuses the connection to port ${check.target.port}`,
    };
  }
  if (result.reporter !== '')
    return {
      place: 'network',
      node: source.name,
      detail: `host ${result.reporter} refuses the packet: ${errorText(broken)}`,
    };
  if (!target)
    return { place: 'network', node: source.name, detail: `the packet leaves ${source.name}, and no answer arrives` };
  if (check.target.kind !== 'pod')
    return {
      place: 'network',
      node: target.name,
      detail: `the packet leaves ${source.name}, and no answer of ${target.name} arrives: a firewall of ${target.name} may drop it`,
    };
  if (!targetTrace) return undefined;
  return {
    place: 'interface',
    node: target.name,
    detail: `the packet arrives at ${target.name}, and the pod does not answer; see podwirectl pods check --node ${target.name}`,
  };
}

/** `no answer`, or the error in words. */
export function errorText({ result: { error, message } }: CheckResult): string {
  return error === 'ETIMEDOUT' ? 'no answer' : `${error} (${message})`;
}
