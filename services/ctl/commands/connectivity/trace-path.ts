import { PodServiceService } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { TracePacketsResponse } from '@podwire/proto/podwire/dataplane/v1/probe';
import type { Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { NetworkPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { Failure } from '@podwire/shared/failure/failure';
import { familyOf, type Family } from '@podwire/shared/net/address';

import type { Context } from '../../clients/services.js';
import { oneOf, POD_NAME, wholeNumber } from '../../command-line/forms.js';
import { argument, option, type Input, type Verb } from '../../command-line/verb.js';
import { DONE, PROBLEM_FOUND, sentence, type Table } from '../../output/report.js';
import { listNodeStates } from '../../resources/node.js';
import { listEndpoints } from '../../resources/workloadendpoint.js';
import { errorText, isPassed, pingOf, testedNode, type TestedNode } from './checks.js';
import { breakingPoint, isRouteToNode, packetsTo } from './diagnosis.js';
import { attempt, callNode, followCheck, sendChecks } from './probe-calls.js';

const SOURCE = argument(POD_NAME, 'the pod that sends', 'required');
const DESTINATION = argument(POD_NAME, 'the pod that answers', 'required');
const FAMILY = option(
  '--family',
  oneOf<Family>({ 4: 4, 6: 6 }),
  'family of the addresses (the first that both pods have)',
);
const PORT = option('--port', wholeNumber('PORT', { min: 1, max: 65_535 }), 'connect to this TCP port (a ping)');

const TIMEOUT_MS = 60_000;

const ICMP: Readonly<Record<Family, number>> = { 4: 1, 6: 58 };
const TCP = 6;

export const tracePath: Verb = {
  name: 'trace path',
  about: 'the path between two running pods: by plan and kernel, and by a packet that is followed through nftables',
  details:
    'Sends two packets from inside the first pod, and follows them and their answers on the nodes of both pods for 3 s.\n' +
    'Exit code 4: no answer arrives, or a hop differs from its plan.',
  positionals: [SOURCE, DESTINATION],
  options: [FAMILY, PORT],
  examples: ['trace path default/bot-0 default/web-0', 'trace path default/bot-0 default/web-0 --port 8080'],
  run: async (input, context) => {
    context.restartTimeout(TIMEOUT_MS);
    const [from, to] = await endsOf(input, context);
    const port = input.get(PORT) ?? 0;
    const { best, all, ...traces } = await follow(from, to, { port, context });
    const { sourceTrace, targetTrace } = traces;
    const hops = [
      await interfaceHop(from, context),
      await policyHop(from, to, { port, context }),
      routeHop(from, to, sourceTrace?.route),
      routeHop(to, to, targetTrace?.route),
      await interfaceHop(to, context),
    ];
    const isAnswered = isPassed(best);
    const point = isAnswered
      ? undefined
      : breakingPoint({ broken: best, all, source: from.node, target: to.node, ...traces });
    const steps = [stepsTable(from, to, { at: from, trace: sourceTrace })];
    if (to.node.name !== from.node.name) steps.push(stepsTable(from, to, { at: to, trace: targetTrace }));
    const end = point
      ? `${errorText(best)}: the path ends at ${point.place} of ${point.node}: ${point.detail}`
      : `${to.address} answers in ${(best.result.timeUs / 1000).toFixed(1)} ms`;
    return {
      sections: [hopsTable(hops), ...steps, sentence(end)],
      data: () => ({
        answered: isAnswered,
        ends: point ? { ...point } : null,
        hops: hops.map((hop) => ({ ...hop })),
        steps: [sourceTrace, targetTrace].map((trace) => (trace?.steps ?? []).map((step) => ({ ...step }))),
      }),
      exitCode: isAnswered && hops.every(({ ok }) => ok) ? DONE : PROBLEM_FOUND,
    };
  },
};

/** A pod on its node. */
interface PodEnd {
  readonly endpoint: Endpoint;
  readonly node: TestedNode;
  readonly address: string;
}

async function endsOf(input: Input, context: Context): Promise<readonly [PodEnd, PodEnd]> {
  const [source, destination] = [input.at(SOURCE), input.at(DESTINATION)];
  if (source.namespace === destination.namespace && source.name === destination.name)
    throw new Failure('INVALID_REQUEST', 'packets of a pod to itself stay in the pod; name two pods');
  const first = await endpointOf(source, context);
  const second = await endpointOf(destination, context);
  const family = input.get(FAMILY);
  const addressOf = ({ addresses }: Endpoint, chosen: Family): string | undefined =>
    addresses.map(({ address }) => address.replace(/\/.*/, '')).find((address) => familyOf(address) === chosen);
  const [addresses] = (family ? [family] : ([4, 6] as const)).flatMap((each) => {
    const [from, to] = [addressOf(first, each), addressOf(second, each)];
    return from === undefined || to === undefined ? [] : [[from, to] as const];
  });
  if (!addresses)
    throw new Failure(
      'INVALID_REQUEST',
      'the pods have no addresses of the same family; see podwirectl get workloadendpoints -A',
    );
  const states = await listNodeStates(context.ipam);
  const end = (endpoint: Endpoint, address: string): PodEnd => {
    const state = states.find(({ name }) => name === endpoint.nodeName);
    if (!state) throw new Failure('NODE_NOT_FOUND', `there is no node "${endpoint.nodeName}"; see podwirectl status`);
    return { endpoint, node: testedNode(state), address };
  };
  return [end(first, addresses[0]), end(second, addresses[1])];
}

async function endpointOf(
  { namespace, name }: { readonly namespace: string; readonly name: string },
  { ipam }: Context,
): Promise<Endpoint> {
  const found = await listEndpoints(ipam, { namespace, pod: name });
  const [latest] = found.toSorted((a, b) => (b.createTime?.getTime() ?? 0) - (a.createTime?.getTime() ?? 0));
  if (latest) return latest;
  throw new Failure(
    'ENDPOINT_NOT_FOUND',
    `pod "${namespace}/${name}": no address is recorded; see podwirectl get workloadendpoints -A`,
  );
}

interface Options {
  readonly port: number;
  readonly context: Context;
}

/** Sends the packet while both nodes trace it, and a ping between the nodes. */
async function follow(from: PodEnd, to: PodEnd, { port, context }: Options) {
  const [source, target] = [from.node, to.node];
  const containerId = from.endpoint.attachment?.containerId ?? '';
  const end = { kind: 'pod', node: target.name, address: to.address, port } as const;
  const check = pingOf({ node: source.name, containerId, address: from.address }, end);
  const options = { anySource: false, signal: new AbortController().signal };
  const { sent, ...traces } = await followCheck(check, context, options);
  if (sent instanceof Failure) throw sent;
  const [best] = sent.toSorted((a, b) => Number(isPassed(b)) - Number(isPassed(a)));
  if (!best) throw new Error('a check has a result for each packet');
  const address = target.addresses.find((each) => familyOf(each) === check.family);
  if (source.name === target.name || address === undefined) return { ...traces, best, all: [] };
  const itself = { node: source.name, containerId: '', address: '' };
  const between = pingOf(itself, { kind: 'node', node: target.name, address, port: 0 });
  return { ...traces, best, all: await sendChecks([between], context) };
}

/** One hop of the path, as the plan has it and as the kernel has it. */
interface Hop {
  readonly node: string;
  readonly hop: string;
  readonly plan: string;
  readonly found: string;
  readonly ok: boolean;
}

async function interfaceHop({ endpoint, node: { name: node }, address }: PodEnd, context: Context): Promise<Hop> {
  const request = { recorded: endpoint.attachment, pod: undefined };
  const answer = await attempt(() => callNode(context, node, PodServiceService.checkPod, request));
  const found =
    answer instanceof Failure
      ? answer.message
      : answer.differences.map(({ object, actual }) => `${object}: ${actual}`).join('; ');
  const plan = `${endpoint.hostInterfaceName}, ${address}`;
  return { node, hop: 'interface', plan, found: found === '' ? 'as planned' : found, ok: found === '' };
}

async function policyHop(from: PodEnd, to: PodEnd, { port, context }: Options): Promise<Hop> {
  const request = {
    source: { end: { $case: 'address', value: from.address } },
    destination: { end: { $case: 'address', value: to.address } },
    protocol: port > 0 ? TCP : ICMP[familyOf(to.address)],
    port: port > 0 ? String(port) : '',
  } as const;
  const answer = await attempt(() => context.ipam.call(NetworkPolicyServiceService.explainPolicy, request));
  const hop = { node: to.node.name, hop: 'policy', plan: 'allowed', ok: true };
  if (!(answer instanceof Failure)) {
    const found = answer.allowed ? 'allowed' : 'denied; see podwirectl policy explain';
    return { ...hop, found, ok: answer.allowed };
  }
  const isUnserved = answer.code === 'POLICIES_NOT_SERVED';
  return { ...hop, plan: '', found: isUnserved ? 'no network policies are served' : answer.message };
}

/** The route of a node to the pod: to its interface on the pod's own node, else by a tunnel or to the other node. */
function routeHop(at: PodEnd, to: PodEnd, route: string | undefined): Hop {
  const device = `dev ${to.endpoint.hostInterfaceName}`;
  const isOwn = at.node.name === to.node.name;
  return {
    node: at.node.name,
    hop: `route to ${to.address}`,
    plan: isOwn ? device : `to ${to.node.name}, proto 87 or 12`,
    found: route === '' ? 'none' : (route ?? 'unknown'),
    ok: route !== undefined && (isOwn ? route.includes(` ${device} `) : isRouteToNode(route)),
  };
}

function hopsTable(hops: readonly Hop[]): Table {
  const rows = hops.map(({ node, hop, plan, found, ok }) => [node, hop, ok ? 'ok' : 'differs', plan, found]);
  return { kind: 'table', columns: ['NODE', 'HOP', 'STATE', 'PLAN', 'KERNEL'], rows, none: '' };
}

/** The first packet, and the first answer, on a node. */
function stepsTable(
  from: PodEnd,
  to: PodEnd,
  { at, trace }: { readonly at: PodEnd; readonly trace: TracePacketsResponse | undefined },
): Table {
  const shown = [to, from].map(({ address }) => packetsTo(trace, address)[0]?.packetId);
  const rows = (trace?.steps ?? [])
    .filter(({ packetId }) => shown.includes(packetId))
    .map(({ packetId, table, chain, kind, text, verdict, inputInterface, outputInterface }) => {
      const interfaces = [inputInterface, outputInterface].filter((each) => each !== '').join(' → ');
      const isPacket = kind === 'packet';
      return [packetId, table, chain, isPacket ? interfaces : kind, verdict, isPacket ? '' : text];
    });
  return {
    kind: 'table',
    title: `packets on ${at.node.name}`,
    columns: ['PACKET', 'TABLE', 'CHAIN', 'STEP', 'VERDICT', 'RULE'],
    rows,
    none: `packets on ${at.node.name}: none seen`,
  };
}
